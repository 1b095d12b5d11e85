"""Is what is paid what is meant? Signs of seeds that bind a host instead of helping it, and of pay that parts from the
outcome."""

# N hosts, S slots

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from esper.lifecycle.stages import TAKES_PART
from esper.reward.signals import StepSignals
from esper.reward.table import SHAPING
from esper.reward.terms import CONTRIBUTES, Births, contributions

FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]

RATIO = 5.0
"""A seed that seems to contribute this many times what was gained since it came is suspect: the host has come to lean on it."""
HARM = 0.2
"""A host that lost more than this since a seed came that it cannot do without is held to ransom [pp]."""
ERRORS = 2.0
"""Contributions count from so many of their standard errors on, and so do losses."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """What the rewards of one episode of N hosts look like from outside."""

    seed_epochs: int
    """Contributions measured: seeds times host epochs."""
    attribution_ratio: float
    """Share of them in which a seed contributed `RATIO` times what was gained since it came, or more; NaN without any."""
    ransomware: float
    """Share of them in which the host could not do without a seed, and was worse than before it came; NaN without any."""
    shaped_ratio: float
    """Sum of |shaping| over that of |reward|, over steps and hosts: above 1 shaping outweighs what it shapes. NaN where nothing
    was paid."""
    goodhart: float
    """Rank correlation (Spearman) over hosts between what they were paid and the accuracy of what they committed, mean over the
    modes that pay them: 1 where pay puts hosts in the right order. NaN where it cannot be told."""


def suspects(signals: StepSignals, gain_NS: FloatArray) -> tuple[BoolArray, BoolArray, BoolArray]:
    """`[N, S]` each: whose contribution was measured, who leans on whom, and who is held to ransom; see `RATIO` and `HARM`.

    Args:
        gain_NS: accuracy gained since each seed's birth, from `Births` [pp].
    """
    after = signals.after
    measured_NS = after.within(*TAKES_PART) & (after.alpha > 0) & after.measured & np.isfinite(gain_NS)
    contribution_NS, error_NS = contributions(after), ERRORS * after.contribution_error
    counts_NS = measured_NS & (contribution_NS >= np.maximum(CONTRIBUTES, error_NS))
    leans_NS = counts_NS & (gain_NS > 0) & (contribution_NS >= RATIO * gain_NS)
    ransom_NS = counts_NS & (gain_NS < -np.maximum(HARM, error_NS))
    return measured_NS, leans_NS, ransom_NS


def rank_correlation(paid_N: FloatArray, outcome_N: FloatArray, groups: Mapping[str, slice]) -> float:
    """Spearman's rank correlation within each group of hosts, mean over hosts; NaN where no group has two different values of
    each."""
    found: list[tuple[float, int]] = []
    for rows in groups.values() or [slice(None)]:
        known = np.isfinite(outcome_N[rows]) & np.isfinite(paid_N[rows])
        paid, outcome = paid_N[rows][known], outcome_N[rows][known]
        if len(paid) > 1 and np.ptp(paid) > 0 and np.ptp(outcome) > 0:
            found.append((float(np.corrcoef(stats.rankdata(paid), stats.rankdata(outcome))[0, 1]), len(paid)))
    hosts = sum(count for _, count in found)
    return sum(rho * count for rho, count in found) / hosts if hosts else math.nan


class Auditor:
    """Watches one episode, step by step; pays nothing and changes nothing."""

    def __init__(self) -> None:
        self._births = Births()
        self._counts = np.zeros(3, dtype=np.int64)
        self._shaped = self._paid = 0.0

    def see(self, signals: StepSignals, components: Mapping[str, FloatArray]) -> None:
        """Takes a step in, with what it paid by term."""
        found = suspects(signals, self._births.gain(signals))
        self._counts += [int(which_NS.sum()) for which_NS in found]
        self._shaped += float(np.abs(components.get(SHAPING, np.zeros(1))).sum())
        self._paid += float(np.abs(sum(components.values(), start=np.zeros(1))).sum())

    def report(self, return_N: FloatArray, outcome_N: FloatArray, groups: Mapping[str, slice]) -> Audit:
        """The whole episode.

        Args:
            return_N: sum of what each host was paid [pp].
            outcome_N: accuracy of what it committed [pp]; NaN where it could not be measured.
            groups: hosts by the mode that pays them, see `Reward.groups`.
        """
        measured, leans, ransom = self._counts.tolist()
        return Audit(
            seed_epochs=measured,
            attribution_ratio=leans / measured if measured else math.nan,
            ransomware=ransom / measured if measured else math.nan,
            shaped_ratio=self._shaped / self._paid if self._paid > 0 else math.nan,
            goodhart=rank_correlation(return_N, outcome_N, groups),
        )
