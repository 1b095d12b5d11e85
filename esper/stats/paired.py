"""Two arms of an experiment compared, block by block where they share blocks.

A block is one training run of each arm from the same seed: they share every random stream that their configs do not change, so
the difference within a block is free of what a seed is worth. The unit is the run; hosts within a run are no replicates of it.
"""

# n blocks, R resamples

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats
from statsmodels.stats.weightstats import DescrStatsW

from esper.stats.intervals import Interval

Array = npt.NDArray[np.float64]
RESAMPLES = 9_999
"""Bootstrap and permutation samples. Quantiles at 2.5 % then have a relative error of some 6 %."""
LEAST_BLOCKS = 10
"""No verdict with fewer: at five, an interval of 95 % that does not know its spread holds the truth in 85 of 100."""
TRIM = 0.25
"""Share that an interquartile mean leaves out at each end."""


def iqm(values: npt.ArrayLike, axis: int = 0) -> Array:
    """Interquartile mean: the mean of the middle half (Agarwal et al. 2021, arXiv:2108.13264)."""
    return stats.trim_mean(values, TRIM, axis=axis)


def iqm_error(values: Array) -> Array:
    """Standard error of an interquartile mean over the last axis, from winsorised values (Tukey, McLaughlin 1963)."""
    count = values.shape[-1]
    cut = int(TRIM * count)
    ordered = np.sort(values, axis=-1)
    winsorised = np.clip(ordered, ordered[..., cut, None], ordered[..., count - cut - 1, None])
    kept = count - 2 * cut
    return winsorised.std(axis=-1, ddof=1) * np.sqrt((count - 1) / (kept * (kept - 1)))


def resamples(count: int, generator: np.random.Generator, strata: npt.ArrayLike | None = None) -> npt.NDArray[np.int64]:
    """Indices of bootstrap samples `[R, n]`, with replacement; each from its own stratum, where there are strata `[n]`."""
    groups = np.zeros(count, dtype=np.int64) if strata is None else np.unique(np.asarray(strata), return_inverse=True)[1]
    index = np.empty((RESAMPLES, count), dtype=np.int64)
    for group in np.unique(groups):
        (members,) = np.nonzero(groups == group)
        index[:, members] = generator.choice(members, size=(RESAMPLES, len(members)))
    return index


def iqm_interval(
    values: npt.ArrayLike, generator: np.random.Generator, *, strata: npt.ArrayLike | None = None, confidence: float = 0.95
) -> Interval:
    """An interquartile mean with its bootstrap-t interval (Efron, Tibshirani 1993, ch. 12.5).

    [c - q_high * e, c - q_low * e], with the quantiles of (c* - c) / e* over resamples.

    Args:
        values: `[n]`, n at least 2; of pairs, their differences.
        strata: to which of several settings, such as tasks, each value belongs.
        confidence: share of repetitions whose interval holds the truth, in (0, 1).
    """
    sample = np.asarray(values, dtype=np.float64)
    draws = sample[resamples(len(sample), generator, strata)]
    return _bootstrap_t(float(iqm(sample)), float(iqm_error(sample)), iqm(draws, axis=-1), iqm_error(draws), confidence)


def _bootstrap_t(middle: float, spread: float, middles: Array, spreads: Array, confidence: float) -> Interval:
    if spread == 0:
        return Interval(middle, middle, middle)
    # A resample of one value only has no spread, and says that the quantile is far out.
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num((middles - middle) / spreads, nan=0.0, posinf=np.inf, neginf=-np.inf)
    low, high = np.quantile(ratio, [0.5 - confidence / 2, 0.5 + confidence / 2], method="closest_observation")
    return Interval(middle, middle - float(high) * spread, middle - float(low) * spread)


@dataclass(frozen=True, slots=True)
class SignFlip:
    """The paired permutation test of a mean difference, and the interval of all differences that it does not refuse."""

    p: float
    """Two-sided, of a mean difference of 0."""
    interval: Interval


