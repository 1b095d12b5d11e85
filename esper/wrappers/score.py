"""Scores of a network, and what a seed adds to them."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

Score = Callable[[], float | Tensor]
"""Function that returns a score, higher is better: a number, or a tensor with one value per sample."""


class Contribution(NamedTuple):
    """Score of a network minus its score without one seed."""

    value: float
    error: float | None
    """Standard error, from paired differences by sample; None if the score is one number."""


def mean_score(score: float | Tensor) -> float:
    """Return the score as a number."""
    return float(score.float().mean()) if isinstance(score, Tensor) else float(score)


def difference(score: float | Tensor, other: float | Tensor) -> Contribution:
    """Return the difference of two scores on the same samples.

    Raises:
        ValueError: they have different numbers of samples.
    """
    if not isinstance(score, Tensor) or not isinstance(other, Tensor) or score.numel() < 2:
        return Contribution(mean_score(score) - mean_score(other), None)
    if score.shape != other.shape:
        raise ValueError(f"score() gave {score.numel()} values, then {other.numel()}: score the same validation data each time")
    pairs = (score.double() - other.double()).flatten()
    return Contribution(float(pairs.mean()), float(pairs.std() / len(pairs) ** 0.5))
