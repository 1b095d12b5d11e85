"""The paired permutation test of a mean, and the interval that inverts it."""

# n differences

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from esper.stats.intervals import Interval

Float64Array = npt.NDArray[np.float64]
ENUMERATED = 13
"""Largest number of differences for which all sign patterns are enumerated."""
CELLS = 2**15
"""Cells into which the sum that a pattern must not exceed is divided where there are more."""
HALVINGS = 30
"""Steps of the search for an end of an interval: its error is below the range of the differences by this power of 2."""


@dataclass(frozen=True, slots=True)
class SignFlip:
    """Result of the paired permutation test, and the interval of all differences that the test does not reject."""

    p: float
    """Two-sided p value of a mean difference of 0."""
    interval: Interval


def sign_flip(differences: npt.ArrayLike, *, confidence: float = 0.95) -> SignFlip:
    """Test the mean of paired differences by flipping their signs, and invert the test to get an interval.

    The interval holds every theta for which the test does not reject d - theta, so p <= 1 - confidence if and only if it excludes
    0; `scipy.stats.permutation_test` has no such interval. It is exact for differences that are symmetric about theta. With heavy
    tails and 10 to 20 blocks it covers the truth in 94 to 96 % of experiments, where a bootstrap-t interval reaches 90 to 93 %
    (`experiments/2026-11-21_calibration`).

    Args:
        differences: `[n]`, n at least 1.
        confidence: coverage of the interval. Its ends are infinite if n is so small that no p value is below 1 - confidence.
    """
    values = np.asarray(differences, dtype=np.float64)
    level = 1 - confidence + 1e-12
    if 2.0 ** (1 - len(values)) > level:
        low, high = -math.inf, math.inf
    else:
        low, high = (_end(values, float(far), level) for far in (values.min(), values.max()))
    return SignFlip(p_value(values), Interval(float(values.mean()), low, high))


def _end(values: Float64Array, far: float, level: float) -> float:
    """Return the end of the interval on the side of `far`, the least or greatest value, by bisection between it and the mean."""
    if p_value(values - far) > level:
        return far
    held, rejected, theta = float(values.mean()), far, 0.0  # 0 first: p and the interval then agree on it
    if not min(held, rejected) < 0 < max(held, rejected):
        theta = (held + rejected) / 2
    for _ in range(HALVINGS):
        held, rejected = (theta, rejected) if p_value(values - theta) > level else (held, theta)
        theta = (held + rejected) / 2
    return held


def p_value(differences: npt.ArrayLike) -> float:
    """Return the two-sided p value of a mean of 0 `[n]`: the share of all 2^n sign patterns s with |sum(s d)| >= |sum(d)|.

    A pattern reaches |sum(d)| if the smaller of its two totals, of positive and of negative terms, is at most that of the data.
    So p counts subsets of the absolute differences by their sum: by enumeration if there are few, else by dynamic programming
    over `CELLS` sums (Pagano, Tritchler 1983). Rounding down makes p too large by about 1 %, never too small. Sums are shares
    of the reached one, since in shares of all, one large difference would round the small ones to 0.

    Raises:
        ValueError: a difference is not finite.
    """
    values = np.asarray(differences, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError("a test of differences needs finite ones")
    size = np.abs(values)
    whole = float(size.sum())
    against = (whole - abs(float(values.sum()))) / 2
    reach = against + 1e-12 * whole
    if reach >= whole / 2:
        return 1.0
    if len(size) <= ENUMERATED:
        sums = np.zeros(1)
        for one in size:
            sums = np.concatenate([sums, sums + one])
        return 2 * float(np.mean(sums <= reach))
    share = np.zeros(CELLS + 1)  # of the patterns, by the sum of what they turn, up to what the data has
    share[0] = 1.0
    for step in np.minimum(size / reach * CELLS, CELLS + 1).astype(int):
        turned = share[: max(0, len(share) - step)] / 2
        share /= 2
        share[len(share) - len(turned) :] += turned
    return min(1.0, 2 * float(share.sum()))