def sign_flip(differences: npt.ArrayLike, generator: np.random.Generator, *, confidence: float = 0.95) -> SignFlip:
    """Flips the signs of the differences: if the arms do not differ, each difference was as likely to be its opposite.

    p = share of sign patterns s with |mean(s d)| >= |mean(d)|. All 2^n of them where they are few, else a random sample, to which
    the pattern that was seen is added (Phipson, Smyth 2010). A difference theta is refused where the test refuses d - theta, so
    p < 1 - confidence and an interval that excludes 0 are the same statement. Exact where differences are distributed evenly
    about theirs; at 10 to 20 blocks the intervals of heavy-tailed differences held the truth in 94 to 96 of 100, those of a
    bootstrap-t in 90 to 93 (`python -m esper.stats.calibration`).
    """
    values = np.asarray(differences, dtype=np.float64)
    count, middle = len(values), float(np.mean(values))
    exact = 2**count <= RESAMPLES + 1
    if exact:
        signs = 1.0 - 2.0 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
    else:
        signs = np.concatenate([np.ones((1, count)), generator.choice([-1.0, 1.0], size=(RESAMPLES, count))])
    rounding = 1e-12 * float(np.abs(values).max(initial=0.0))
    p = float(np.mean(np.abs((signs * values).mean(axis=1)) >= abs(middle) - rounding))
    # |mean(s (d - m)) - t mean(s)| >= |t|, solved for t: up to here a pattern speaks for a difference of m + t, and of m - t.
    shift, balance = (signs * (values - middle)).mean(axis=1), signs.mean(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        upper = np.fmax(shift / (1 + balance), -shift / (1 - balance))
        lower = np.fmax(shift / (1 - balance), -shift / (1 + balance))
    far = np.abs(balance) > 1 - 1e-9  # all signs alike speak for everything
    upper, lower = (np.where(far, np.inf, reach) for reach in (upper, lower))
    keep = int(np.floor((1 - confidence) * len(signs)))  # so many patterns at most may speak for what is refused
    bounds = [float(np.sort(reach)[::-1][keep]) for reach in (lower, upper)]
    return SignFlip(p, Interval(middle, middle - bounds[0], middle + bounds[1]))


def improvement(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """P(a run of the first arm has more than one of the second), ties half: Mann-Whitney's U / (n m) (Agarwal et al. 2021)."""
    first, second = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    return float(stats.mannwhitneyu(first, second, method="asymptotic").statistic / (len(first) * len(second)))


def improvement_interval(
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    generator: np.random.Generator,
    *,
    paired: bool = True,
    strata: npt.ArrayLike | None = None,
    confidence: float = 0.95,
) -> Interval:
    """P(improvement) with its percentile interval over resampled blocks, or over the runs of each arm where they share none.

    Args:
        strata: of each block, where they are paired; a run is compared with those of its own stratum, and each stratum counts
            alike, however many blocks it has.
    """
    first, second = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    groups = np.zeros(len(first), dtype=np.int64) if strata is None else np.unique(np.asarray(strata), return_inverse=True)[1]
    count = int(groups.max()) + 1
    mean, shares = 0.0, np.zeros(RESAMPLES)
    for group in range(count):
        (members,) = np.nonzero(groups == group)
        others = members if paired else np.arange(len(second))
        beats = (first[members, None] > second[others]) + 0.5 * (first[members, None] == second[others])
        one = _weights(len(members), generator)
        other = one if paired else _weights(len(others), generator)
        mean += float(beats.mean()) / count
        shares += (one @ beats * other).sum(axis=1) / count
    low, high = np.quantile(shares, [0.5 - confidence / 2, 0.5 + confidence / 2])
    return Interval(mean, float(low), float(high))


def _weights(count: int, generator: np.random.Generator) -> Array:
    """Bootstrap samples `[R, n]` as the share that each value has in them."""
    return generator.multinomial(count, np.full(count, 1 / count), size=RESAMPLES) / count


def equivalence(differences: npt.ArrayLike, margin: float) -> float:
    """p of two one-sided t tests that the mean difference lies within the margin (Schuirmann 1987)."""
    values = np.asarray(differences, dtype=np.float64)
    if values.std() == 0:
        return 0.0 if abs(values[0]) < margin else 1.0
    return float(DescrStatsW(values).ttost_mean(-margin, margin)[0])


def blocks_needed(spread: float, effect: float, *, power: float = 0.8, alpha: float = 0.05) -> int:
    """Blocks at which a paired t test finds a true difference of `effect` with this power; no fewer than a verdict takes.

    Args:
        spread: standard deviation of the differences.
        effect: what is to be found, in the same unit, above 0.
        alpha: below which p has to be; of one pair among m whose claims may be wrong together with a chance of 5 %, 0.05 / m.
    """
    least = max(LEAST_BLOCKS, math.floor(1 - math.log2(alpha)) + 1)  # with n blocks no sign-flip test has a p below 2 / 2^n
    if effect > 10 * spread:
        return least
    # As many as a normal test needs are too few by two or so. The solver of statsmodels loses its way where few are needed.
    ratio = effect / spread
    count = max(least, math.floor(((stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(power)) / ratio) ** 2))
    while t_power(ratio, count, alpha) < power:
        count += 1
    return count


def t_power(ratio: float, count: int, alpha: float = 0.05) -> float:
    """Chance that a two-sided t test of `count` differences finds a mean of `ratio` standard deviations."""
    critical, shift = stats.t.ppf(1 - alpha / 2, count - 1), ratio * math.sqrt(count)
    return float(stats.nct.sf(critical, count - 1, shift) + stats.nct.cdf(-critical, count - 1, shift))


def likely_spread(values: npt.ArrayLike) -> float:
    """What the standard deviation is below in three of five samples like this one: what few blocks show may be too small.

    s * sqrt((n - 1) / q), with q the 40 % quantile of chi squared with n - 1 degrees of freedom.
    """
    sample = np.asarray(values, dtype=np.float64)
    freedom = len(sample) - 1
    return float(sample.std(ddof=1) * np.sqrt(freedom / stats.chi2.ppf(0.4, freedom)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """What two arms differ by in one outcome: first less second."""

    first: str
    second: str
    paired: bool
    """Do they share blocks?"""
    count: int
    """Blocks that both have; where they share none, runs of the smaller arm."""
    mean: Interval
    iqm: Interval
    """Of the paired differences. Where there are no pairs: the difference of both interquartile means."""
    improvement: Interval
    """P(the outcome of a run of the first arm is higher than that of one of the second), ties half [1]."""
    p: float
    """Of the test that there is no difference: paired permutation, or Welch's t where there are no pairs."""
    p_rank: float
    """The same by ranks: Wilcoxon's signed ranks, or Mann-Whitney."""
    p_equivalence: float
    """Of the test that they differ by the margin or more."""
    spread: float
    """Standard deviation that the difference of two runs is likely to have; of the same block, where there are blocks."""


def paired_difference(
    names: tuple[str, str],
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    *,
    margin: float,
    generator: np.random.Generator,
    strata: npt.ArrayLike | None = None,
) -> Difference:
    """Two arms that share blocks.

    Args:
        names: of the arms.
        first: outcome of each block in the first arm `[n]`, n at least 2.
        second: of the same blocks in the second.
        margin: smallest difference that matters, in the unit of the outcome, above 0.
        generator: draws resamples.
        strata: to which setting, such as a task, each block belongs; None for one setting.
    """
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    assert one.shape == other.shape
    apart = one - other
    test = sign_flip(apart, generator)
    return Difference(
        first=names[0],
        second=names[1],
        paired=True,
        count=len(apart),
        mean=test.interval,
        iqm=iqm_interval(apart, generator, strata=strata),
        improvement=improvement_interval(one, other, generator, strata=strata),
        p=test.p,
        p_rank=_p(stats.wilcoxon(apart)) if apart.any() else 1.0,
        p_equivalence=equivalence(apart, margin),
        spread=likely_spread(apart),
    )


def unpaired_difference(
    names: tuple[str, str], first: npt.ArrayLike, second: npt.ArrayLike, *, margin: float, generator: np.random.Generator
) -> Difference:
    """Two arms that share no blocks, by Welch's t and Mann-Whitney's U; each is resampled by itself. See `paired_difference`."""
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    middle = float(one.mean() - other.mean())
    if one.std() == other.std() == 0:  # Welch's t is not defined there
        mean, p, p_equivalence = Interval(middle, middle, middle), float(middle == 0), float(abs(middle) >= margin)
    else:
        whole = stats.ttest_ind(one, other, equal_var=False)
        mean, p = Interval(middle, *map(float, whole.confidence_interval(0.95))), _p(whole)
        above = stats.ttest_ind(one + margin, other, equal_var=False, alternative="greater")
        below = stats.ttest_ind(one - margin, other, equal_var=False, alternative="less")
        p_equivalence = max(_p(above), _p(below))
    draws, others = (sample[resamples(len(sample), generator)] for sample in (one, other))
    iqm_apart = _bootstrap_t(
        float(iqm(one) - iqm(other)),
        float(np.hypot(iqm_error(one), iqm_error(other))),
        iqm(draws, axis=-1) - iqm(others, axis=-1),
        np.hypot(iqm_error(draws), iqm_error(others)),
        0.95,
    )
    return Difference(
        first=names[0],
        second=names[1],
        paired=False,
        count=min(len(one), len(other)),
        mean=mean,
        iqm=iqm_apart,
        improvement=improvement_interval(one, other, generator, paired=False),
        p=p,
        p_rank=_p(stats.mannwhitneyu(one, other)),
        p_equivalence=p_equivalence,
        spread=float(np.hypot(likely_spread(one), likely_spread(other))),
    )


def unknown_difference(names: tuple[str, str], count: int) -> Difference:
    """Two arms of which nothing can be said: they share fewer than two blocks, and have no two runs each."""
    nothing = Interval(*3 * [float("nan")])
    return Difference(
        first=names[0],
        second=names[1],
        paired=True,
        count=count,
        mean=nothing,
        iqm=nothing,
        improvement=nothing,
        p=1.0,
        p_rank=1.0,
        p_equivalence=1.0,
        spread=float("nan"),
    )


def _p(result: Any) -> float:
    """The p of what a test of scipy returns, which is untyped."""
    return float(result.pvalue)
