"""Comparison of two arms of an experiment, paired by block.

A block is one training run of each arm from the same seed. The runs of a block share every random stream that their configs do
not change, so the variance between seeds cancels in their difference. The unit of analysis is the run; hosts within a run are not
replicates of it.
"""

# n blocks

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.special import ndtr

from esper.stats.intervals import UNKNOWN, Interval
from esper.stats.looks import nodes
from esper.stats.sign_flip import sign_flip

POWER = 0.8
"""Power at which a difference counts as detectable."""
MIN_BLOCKS = 10
"""Minimum number of blocks for a verdict: with five, a nominal 95 % bootstrap interval covers the truth in 85 of 100
experiments."""
TRIM: Any = 0.25
"""Share that an interquartile mean trims at each end."""


def iqm_interval(values: npt.ArrayLike) -> Interval:
    """Return the interquartile mean (Agarwal et al. 2021, arXiv:2108.13264) with its 95 % t interval.

    The standard error comes from winsorised values (Tukey, McLaughlin 1963). With n below 6 the interval has no ends, as that of
    the mean: a sign-flip test then has p >= 2 / 2^5.

    Args:
        values: `[n]`, n at least 2; the differences, for paired runs.
    """
    low, high = stats.mstats.trimmed_mean_ci(values, (TRIM, TRIM)) if np.size(values) > 5 else (-math.inf, math.inf)
    return Interval(float(stats.trim_mean(values, TRIM)), float(low), float(high))


def improvement(first: npt.ArrayLike, second: npt.ArrayLike, strata: npt.ArrayLike) -> float:
    """Return the probability of improvement: P(a run of the first arm exceeds a run of the second), ties count half.

    Mann-Whitney's U / (n m) (Agarwal et al. 2021). Runs are compared within their stratum, and every stratum has the same weight,
    however many blocks it has.

    Args:
        first: outcomes `[n]` of the first arm.
        second: outcomes `[n]` of the second arm in the same blocks.
        strata: stratum of each block `[n]`.
    """
    one, other, groups = (np.asarray(values) for values in (first, second, strata))
    pairs = [(one[groups == group], other[groups == group]) for group in np.unique(groups)]
    return float(np.mean([(np.sign(a[:, None] - b).mean() + 1) / 2 for a, b in pairs]))


def equivalence(differences: npt.ArrayLike, margin: float) -> float:
    """Return the p value of two one-sided t tests that the mean difference lies within the margin (Schuirmann 1987)."""
    values = np.asarray(differences, dtype=np.float64)
    if np.ptp(values) <= 1e-12 * np.abs(values).max():  # the same difference, but for rounding
        return float(abs(values[0]) >= margin)
    sides: Any = ((-margin, "greater"), (margin, "less"))
    tests: list[Any] = [stats.ttest_1samp(values, end, alternative=side) for end, side in sides]
    return max(float(test.pvalue) for test in tests)


def t_test_power(ratio: float, blocks: int, alpha: float) -> float:
    """Return the power of a two-sided paired t test.

    The power of a normal test with a known standard deviation, averaged over the estimated one. TTestPower of statsmodels is nan
    where the non-central t distribution of scipy fails, as for `ratio=0.2, blocks=2000, alpha=0.001`.

    Args:
        ratio: true difference, in standard deviations of a difference.
        blocks: number of blocks, at least 2.
        alpha: significance level, in [0, 1).
    """
    points, weights = nodes(200)
    estimated = np.sqrt(stats.chi2.ppf(points, blocks - 1) / (blocks - 1))
    bound, mean = stats.t.ppf(1 - alpha / 2, blocks - 1) * estimated, ratio * math.sqrt(blocks)
    return min(1.0, float(weights @ (ndtr(mean - bound) + ndtr(-mean - bound))))


def blocks_needed(spread: float, effect: float, *, alpha: float = 0.05) -> int:
    """Return the number of blocks at which a paired t test detects a true difference of `effect` with a power of 80 %.

    The result is at least the number of blocks that a verdict requires.

    Args:
        spread: standard deviation of the differences.
        effect: difference to detect, in the same unit, above 0.
        alpha: significance level; with m pairs and a family-wise error rate of 5 %, 0.05 / m.
    """
    least = max(MIN_BLOCKS, math.floor(1 - math.log2(alpha)) + 1)  # a sign-flip test of n blocks has p >= 2 / 2^n
    if effect > 10 * spread:
        return least
    # Start from the count of a normal test, which is too small by about two.
    ratio = effect / spread
    count = max(least, math.floor(((stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(POWER)) / ratio) ** 2))
    while t_test_power(ratio, count, alpha) < POWER:
        count += 1
    return count


