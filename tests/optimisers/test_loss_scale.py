"""Loss scales, against `torch.amp.GradScaler` on each member alone."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from esper.optimisers import loss_scale as subject
from esper.optimisers.adamw import AdamWConfig
from esper.optimisers.loss_scale import LossScale
from esper.optimisers.sgd import NesterovConfig, SGDConfig
from tests.reference_host import plain_optimiser

KINDS = [SGDConfig(weight_decay=0.01, max_norm=0.5), NesterovConfig(max_norm=0.5), AdamWConfig(max_norm=0.5)]
each = pytest.mark.parametrize("config", KINDS, ids=["sgd", "nesterov", "adamw"])


@each
def test_scales_and_steps_are_those_of_a_grad_scaler_of_each_member(config, monkeypatch):
    """Member 0 never overflows, member 1 now and then, member 2 at every step until its scale is low."""
    monkeypatch.setattr(subject, "STEPS_TO_GROW", 3)
    flat = torch.randn(3, 5).requires_grad_()
    parts = [nn.Parameter(row.clone()) for row in flat.detach()]
    theirs = [plain_optimiser([part], config) for part in parts]
    scalers = [torch.amp.GradScaler("cpu", init_scale=subject.FIRST, growth_interval=3) for _ in parts]
    mine, scale, (settings, _), moved = config.build(flat), LossScale(3, "cpu"), config.at(0.0), np.zeros(3, int)
    for step in range(14):
        over = [False, step % 5 == 1, step < 9]
        assert scale.of().tolist() == [scaler.get_scale() for scaler in scalers]
        grad, before = torch.randn(3, 5), flat.detach().clone()
        for part, optimiser, scaler, g, fails in zip(parts, theirs, scalers, grad, over, strict=True):
            optimiser.zero_grad()
            scaler.scale((part * g).sum()).backward()
            part.grad[2] = math.inf if fails else part.grad[2]
            scaler.unscale_(optimiser)
            nn.utils.clip_grad_norm_([part], config.max_norm)
            scaler.step(optimiser)
            scaler.update()
        flat.grad = grad * scale.state["scale"]
        flat.grad[over, 2] = math.inf if step % 2 else math.nan
        scale.adjust([mine.step(settings, scale_M1=scale.state["scale"])])
        assert torch.allclose(flat, torch.stack(list(parts)), rtol=1e-5, atol=1e-6)
        assert (flat != before).any(1).tolist() == [not fails for fails in over]
        moved += np.invert(over)
    counts, sick = scale.take_overflows()
    assert counts.tolist() == (14 - moved).tolist() == [0, 3, 9]
    assert not sick.any()
    assert len({scaler.get_scale() for scaler in scalers}) == 3


@each
def test_gradients_are_unscaled_before_they_are_clipped_and_measured(config):
    """Bit for bit, since scales are powers of two."""
    born, norms = torch.randn(4, 5), []
    flats = [born.clone().requires_grad_() for _ in range(2)]
    for flat, scale_M1 in zip(flats, (None, torch.tensor([[1.0], [64.0], [2.0**16], [2.0**24]])), strict=True):
        mine, draws = config.build(flat), torch.Generator().manual_seed(0)
        for _ in range(3):
            flat.grad = torch.randn(4, 5, generator=draws) * (1.0 if scale_M1 is None else scale_M1)
            mine.step(config.at(0.0)[0], scale_M1=scale_M1)
        norms.append(mine.take_norms())
    assert flats[0].equal(flats[1])
    assert norms[0].equal(norms[1])
    assert (norms[0] > config.max_norm).all()


def test_skipped_steps_do_not_count_in_the_norms():
    flat, config = torch.zeros(3, 2, requires_grad=True), SGDConfig()
    mine = config.build(flat)
    for sizes in ((3.0, 5.0, math.nan), (1.0, math.inf, math.inf)):
        flat.grad = 2.0 * torch.tensor(sizes)[:, None] * torch.tensor([[0.6, 0.8]])
        mine.step(config.at(0.0)[0], scale_M1=torch.full((3, 1), 2.0))
    np.testing.assert_allclose(mine.take_norms(), [2.0, 5.0, math.nan], rtol=1e-6)
    assert mine.take_norms().isnan().all()


def test_an_overflow_at_the_lowest_scale_is_told_apart_and_reported_once():
    scale, over = LossScale(3, "cpu"), torch.tensor([[True], [False], [True]])
    scale.state["scale"][:2] = 1.0
    scale.adjust([over, torch.zeros(3, 1, dtype=torch.bool)])
    assert scale.of().tolist() == [1.0, 1.0, subject.FIRST / 2]
    assert [found.tolist() for found in scale.take_overflows()] == [[1, 0, 1], [True, False, False]]
    assert [found.tolist() for found in scale.take_overflows()] == [[0, 0, 0], [False, False, False]]
    scale.adjust([])  # a pass in which nothing learns
    assert not scale.take_overflows()[0].any()


def test_a_scale_grows_by_steps_of_its_member_and_stays_finite():
    scale, one = LossScale(2, "cpu"), torch.tensor([[True], [False]])
    for _ in range(subject.STEPS_TO_GROW):
        scale.adjust([], one)
    assert scale.of().tolist() == [2 * subject.FIRST, subject.FIRST]
    scale.state["scale"][:] = 2.0**127
    for _ in range(subject.STEPS_TO_GROW):
        scale.adjust([])
    assert scale.of().tolist() == [2.0**127] * 2
    scale.adjust([one])
    assert scale.of().tolist() == [2.0**126, 2.0**127]
