"""Means and their intervals."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, and an interval that would hold the true one in the stated share of repetitions."""

    mean: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.half_width:.1f}"


def mean_interval(sample: npt.ArrayLike, confidence: float = 0.95) -> Interval:
    """Mean of independent values with Student's interval, mean ± t * s / sqrt(n).

    For paired values pass their differences. Of a single value the interval is unbounded.

    Args:
        sample: values `[n]`, finite, n at least 1.
        confidence: share of repetitions whose interval holds the true mean, in (0, 1).

    Raises:
        ValueError: there are no values, or one is not finite.
    """
    values = np.asarray(sample, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0 or not np.isfinite(values).all():
        raise ValueError("an interval needs at least one value, and finite ones")
    mean = float(values.mean())
    if len(values) == 1:
        return Interval(mean, -np.inf, np.inf)
    half = float(stats.t.ppf(0.5 + confidence / 2, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return Interval(mean, mean - half, mean + half)
