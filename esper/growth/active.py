"""The active seeds of one slot in one pass: their banks, rows and blend weights."""

# M members, L members with an active seed

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from esper.fusion.batch_last import fits_kernels
from esper.fusion.device import on_device
from esper.fusion.layout import join_members, split_members, take_members
from esper.growth.blend import blend, isolate
from esper.growth.slot_rows import SlotRows, blend_rows, fork_rows
from esper.lifecycle.roles import Blend, Roles
from esper.lifecycle.stages import BoolArray, IntArray
from esper.seeds.bank import SeedBank

FindBank = Callable[[int, bool], SeedBank]
"""Function from a blueprint index, and whether seeds have gates, to the bank in one slot."""


class Group(NamedTuple):
    """Seeds of one bank."""

    bank: SeedBank
    rows_L: Tensor
    """Rows of the bank, in the order of the features."""
    rows: IntArray
    """The same on the CPU."""
    learns_L1: Tensor | None
    """Seeds whose parameters get a gradient, bool `[L, 1]`; None for all."""
    learns: bool
    """True if any seed gets a gradient."""

    def delta(self, part: Tensor) -> Tensor:
        """See `SeedBank.delta`."""
        return self.bank.delta(self.rows_L, part, self.learns_L1, learns=self.learns)


@dataclass(frozen=True, kw_only=True, slots=True)
class ActiveSeeds:
    """The seeds of one slot that take part in a pass, bank by bank."""

    groups: tuple[Group, ...]
    active_L: Tensor
    """Positions of the groups' members in the features, group by group `[L]`."""
    alpha_L: Tensor
    """Blend weight of each seed, in [0, 1]."""
    grad_scale_L: Tensor
    """Weight of each seed's gradient: alpha, or 1 while it trains behind the host."""
    multiplies_L: Tensor | None
    """Seeds that blend by multiplication, bool `[L]`; None for none."""
    open_L: Tensor | None
    """Seeds whose gradient reaches the features, bool `[L]`; None for all."""
    active: IntArray
    """`active_L` on the CPU, for what need not wait for a GPU."""
    behind: BoolArray
    """Seeds that train behind the host, at blend weight 0 `[L]`."""
    multiplies: BoolArray
    """Seeds that blend by multiplication `[L]`."""
    _rows: dict[int, SlotRows] = field(default_factory=dict)
    """The slot for Esper's own kernels, by the number of members in the features."""

    def delta(self, part: Tensor) -> Tensor:
        """Return the deltas of the seeds for the features of these members."""
        pieces = split_members(part, [len(group.rows_L) for group in self.groups])
        return join_members([group.delta(piece) for group, piece in zip(self.groups, pieces, strict=True)])

    def blended(self, x: Tensor, members: int) -> Tensor:
        """Return the output of the slot for its input, the features of `members` members."""
        if self.multiplies_L is None and fits_kernels(x):
            return self._blended_rows(x, members)
        part = take_members(x, self.active_L, members)
        delta = self.delta(part if self.open_L is None else isolate(part, self.open_L))
        return blend(x, delta, self.alpha_L, self.grad_scale_L, self.active_L, members, self.multiplies_L)

    def _blended_rows(self, x: Tensor, members: int) -> Tensor:
        """Return what `blended` returns, bit for bit, for images that Esper's own kernels compute."""
        if members not in self._rows:
            sizes = [len(group.rows_L) for group in self.groups]
            self._rows[members] = SlotRows.of(members, sizes, self.active_L, self.alpha_L, self.grad_scale_L, self.open_L)
        rows = self._rows[members]
        x, *pieces = fork_rows(x, rows)
        deltas = [group.delta(piece) for group, piece in zip(self.groups, pieces, strict=True)]
        return blend_rows(x, deltas, rows)

    def varied(self, h: Tensor, delta: Tensor, alpha_L: Tensor, members: int) -> Tensor:
        """Return the output of the slot for given deltas and other blend weights, for forwards without gradient."""
        return blend(h, delta, alpha_L, alpha_L, self.active_L, members, self.multiplies_L)


def in_banks(roles: Roles, slot: int, where_M: BoolArray) -> list[tuple[int, bool, IntArray]]:
    """Return the seeds of a slot in the marked members, by bank: blueprint, whether gated, and members."""
    kind_M = np.where(where_M, 2 * roles.blueprint[:, slot] + (roles.blend[:, slot] == Blend.GATE), -1)
    return [(int(kind) // 2, bool(kind % 2), np.flatnonzero(kind_M == kind)) for kind in np.unique(kind_M) if kind >= 0]


def active_seeds(
    find: FindBank,
    roles: Roles,
    slot: int,
    where_M: BoolArray,
    device: torch.device,
    place_M: IntArray | None = None,
) -> ActiveSeeds | None:
    """Return the active seeds of a slot in the marked members; None if there are none.

    Args:
        find: returns the banks of this slot.
        roles: roles of all members.
        slot: the slot.
        where_M: members whose seed is active.
        device: device of the tensors.
        place_M: index of each member in the features; None for the member's own.
    """
    banks = in_banks(roles, slot, where_M)
    if not banks:
        return None

    groups: list[Group] = []
    for blueprint, gated, rows in banks:
        learns = roles.learns[rows, slot]
        learns_L1 = None if learns.all() else on_device(learns[:, None], device)
        groups.append(Group(find(blueprint, gated), on_device(rows, device), rows, learns_L1, bool(learns.any())))
    live = np.concatenate([rows for _, _, rows in banks])
    active = live if place_M is None else place_M[live]
    alpha, opens = roles.alpha[live, slot], roles.open[live, slot]
    times = roles.blend[live, slot] == Blend.MULTIPLY
    return ActiveSeeds(
        groups=tuple(groups),
        active_L=on_device(active, device),
        alpha_L=on_device(alpha, device),
        grad_scale_L=on_device(np.where(roles.behind[live, slot], np.float32(1.0), alpha), device),
        multiplies_L=on_device(times, device) if times.any() else None,
        open_L=None if opens.all() else on_device(opens, device),
        active=active,
        behind=roles.behind[live, slot],
        multiplies=times,
    )
