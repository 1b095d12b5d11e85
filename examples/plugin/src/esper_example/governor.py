"""A governor without memory: a host that is worse than guessing is rolled back."""

# N hosts

from dataclasses import dataclass

import numpy as np

from esper.governor.base import Cause, Governor, GovernorConfig, Verdict
from esper.ranges import check_ranges


@dataclass(kw_only=True, slots=True)
class CeilingConfig(GovernorConfig):
    """Rolls a host back when its validation loss exceeds a multiple of the loss of a random guess."""

    factor: float = 2.0
    """Highest loss as a multiple of that of a random guess, at least 1. Lower: more rollbacks."""
    penalty: float = 10.0
    """Points deducted for a rollback, at least 0."""

    def __post_init__(self):
        check_ranges("governor", self, {"[1, inf)": ["factor"], "[0, inf)": ["penalty"]})

    def build(self, *, chance_loss):
        return Ceiling(self, chance_loss)


class Ceiling(Governor):
    def __init__(self, config, chance_loss):
        self.limit, self.penalty = config.factor * chance_loss, config.penalty

    def judge(self, health, train_loss_N, loss_N):
        finite_N = np.isfinite(train_loss_N) & np.isfinite(loss_N)
        cause_N = np.where(loss_N > self.limit, Cause.DIVERGENCE, Cause.HEALTHY)
        cause_N = np.where(finite_N, cause_N, Cause.NONFINITE)
        return Verdict(cause_N=cause_N, suspect_N=np.zeros_like(finite_N), penalty=self.penalty)
