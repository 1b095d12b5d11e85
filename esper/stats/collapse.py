"""Runs that collapse: their rate, and what they do to a comparison of means."""

# n runs of an arm

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from esper.stats.intervals import Interval

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
LIMIT = 5.0
"""Robust standard deviations below the median of its arm at which a run counts as collapsed."""


def collapsed(values: npt.ArrayLike, strata: npt.ArrayLike, *, margin: float, higher_is_better: bool = True) -> Mask:
    """Return which runs of an arm have collapsed `[n]`.

    A run has collapsed if it is worse than the median of its arm and stratum by more than `LIMIT` robust standard deviations and
    by more than the margin.

    Args:
        values: outcomes of the runs `[n]`; NaN for a missing run, which has not collapsed.
        strata: stratum of each run `[n]`.
        margin: smallest difference that matters, in the unit of the outcome.
        higher_is_better: if true, runs with low outcomes collapse, else those with high ones.
    """
    runs = pd.Series(np.asarray(values, dtype=np.float64))
    deficit = (runs.groupby(np.asarray(strata)).transform("median") - runs) * (1 if higher_is_better else -1)
    return np.asarray(deficit > max(margin, LIMIT * _spread(deficit)))


def irregularities(differences: npt.ArrayLike, margin: float) -> list[str]:
    """Return warnings about outliers and skew of paired differences, which make statements on their mean unreliable."""
    values = np.asarray(differences, dtype=np.float64)
    distance = np.abs(values - float(pd.Series(values).median()))
    outliers = int((distance > max(margin, LIMIT * _spread(distance))).sum())
    return [f"{outliers} outliers among {len(values)} differences"] if outliers else []


def _spread(deviations: npt.ArrayLike) -> float:
    """Return 1.4826 times the median absolute deviation, which estimates a standard deviation."""
    return 1.4826 * float(pd.Series(np.abs(deviations)).median())


@dataclass(frozen=True, kw_only=True, slots=True)
class CollapseRate:
    """How many runs of an arm collapsed."""

    arm: str
    collapsed: int
    runs: int
    """Number of measured runs, at least 1."""

    @property
    def rate(self) -> Interval:
        """Rate of collapse with its exact 95 % interval (Clopper, Pearson 1934), in [0, 1]."""
        found = stats.binomtest(self.collapsed, self.runs)
        interval = found.proportion_ci()
        return Interval(float(found.statistic), float(interval.low), float(interval.high))

    @property
    def at_most(self) -> float:
        """Upper 95 % confidence bound of the rate, in [0, 1]."""
        return float(stats.binomtest(self.collapsed, self.runs, alternative="less").proportion_ci().high)

    def __str__(self) -> str:
        return f"{self.arm} {self.collapsed} of {self.runs} (at most {100 * self.at_most:.0f} %)"


def collapse_p(first: Mask, second: Mask) -> float:
    """Return the two-sided p value of equal rates of collapse in paired runs (exact McNemar test).

    Args:
        first: which runs of the first arm collapsed `[n]`.
        second: the same for the second arm, block by block.
    """
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    discordant = only_first + only_second
    return float(stats.binomtest(only_first, discordant).pvalue) if discordant else 1.0
