"""The role of each seed in the next host epoch: how the lifecycle reaches the network."""

# N hosts (or M members of a shard), S slots

from dataclasses import dataclass, fields
from enum import IntEnum, StrEnum

import numpy as np
import numpy.typing as npt


class Blend(IntEnum):
    """Operation that adds a seed's delta to the host's features."""

    ADD = 0
    """y = h + alpha * delta"""
    MULTIPLY = 1
    """y = h * (1 + alpha * tanh(delta))"""
    GATE = 2
    """y = h + alpha * g(h) * delta, with a learned gate g per sample"""


class Incubation(StrEnum):
    """Training of a seed before it is blended into the host's output."""

    straight_through = "straight_through"
    """Behind the host, with the gradient that its output would get at alpha 1."""
    closed_loop = "closed_loop"
    """Behind the host, in a second pass through the rest of the network that includes the seed's effect; only the seed learns."""
    none = "none"
    """No incubation: active at once, with no effect at first, since a seed outputs zero at birth."""


class Fossils(StrEnum):
    """Training of fossils."""

    frozen = "frozen"
    """Their parameters stay constant."""
    learning = "learning"
    """They learn with the host."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Roles:
    """The role of every seed, each an array `[N, S]`."""

    blueprint: npt.NDArray[np.int64]
    """Index of the blueprint where a seed is active, -1 elsewhere."""
    blend: npt.NDArray[np.int64]
    """`Blend` of each seed."""
    alpha: npt.NDArray[np.float32]
    """Blend weight, in [0, 1]."""
    behind: npt.NDArray[np.bool_]
    """Seeds that train behind the host, at alpha 0."""
    open: npt.NDArray[np.bool_]
    """Seeds whose gradient reaches the host."""
    learns: npt.NDArray[np.bool_]
    """Seeds that the optimiser updates."""
    fossil: npt.NDArray[np.bool_]
    """Fossils."""

    def of(self, rows: slice) -> "Roles":
        """Return the roles of some of the hosts, in arrays of their own."""
        return Roles(**{entry.name: getattr(self, entry.name)[rows].copy() for entry in fields(self)})

    def equals(self, other: "Roles") -> bool:
        """Return whether all roles are the same."""
        return all(np.array_equal(getattr(self, entry.name), getattr(other, entry.name)) for entry in fields(self))
