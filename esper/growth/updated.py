"""Which members and seeds of a network learn from a batch."""

# M members, L members that learn

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.fusion.device import on_device
from esper.growth.active import ActiveSeeds
from esper.seeds.bank import SeedBank


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdatedSeeds:
    """How an optimiser step updates the seeds of one slot."""

    slot: int
    banks: tuple[tuple[SeedBank, Tensor, Tensor], ...]
    """Banks, each with the members that learn in it, and with these as bool `[M, 1]`: its other rows do not change."""
    fossil_M1: Tensor | None
    """The fossils that learn, bool `[M, 1]`; None where there are none."""


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


def on_device_and_marked(members: npt.NDArray[np.int64], count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the chosen of `count` members on a device, and which these are, bool `[M, 1]`."""
    return on_device(members, device), on_device(np.isin(np.arange(count), members)[:, None], device)


def at_least_two(members: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the members, a single one twice; see `UpdatedMembers.hosts_L`."""
    return np.repeat(members, 2) if len(members) == 1 else members
