"""What each seed does in the next host epoch: how the lifecycle's arrays reach the network."""

# N hosts (or M members of a shard), S slots

from dataclasses import dataclass, fields
from enum import IntEnum, StrEnum

import numpy as np
import numpy.typing as npt


class Blend(IntEnum):
    """How a seed's delta enters the host's features."""

    ADD = 0
    """y = h + alpha * delta"""
    MULTIPLY = 1
    """y = h * (1 + alpha * tanh(delta))"""
    GATE = 2
    """y = h + alpha * g(x) * delta with a learnt gate g a sample"""


class Incubation(StrEnum):
    """How a seed learns while it is not yet in the host's output."""

    straight_through = "straight_through"
    """Behind the host, with the gradient that its output would get if it were fully in."""
    closed_loop = "closed_loop"
    """Behind the host, on a shadow pass of the rest of the network in which its effect is in and only the seed learns."""
    none = "none"
    """Not at all: it is in at once, which changes nothing at first, since a seed is born as the identity."""


class Fossils(StrEnum):
    """What a seed that was kept does from then on."""

    frozen = "frozen"
    """Its parameters stay as they were."""
    learning = "learning"
    """It goes on learning with the host."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Roles:
    """The part of every seed, each an array `[N, S]`."""

    blueprint: npt.NDArray[np.int64]
    """Index of the blueprint where a seed takes part, -1 elsewhere."""
    blend: npt.NDArray[np.int64]
    """A `Blend`."""
    alpha: npt.NDArray[np.float32]
    """Blend weight."""
    behind: npt.NDArray[np.bool_]
    """Trains behind the host: its alpha is 0, and it learns nevertheless."""
    open: npt.NDArray[np.bool_]
    """May its gradient reach the host?"""
    learns: npt.NDArray[np.bool_]
    """Does the optimiser move its parameters?"""
    fossil: npt.NDArray[np.bool_]
    """Is it the host's own for good?"""

    def of(self, rows: slice) -> "Roles":
        """Those of some hosts."""
        return Roles(**{entry.name: getattr(self, entry.name)[rows] for entry in fields(self)})


def no_seeds(num_hosts: int, num_slots: int) -> Roles:
    """The roles where no seed takes part."""
    shape = (num_hosts, num_slots)
    no = np.zeros(shape, dtype=np.bool_)
    return Roles(
        blueprint=np.full(shape, -1, dtype=np.int64),
        blend=np.zeros(shape, dtype=np.int64),
        alpha=np.zeros(shape, dtype=np.float32),
        behind=no,
        open=no,
        learns=no,
        fossil=no,
    )
