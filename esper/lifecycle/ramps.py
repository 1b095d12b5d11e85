"""Ramps of alpha over whole host epochs, along five curves.

With t = done / total, the completed share of the ramp, and k the steepness of a sigmoid,

    alpha(t) = start + (target - start) * f(t)

    linear             f(t) = t
    cosine             f(t) = (1 - cos(pi t)) / 2
    sigmoid_*(k)       f(t) = (S(k (t - 1/2)) - S(-k/2)) / (S(k/2) - S(-k/2)),    S(x) = 1 / (1 + exp(-x))
                            = 1/2 + tanh(k (t - 1/2) / 2) / (2 tanh(k / 4)),      the computed form, which cannot overflow

Every curve increases strictly from exactly 0 to exactly 1, and f(t) + f(1 - t) = 1.
"""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from esper.lifecycle.stages import FloatArray, IntArray


class Curve(IntEnum):
    """Shape of a ramp."""

    LINEAR = 0
    COSINE = 1
    SIGMOID_GENTLE = 2
    SIGMOID = 3
    SIGMOID_SHARP = 4


STEEPNESS = {Curve.SIGMOID_GENTLE: 6.0, Curve.SIGMOID: 12.0, Curve.SIGMOID_SHARP: 24.0}
"""Steepness k of each sigmoid."""


def progress(share: npt.NDArray[np.float64], curve: Curve) -> npt.NDArray[np.float64]:
    """Return f(t) of one curve, elementwise for t in [0, 1]; see the module docstring."""
    if curve == Curve.LINEAR:
        return share
    if curve == Curve.COSINE:
        return (1.0 - np.cos(np.pi * share)) / 2.0
    k = STEEPNESS[curve]
    return 0.5 + np.tanh(k * (share - 0.5) / 2.0) / (2.0 * np.tanh(k / 4.0))


def ramp(start: FloatArray, target: FloatArray, done: IntArray, total: IntArray, curve: IntArray) -> FloatArray:
    """Return alpha after `done` of `total` ticks, elementwise over arrays of one shape.

    Alpha is monotone and stays between start and target. It is exactly `start` before the first tick and exactly `target` after
    the last. A ramp of 0 ticks is at its target.

    Args:
        curve: `Curve` of each ramp.
    """
    share = np.minimum(done, total) / np.maximum(total, 1)
    moved = share
    for kind in Curve:
        if kind != Curve.LINEAR and (here := curve == kind).any():
            moved = np.where(here, progress(share, kind), moved)
    value = np.clip(start + (target - start) * moved, np.minimum(start, target), np.maximum(start, target))
    return np.where(done >= total, target, value).astype(np.float32)
