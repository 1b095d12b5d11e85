"""Runs that collapse, their rates, and differences of two arms that are not normal."""

# n runs of an arm

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from esper.stats.paired import MIN_BLOCKS

Mask = npt.NDArray[np.bool_]
LIMIT = 4.5
"""Standard deviations below the median of its arm, and of its differences to another arm, at which a run counts as collapsed."""
IRREGULAR = 0.05
"""p value of the test of normality below which the mean of differences comes with a warning."""


def collapsed(values: npt.ArrayLike, strata: npt.ArrayLike, *, margin: float) -> Mask:
    """Return which runs of an arm are so low that they may have collapsed `[n]`; `collapsed_pair` judges their block as well.

    A run is low if it is worse than the median of its arm and stratum by more than `LIMIT` standard deviations and by more
    than the margin. The standard deviation is that of the better half of the runs, the root mean square of their distances from
    the median: a median absolute deviation is inflated, and hides the collapse, if a third of the runs collapse. With fewer than
    `MIN_BLOCKS` measured runs that deviation is too uncertain, and none is low: with three normal runs, one would be in 22 % of
    arms; with ten, in 5 %.

    Args:
        values: outcomes of the runs `[n]`, of which higher ones are better; NaN for a missing run, which is not low.
        strata: stratum of each run `[n]`.
        margin: smallest difference that matters, in the unit of the outcome.
    """
    lead = _centred(values, strata, np.nanmedian)
    known = lead[np.isfinite(lead)]
    if len(known) < MIN_BLOCKS:
        return np.zeros(len(lead), dtype=np.bool_)
    return lead < -max(margin, LIMIT * _better_half(known))


def collapsed_pair(first: npt.ArrayLike, second: npt.ArrayLike, strata: npt.ArrayLike, *, margin: float) -> tuple[Mask, Mask]:
    """Return which runs of two arms have collapsed `[n]` each, judged against their arm and against their block.

    A block can be hard: its seed gives every arm a low outcome. So a run that is low for its arm (`collapsed`) counts only if it
    is low for its block too. Its difference to the other arm must be worse than the median difference by more than the margin and
    by more than `LIMIT` standard deviations: those of the better half of the differences in which neither run is low for its arm.

    Args:
        first: outcomes of the first arm `[n]`, of which higher ones are better; NaN for a missing run.
        second: outcomes of the second arm in the same blocks.
        strata: stratum of each block `[n]`.
        margin: smallest difference that matters, in the unit of the outcome.
    """
    one, other = (np.asarray(arm, dtype=np.float64) for arm in (first, second))
    low = [collapsed(arm, strata, margin=margin) for arm in (one, other)]
    groups, usual = np.asarray(strata), np.isfinite(one - other) & ~(low[0] | low[1])
    lead = np.full(len(one), np.nan)  # of the first arm over the second, beyond what is usual in their stratum
    for group in np.unique(groups[usual]):
        lead[groups == group] = (one - other)[groups == group] - np.median((one - other)[usual & (groups == group)])
    # Without a difference to compare with, as beside a missing run, the arm alone decides.
    own = [side * lead < -max(margin, LIMIT * _better_half(side * lead[usual])) for side in (1, -1)]
    return low[0] & (np.isnan(lead) | own[0]), low[1] & (np.isnan(lead) | own[1])


def _better_half(lead: npt.NDArray[np.float64]) -> float:
    """Return the root mean square of the better half of distances from a median; 0 without any.

    A standard deviation of all of them would be inflated by what is looked for.
    """
    return float(np.sqrt(np.mean(np.sort(lead)[len(lead) // 2 :] ** 2))) if len(lead) else 0.0


def irregular(differences: npt.ArrayLike, strata: npt.ArrayLike, *, margin: float) -> bool:
    """Return whether differences of two arms are clearly not normal, with at least one deviation beyond the margin.

    True if the test of Shapiro and Wilk (1965) rejects at `IRREGULAR`, and a difference is farther than the margin from the mean
    of its stratum. Outliers, and collapse that is too shallow or too frequent for `collapsed`, are such cases.
    """
    distance = _centred(differences, strata, np.nanmean)
    known = distance[np.isfinite(distance)]
    return len(known) > 2 and bool(np.abs(known).max() > margin) and float(stats.shapiro(known).pvalue) < IRREGULAR


def _centred(values: npt.ArrayLike, strata: npt.ArrayLike, centre: Callable[..., Any]) -> npt.NDArray[np.float64]:
    """Return values minus the centre of their stratum, such as its median; NaN for a missing one."""
    runs, groups = np.asarray(values, dtype=np.float64), np.asarray(strata)
    centred = np.full(len(runs), np.nan)
    for group in np.unique(groups[np.isfinite(runs)]):
        centred[groups == group] = runs[groups == group] - centre(runs[groups == group])
    return centred


@dataclass(frozen=True, kw_only=True, slots=True)
class CollapseRate:
    """How many runs of an arm collapsed."""

    arm: str
    collapsed: int
    runs: int
    """Number of measured runs."""
    blocks: tuple[int, ...] = ()
    """Blocks of the collapsed runs."""

    @property
    def where(self) -> str:
        """Blocks of the collapsed runs, as in `blocks 3, 4`."""
        return f"block{'s' * (len(self.blocks) != 1)} {', '.join(map(str, self.blocks))}"

    @property
    def at_most(self) -> float:
        """Exact upper 95 % bound of the rate of collapse (Clopper, Pearson 1934), in [0, 1]."""
        if self.runs == 0:
            return 1.0
        return float(stats.binomtest(self.collapsed, self.runs, alternative="less").proportion_ci().high)

    def __str__(self) -> str:
        return f"{self.arm} {self.collapsed} of {self.runs} (at most {100 * self.at_most:.0f} %)"
