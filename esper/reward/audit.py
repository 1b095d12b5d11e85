"""Reward-hacking checks: seeds that a host depends on without gaining from them, and rewards that diverge from the outcome."""

# N hosts, S slots

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from esper.lifecycle.stages import TAKES_PART, BoolArray, FloatArray
from esper.reward.signals import StepSignals
from esper.reward.table import SHAPING
from esper.reward.terms import CONTRIBUTES, Births, contributions

RATIO = 5.0
"""Ratio of a seed's contribution to the gain since its birth above which it is suspect: the host merely depends on it."""
HARM = 0.2
"""Loss of accuracy since the birth of a contributing seed above which the seed is suspect [pp]."""
ERRORS = 2.0
"""Number of standard errors that a contribution or loss must exceed to count."""


def suspects(signals: StepSignals, gain_NS: FloatArray) -> tuple[BoolArray, BoolArray, BoolArray]:
    """Return measured seeds, suspects by `RATIO`, and suspects by `HARM`, `[N, S]` each.

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
    """Return Spearman's rank correlation within groups, mean weighted by hosts; NaN if no group varies in both."""
    found: list[tuple[float, int]] = []
    for rows in groups.values() or [slice(None)]:
        known = np.isfinite(outcome_N[rows]) & np.isfinite(paid_N[rows])
        paid, outcome = paid_N[rows][known], outcome_N[rows][known]
        if len(paid) > 1 and np.ptp(paid) > 0 and np.ptp(outcome) > 0:
            found.append((float(np.corrcoef(_ranks(paid), _ranks(outcome))[0, 1]), len(paid)))
    hosts = sum(count for _, count in found)
    return sum(rho * count for rho, count in found) / hosts if hosts else math.nan


def _ranks(values: FloatArray) -> npt.NDArray[np.float64]:
    """Return the rank of each value from 1 on; equal values have the mean of their ranks. No scipy: it imports slowly."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


class Auditor:
    """The checks of one episode, collected step by step. They do not affect the run."""

    def __init__(self) -> None:
        self._births = Births()
        self._counts = np.zeros(3, dtype=np.int64)
        self._shaped = self._paid = 0.0

    def add(self, signals: StepSignals, components: Mapping[str, FloatArray]) -> None:
        """Add a step, with its reward by term."""
        found = suspects(signals, self._births.gain(signals))
        self._counts += [int(which_NS.sum()) for which_NS in found]
        self._shaped += float(np.abs(components.get(SHAPING, np.zeros(1))).sum())
        self._paid += float(np.abs(sum(components.values(), start=np.zeros(1))).sum())

    def report(self, return_N: FloatArray, outcome_N: FloatArray, groups: Mapping[str, slice]) -> dict[str, float]:
        """Return the checks of the whole episode as metrics by tag; NaN where undefined.

        Args:
            return_N: return of each host [pp].
            outcome_N: committed accuracy [%]; NaN where not measured.
            groups: hosts by the mode that pays them, see `Reward.groups`.
        """
        measured, leans, ransom = self._counts.tolist()
        return {
            "audit/seed_epochs": measured,
            "audit/attribution_ratio": leans / measured if measured else math.nan,
            "audit/ransomware": ransom / measured if measured else math.nan,
            "audit/shaped_ratio": self._shaped / self._paid if self._paid > 0 else math.nan,
            "audit/goodhart": rank_correlation(return_N, outcome_N, groups),
        }
