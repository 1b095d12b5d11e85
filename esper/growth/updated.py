"""Which members and seeds of a network learn from a batch."""

# M members, L members that learn

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from esper.growth.active import ActiveSeeds
from esper.seeds.bank import SeedBank


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdatedSeeds:
    """How an optimiser step updates the seeds of one slot."""

    slot: int
    banks: tuple[tuple[SeedBank, Tensor], ...]
    """Banks, each with the members that learn in it."""
    learns_M1: Tensor
    """All of these members, bool `[M, 1]`; other rows do not change."""
    fossil_M1: Tensor | None
    """The fossils among them, bool `[M, 1]`; None where there are none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdatedMembers:
    """The members of a frozen fleet in which a seed learns: only they need gradients."""

    hosts_L: Tensor
    """Members in the pass; a single one of several is computed twice, as in `SeedBank.delta` and for the same reason."""
    members_L: Tensor
    """The members, each once."""
    learns_M: npt.NDArray[np.bool_]
    """True for these members, bool `[M]`."""
    active_S: tuple[ActiveSeeds | None, ...]
    """Their active seeds in each slot."""


def at_least_two(members: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the members, a single one twice; see `UpdatedMembers.hosts_L`."""
    return np.repeat(members, 2) if len(members) == 1 else members
