"""Means with confidence intervals."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its confidence interval."""

    mean: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    @property
    def signed(self) -> str:
        """The estimate with its sign, as in "+13.9 ± 2.6"; see `with_sign`."""
        return f"{with_sign(self.mean)} ± {self.half_width:.1f}"

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.half_width:.1f}" if np.isfinite(self.mean) else "-"


UNKNOWN = Interval(float("nan"), float("nan"), float("nan"))
"""Interval of a quantity that was not measured."""


def with_sign(value: float) -> str:
    """Return a difference with its sign; one that rounds to zero has none."""
    text = f"{value:+.1f}"
    return "0.0" if text in ("-0.0", "+0.0") else text


def mean_interval(sample: npt.ArrayLike, *, choices: int = 1) -> Interval:
    """Return the mean of independent values with Student's 95 % t interval; unbounded for a single value.

    Args:
        sample: finite values `[n]`, n at least 1; the differences, for paired values.
        choices: number of samples from which this one was chosen by its values; the interval is wider the more there were
            (Bonferroni), so that it covers whichever was chosen.

    Raises:
        ValueError: there are no values, or one is not finite.
    """
    values = np.asarray(sample, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0 or not np.isfinite(values).all():
        raise ValueError("an interval needs at least one value, and finite ones")
    mean = float(values.mean())
    if len(values) == 1:
        return Interval(mean, -np.inf, np.inf)
    half = float(stats.t.ppf(1 - 0.025 / choices, len(values) - 1) * stats.sem(values))
    return Interval(mean, mean - half, mean + half)
