"""What a feature is: a quantity, and how it becomes a number that a network can use.

An extractor gives the quantity in its unit. What 1 stands for, the range, and what is shown where it was never measured are data,
and `Plan.seen` applies them to a whole table at once.
"""

# N hosts, S slots, K blueprints, F features of a table

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.lifecycle.stages import SlotState

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class HostView:
    """What is known of N hosts when they are observed."""

    step: int
    """Host epochs behind us."""
    num_steps: int
    accuracy_NH: FloatArray
    """Validation accuracy now and 1, 2, 3 epochs ago [pp]; NaN before it was measured."""
    loss_N: FloatArray
    """Validation loss [nats]."""
    chance_loss: float
    """Loss of a random guess [nats]."""
    state: SlotState
    potential_NSK: FloatArray
    """Growth potential of each blueprint, NaN where it is not known [nats per unit of learning rate]."""
    params_NS: npt.NDArray[np.int64]
    host_params: int
    max_seeds: int
    """Seeds a host may hold, the number of slots where there is no cap."""
    op_N: npt.NDArray[np.int64]
    """Operation carried out in the last step; WAIT at the start."""
    refused_N: npt.NDArray[np.bool_]
    """Was the last action refused?"""


class Yardstick(StrEnum):
    """What a quantity may be measured by where that differs from run to run: an attribute of `HostView`."""

    num_steps = "an episode"
    chance_loss = "a random guess, ln(number of classes)"
    host_params = "a host without seeds"
    max_seeds = "the seed cap, or without one the slots in use"


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """One number a host, or one a slot."""

    name: str
    meaning: str
    extract: Callable[[HostView], npt.NDArray[Any]]
    """The quantity in its unit, `[N]` or `[N, S]`; NaN where it was never measured."""
    unit: str = ""
    """Empty for a yes or no, which is 1 or 0."""
    one: float | Yardstick = 1.0
    """What is seen as 1, in that unit."""
    low: float = 0.0
    high: float = 1.0
    """What is seen is held within these."""
    unknown: float = 0.0
    """What is seen where the quantity was never measured, or is no number."""
    told_by: tuple[str, ...] = ()
    """Features of the same table that tell a quantity that was never measured from one that is `unknown`; empty where it always
    is measured."""


class Plan:
    """A table as arrays, so that scales, clamps and unknowns are applied to all features at once."""

    def __init__(self, features: Sequence[Feature]) -> None:
        self.features = tuple(features)
        self.low_F, self.high_F, self.unknown_F = (
            np.array([getattr(feature, key) for feature in features], np.float32) for key in ("low", "high", "unknown")
        )
        one = [(rank, feature.one) for rank, feature in enumerate(features)]
        self.fixed_F = np.array([1.0 if isinstance(value, Yardstick) else value for _, value in one], np.float32)
        self.by_yardstick = [(rank, value.name) for rank, value in one if isinstance(value, Yardstick)]

    def seen(self, view: HostView) -> FloatArray:
        """`[N, F]` or `[N, S, F]`: finite and within the ranges of the table, whatever the view holds."""
        one_F = self.fixed_F.copy()
        for rank, name in self.by_yardstick:
            one_F[rank] = getattr(view, name)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):  # sick hosts hold anything
            seen = np.stack([one.extract(view) for one in self.features], axis=-1, dtype=np.float32, casting="unsafe")
            seen /= one_F
        np.copyto(seen, self.unknown_F, where=np.isnan(seen))
        return np.clip(seen, self.low_F, self.high_F, out=seen)
