"""The seeds of one slot that take part in one pass: which banks, which rows, and how each is blended in."""

# M members, L live members

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.fusion.layout import join_members, split_members, take_members
from esper.growth.blend import blend, isolate
from esper.lifecycle.roles import Blend, Roles
from esper.seeds.bank import SeedBank

BoolArray = npt.NDArray[np.bool_]
FindBank = Callable[[int, bool], SeedBank]
"""The bank of a blueprint in the slot at hand, with gates or without."""


class Group(NamedTuple):
    """Seeds of one bank."""

    bank: SeedBank
    rows_L: Tensor
    """Its rows, in the order of the features."""
    taught_L1: Tensor | None
    """bool `[L, 1]`: seeds whose parameters get a gradient; None for all."""
    learns: bool
    """Does any of them get one?"""

    def delta(self, part: Tensor) -> Tensor:
        """See `SeedBank.delta`."""
        return self.bank.delta(self.rows_L, part, self.taught_L1, learns=self.learns)


@dataclass(frozen=True, kw_only=True, slots=True)
class ActiveSeeds:
    """The seeds of one slot that take part in a pass, bank by bank."""

    groups: tuple[Group, ...]
    live_L: Tensor
    """Where the members of all groups, one group after another, lie in the features `[L]`."""
    alpha_L: Tensor
    """Blend weight of each."""
    pull_L: Tensor
    """Weight of each seed's gradient: alpha, or 1 while it trains behind the host."""
    times_L: Tensor | None
    """Which multiply; None where none does."""
    open_L: Tensor | None
    """May each seed's gradient reach the features? None where all may."""

    def delta(self, part: Tensor) -> Tensor:
        """What the seeds make of the features of the live members."""
        pieces = split_members(part, [len(group.rows_L) for group in self.groups])
        return join_members([group.delta(piece) for group, piece in zip(self.groups, pieces, strict=True)])

    def blended(self, x: Tensor, members: int) -> Tensor:
        """The output of the slot for its input, features of so many members."""
        part = take_members(x, self.live_L, members)
        delta = self.delta(part if self.open_L is None else isolate(part, self.open_L))
        return blend(x, delta, self.alpha_L, self.pull_L, self.live_L, members, self.times_L)

    def varied(self, h: Tensor, delta: Tensor, alpha_L: Tensor, members: int) -> Tensor:
        """The same with other blend weights, from what the seeds make of the features; for forwards without gradient."""
        return blend(h, delta, alpha_L, alpha_L, self.live_L, members, self.times_L)


def in_banks(roles: Roles, slot: int, where_M: BoolArray) -> list[tuple[int, bool, npt.NDArray[np.int64]]]:
    """The seeds of a slot in the marked members by bank: the blueprint, whether there are gates, and the members."""
    kind_M = np.where(where_M, 2 * roles.blueprint[:, slot] + (roles.blend[:, slot] == Blend.GATE), -1)
    return [(int(kind) // 2, bool(kind % 2), np.flatnonzero(kind_M == kind)) for kind in np.unique(kind_M) if kind >= 0]


def live_seeds(
    find: FindBank,
    roles: Roles,
    slot: int,
    where_M: BoolArray,
    *,
    alpha_M: npt.NDArray[np.float32],
    pull_M: npt.NDArray[np.float32],
    learns_M: BoolArray,
    open_M: BoolArray | None = None,
    taught_M: BoolArray | None = None,
    place_M: npt.NDArray[np.int64] | None = None,
    device: torch.device,
) -> ActiveSeeds | None:
    """The seeds of a slot in the marked members; None where there are none.

    Args:
        find: gives the banks of this slot.
        roles: of all members.
        slot: the slot.
        where_M: members whose seed takes part.
        alpha_M: blend weights.
        pull_M: weights of the seeds' gradients.
        learns_M: seeds that learn from this pass; a bank where none does is spared its parameters' gradient.
        open_M: seeds whose gradient may reach the features; None for all.
        taught_M: seeds whose parameters get a gradient; None for all of a bank in which any learns.
        place_M: where each member lies in the features; None for its own place.
        device: of the tensors.
    """
    banks = in_banks(roles, slot, where_M)
    if not banks:
        return None

    def tensor(array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    groups: list[Group] = []
    for blueprint, gated, rows in banks:
        taught = None if taught_M is None or taught_M[rows].all() else tensor(taught_M[rows, None])
        groups.append(Group(find(blueprint, gated), tensor(rows), taught, bool(learns_M[rows].any())))
    live = np.concatenate([rows for _, _, rows in banks])
    times = roles.blend[live, slot] == Blend.MULTIPLY
    return ActiveSeeds(
        groups=tuple(groups),
        live_L=tensor(live if place_M is None else place_M[live]),
        alpha_L=tensor(alpha_M[live]),
        pull_L=tensor(pull_M[live]),
        times_L=tensor(times) if times.any() else None,
        open_L=None if open_M is None or open_M[live].all() else tensor(open_M[live]),
    )
