"""Scores of a network, and what a seed adds to them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.lifecycle.stages import SlotState

Score = Callable[[], float | Tensor | npt.NDArray[Any]]
"""Function that returns a score, higher is better: a number, or a tensor or an array with one value per sample."""


class Contribution(NamedTuple):
    """Score of a network minus its score without one seed."""

    value: float
    error: float | None
    """Standard error, from paired differences by sample; None if the score is one number."""


def measure(score: Score) -> float | Tensor:
    """Return a score, whose array becomes a tensor.

    Raises:
        ValueError: it is neither a number nor an array of them.
    """
    if not callable(score):
        raise ValueError(f"score must be a function, such as lambda: accuracy(net), got {score!r}")
    found: object = score()
    if isinstance(found, np.ndarray | Tensor) and found.ndim > 1 and found.shape[0] != math.prod(found.shape):
        raise ValueError(f"score() must return one value per sample, got shape {tuple(found.shape)}: average over the other axes")
    if isinstance(found, np.ndarray | np.generic) and found.dtype.kind in "biuf":
        return torch.tensor(np.asarray(found, np.float64)) if found.ndim else float(found)
    if isinstance(found, Tensor) and not found.is_complex():
        return found.detach().clone()  # score() may reuse its memory
    if isinstance(found, Real):
        return float(found)
    raise ValueError(f"score() must return a number, or a tensor or array with one value per sample, got {found!r}"[:200])


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


def measured(state: SlotState, names: Sequence[str], found: Mapping[str, Contribution], accuracy: float) -> SlotState:
    """Return a state with contributions and their errors.

    Args:
        names: names of the slots.
        found: contributions by slot.
        accuracy: score of the whole network.
    """
    value_S, error_S = np.zeros((2, len(names)), dtype=np.float32)
    for index, name in enumerate(names):
        if name in found:
            value_S[index], error_S[index] = found[name].value, found[name].error or 0.0
    active_S = np.array([name in found for name in names])
    return replace(
        state,
        accuracy=np.full_like(state.accuracy, accuracy),
        contribution=np.where(active_S, value_S, state.contribution),
        contribution_error=np.where(active_S, error_S, state.contribution_error),
        measured=state.measured | active_S,
    )


def check_scores(score: float | Tensor, found: Mapping[str, Contribution], z: float) -> None:
    """Check a measurement.

    Args:
        score: score of the whole network.
        found: contributions by slot.
        z: standard errors by which a gate lowers a contribution.

    Raises:
        ValueError: a value is not finite, or the gate needs standard errors and there are none.
    """
    if not np.isfinite([mean_score(score), *(one.value for one in found.values())]).all():
        raise ValueError("score() returned NaN or infinity, so nothing was recorded: return finite values only")
    if z and any(one.error is None for one in found.values()):
        raise ValueError("gates.contribution_z needs standard errors: let score() return one value per sample")
