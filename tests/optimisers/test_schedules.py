"""Schedules, against closed forms and `torch.optim.lr_scheduler`."""

import math

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from esper.optimisers.schedules import RateSchedule, fall, rise

STEPS = 200


def rates(make):
    """Return the factors of a scheduler of torch at every step."""
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, found = make(optimiser), []
    for _ in range(STEPS):
        found.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return found


def factor(schedule, progress, warmup):
    return rise(schedule, progress, warmup) * fall(schedule, progress, warmup)


def test_cosine_is_that_of_torch():
    theirs = rates(lambda optimiser: lr_scheduler.CosineAnnealingLR(optimiser, STEPS))
    assert [factor(RateSchedule.cosine, step / STEPS, 0.0) for step in range(STEPS)] == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("warmup", [0.3, 0.1])
def test_one_cycle_is_that_of_torch(warmup):
    """Torch's peak is at its step `warmup * STEPS - 1` of `STEPS - 1`."""
    theirs = rates(lambda optimiser: lr_scheduler.OneCycleLR(optimiser, 1.0, STEPS + 1, pct_start=warmup, cycle_momentum=False))
    peak = (warmup * (STEPS + 1) - 1) / STEPS
    assert [factor(RateSchedule.one_cycle, step / STEPS, peak) for step in range(STEPS)] == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("schedule", [RateSchedule.constant, RateSchedule.cosine])
def test_a_warm_up_is_linear_and_comes_before_the_fall(schedule):
    linear = rates(lambda optimiser: lr_scheduler.LinearLR(optimiser, 1e-9, total_iters=STEPS // 4))
    for step, wanted in enumerate(linear[: STEPS // 4]):
        assert factor(schedule, step / STEPS, 0.25) == pytest.approx(wanted, abs=1e-8)
    middle = factor(schedule, 0.25 + 0.75 / 3, 0.25)
    assert middle == pytest.approx(1.0 if schedule is RateSchedule.constant else (1 + math.cos(math.pi / 3)) / 2)


@pytest.mark.parametrize("schedule", list(RateSchedule))
@pytest.mark.parametrize("warmup", [0.0, 0.4])
def test_a_schedule_rises_to_one_and_falls_from_there(schedule, warmup):
    grid = [step / STEPS for step in range(STEPS + 1)]
    up, down = ([part(schedule, progress, warmup) for progress in grid] for part in (rise, fall))
    assert up == sorted(up)
    assert down == sorted(down, reverse=True)
    assert all(1.0 in pair for pair in zip(up, down, strict=True))
    assert up[-1] == down[0] == 1.0
    assert down[-1] == {"constant": 1.0, "cosine": 0.0, "one_cycle": pytest.approx(1 / 250_000)}[schedule]