def likely_spread(values: npt.ArrayLike) -> float:
    """Return an upper 60 % confidence bound of the standard deviation, since few blocks tend to underestimate it.

    s * sqrt((n - 1) / q), where q is the 40 % quantile of chi squared with n - 1 degrees of freedom.
    """
    sample = np.asarray(values, dtype=np.float64)
    freedom = len(sample) - 1
    return float(sample.std(ddof=1) * np.sqrt(freedom / stats.chi2.ppf(0.4, freedom)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Difference of two arms in one outcome, first minus second; NaN if they share fewer than two blocks."""

    first: str
    second: str
    blocks: int
    """Number of shared blocks whose runs enter the mean."""
    collapsed: int = 0
    """Number of blocks that were left out because a run collapsed."""
    missing: int = 0
    """Number of blocks that were left out because a run is missing."""
    confidence: float = 0.95
    """Coverage of the interval of the mean; above 95 % if there are several looks, so that all together reach 95 %."""
    mean: Interval = UNKNOWN
    """Mean difference with its interval; with bounds for missing runs, the hull of the intervals of both worst cases."""
    iqm: Interval = UNKNOWN
    """Interquartile mean of the differences."""
    improvement: float = float("nan")
    """P(a run of the first arm has a higher outcome than one of the second), ties count half, in [0, 1]."""
    p: float = 1.0
    """p value of no difference: paired permutation test; with bounds for missing runs, the larger p of both worst cases, or 1 if
    their signs differ."""
    p_equivalence: float = 1.0
    """p value of a difference of at least the margin."""
    spread: float = float("nan")
    """Upper 60 % bound of the standard deviation of a difference of two runs."""


def paired_difference(
    names: tuple[str, str],
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    *,
    margin: float,
    strata: npt.ArrayLike,
    collapsed: npt.ArrayLike = False,
    confidence: float = 0.95,
    bounds: tuple[float, float] | None = None,
) -> Difference:
    """Compare two arms block by block.

    Args:
        names: names of the arms.
        first: outcome of each shared block in the first arm `[n]`; NaN for a missing run.
        second: outcome of the same blocks in the second arm `[n]`.
        margin: smallest difference that matters, in the unit of the outcome, above 0.
        strata: stratum of each block `[n]`, such as its task.
        collapsed: which blocks are left out because a run collapsed `[n]`.
        confidence: coverage of the interval of the mean.
        bounds: lowest and highest possible outcome. The test, its interval and equivalence then hold whatever the missing runs
            would have shown; None leaves blocks with a missing run out.
    """
    whole = np.broadcast_to(~np.asarray(collapsed), np.shape(first))
    one, other = (np.asarray(arm, dtype=np.float64)[whole] for arm in (first, second))
    measured = np.isfinite(one) & np.isfinite(other)
    blocks, fallen, missing = int(measured.sum()), int((~whole).sum()), int((~measured).sum())
    if blocks < 2:
        return Difference(first=names[0], second=names[1], blocks=blocks, collapsed=fallen, missing=missing)
    differences = (one - other)[measured]
    cases = [differences]
    if bounds is not None and blocks < len(measured):
        cases = [np.nan_to_num(one, nan=end) - np.nan_to_num(other, nan=sum(bounds) - end) for end in bounds]
    tests = [sign_flip(case, confidence=confidence) for case in cases]
    low, high = min(test.interval.low for test in tests), max(test.interval.high for test in tests)
    agree = len({test.interval.mean > 0 for test in tests}) == 1
    one, other = one[measured], other[measured]
    return Difference(
        first=names[0],
        second=names[1],
        blocks=blocks,
        collapsed=fallen,
        missing=missing,
        confidence=confidence,
        mean=Interval(float(differences.mean()), low, high),
        iqm=iqm_interval(differences),
        improvement=improvement(one, other, np.asarray(strata)[whole][measured]),
        p=max(test.p for test in tests) if agree else 1.0,
        p_equivalence=max(equivalence(case, margin) for case in cases),
        spread=likely_spread(differences),
    )
