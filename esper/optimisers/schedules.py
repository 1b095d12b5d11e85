"""Schedules of learning rates: pure functions of progress, the share of an episode that has passed, in [0, 1].

A schedule is a rise times a fall, of which one is 1 at any time. Hosts follow both. Seeds follow the fall only: their rise, a
warm-up, counts from their planting.
"""

import math
from enum import StrEnum

START, END = 1 / 25, 1 / 25e4
"""First and last factor of `one_cycle`, those of PyTorch."""
PEAK = 0.3
"""Progress at which `one_cycle` is at its peak, unless a warm-up is given."""


class RateSchedule(StrEnum):
    """Course of the learning rate after a warm-up."""

    constant = "constant"
    """The learning rate does not change."""
    cosine = "cosine"
    """The learning rate falls to 0 at the end of the episode, along half a cosine."""
    one_cycle = "one_cycle"
    """The learning rate rises from 1/25 over the warm-up and falls to 1/250,000, each along half a cosine
    (https://arxiv.org/abs/1708.07120)."""


def rise(schedule: RateSchedule, progress: float, warmup: float) -> float:
    """Return the factor of a warm-up, which ends at this progress: linear, or half a cosine for `one_cycle`."""
    if progress >= warmup:
        return 1.0
    return _between(START, 1.0, progress / warmup) if schedule is RateSchedule.one_cycle else progress / warmup


def fall(schedule: RateSchedule, progress: float, warmup: float) -> float:
    """Return the factor after a warm-up, which ends at this progress; 1 before."""
    if schedule is RateSchedule.constant or progress <= warmup:
        return 1.0
    return _between(1.0, END if schedule is RateSchedule.one_cycle else 0.0, (progress - warmup) / (1.0 - warmup))


def _between(first: float, last: float, share: float) -> float:
    """Return the value at this share of half a cosine."""
    return last + (first - last) * (1.0 + math.cos(math.pi * share)) / 2.0
