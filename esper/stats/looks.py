"""Group-sequential looks: levels and p values that hold although a growing experiment is compared several times.

The one-sided error spent up to a share t of the planned blocks is 2 - 2 Phi(z(1 - alpha / 2) / sqrt(t)), which comes close to the
boundaries of O'Brien and Fleming (Lan, DeMets 1983). A two-sided test spends half of its level on each side.
"""

# K looks, N nodes of an integral

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

LOWEST = -12.0
"""Standardised sum below which a path is ignored: its probability is 1e-33."""
GRID = np.linspace(-6.4, 2.1, 60)
"""Normal quantiles of the overall levels between which repeated p values are interpolated."""


@lru_cache(maxsize=256)
def levels(looks: tuple[int, ...], alpha: float) -> tuple[float, ...]:
    """Return the nominal one-sided level of every look, at an overall one-sided level of `alpha`.

    The sum of the first blocks is a Brownian motion at the times t = looks / looks[-1]. Its density below all boundaries so far
    is integrated from look to look (Armitage, McPherson, Rowe 1969).

    Args:
        looks: increasing numbers of blocks, each above 0; the last one is the planned size of the experiment.
        alpha: probability that any look rejects a true null hypothesis, in (0, 1).
    """
    if len(looks) == 1:
        return (alpha,)
    times = np.asarray(looks) / looks[-1]
    spent = 2 * ndtr(ndtri(alpha / 2) / np.sqrt(times))
    steps = np.sqrt(np.diff(times, prepend=0.0))
    points, weights = nodes(int(max(100, 40 / steps.min())))
    sums, mass = np.zeros(1), np.ones(1)  # where the paths below all boundaries are, and their probabilities
    nominal: list[float] = []
    for time, step, due in zip(times, steps, np.diff(spent, prepend=0.0), strict=True):
        bound = _boundary(sums, mass, step, due)
        nominal.append(float(ndtr(-bound / np.sqrt(time))))
        low = LOWEST * np.sqrt(time)
        reached = low + (bound - low) * points
        density = np.exp(-(((reached[:, None] - sums) / step) ** 2) / 2) / (step * np.sqrt(2 * np.pi))
        sums, mass = reached, (bound - low) * weights * (density @ mass)
    return tuple(nominal)


def _boundary(sums: npt.NDArray[np.float64], mass: npt.NDArray[np.float64], step: float, due: float) -> float:
    """Return the boundary that paths with these sums cross in the next step with probability `due`."""

    def excess(bound: float) -> float:
        return float(mass @ ndtr((sums - bound) / step)) - due

    root: Any = brentq(excess, LOWEST, 40.0, xtol=1e-10)
    return float(root)


@lru_cache
def nodes(count: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return Gauss-Legendre nodes and weights on [0, 1]."""
    points, weights = np.polynomial.legendre.leggauss(count)
    return (points + 1) / 2, weights / 2


@lru_cache
def _overall(looks: tuple[int, ...], index: int) -> PchipInterpolator:
    """Return the map from the nominal level of a look to the overall level, both as normal quantiles."""
    nominal = ndtri([levels(looks, float(alpha))[index] for alpha in ndtr(GRID)])
    representable = np.isfinite(nominal)  # an early look has levels that round to zero
    return PchipInterpolator(nominal[representable], GRID[representable], extrapolate=False)


def repeated_p(p: float, looks: Sequence[int], index: int) -> float:
    """Return the smallest overall one-sided level at which this look rejects (Jennison, Turnbull 1999, section 9.2).

    Args:
        p: one-sided p value of the look alone, in [0, 1].
        looks: planned numbers of blocks.
        index: position of the look in `looks`.
    """
    if len(looks) == 1:
        return p
    overall = _overall(tuple(looks), index)
    quantile = ndtri(p)
    if quantile >= overall.x[-1]:
        return 1.0
    return float(ndtr(overall(max(quantile, overall.x[0]))))
