"""One batch under many settings of the alphas, without computing anything twice.

A path is a member together with the settings of its seeds so far: one per member at the input, and a fork where the settings of a
member differ. Paths are laid out in the features like members, so hosts and seeds compute both alike. Each host has only
the paths that its own settings need.

    settings of one host       on on, off on, on off
    input, segment 0           1 path, and its seed in slot 0 is computed once
    segment 1                  2 paths: with slot 0 on, and off; the seed in slot 1 is computed for both
    segment 2, logits          3 paths

A seed that is off is not computed, so its non-finite values cannot leak in. A seed behind its host is computed as in any forward.
"""

# M members, P paths, V settings, S slots, D paths whose seed is computed, O paths in which it is on, K classes

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from esper.fusion.batch_last import is_batch_last
from esper.fusion.device import on_device
from esper.fusion.fuse import Fleet
from esper.fusion.layout import by_member, join_members, per_member, split_members, take_members
from esper.fusion.precision import in_single
from esper.growth.active import ActiveSeeds
from esper.hosts.base import segments_of
from esper.lifecycle.stages import IntArray
from esper.seeds.bank import SeedBank


class Unforked(NamedTuple):
    """A slot at which no path forks, so that every member still has one path after it."""

    seeds: ActiveSeeds
    alpha_L: Tensor
    whole: bool
    """True if every member has a seed there, in order, so no selection is needed."""
    full: bool
    """True if all alphas are 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fork:
    """A fork of the paths at one slot: paths with the seed on come first, then the unchanged ones."""

    before: int
    """Number of incoming paths."""
    seeded_D: IntArray
    """Paths whose seed is computed, bank by bank."""
    banks: tuple[tuple[SeedBank, IntArray], ...]
    """The banks, each with the row of each of its paths in `seeded_D`."""
    on_O: IntArray
    """Index into `seeded_D` of each path with the seed on."""
    alpha_O: npt.NDArray[np.float32]
    """Blend weight of each of these paths."""
    times_O: npt.NDArray[np.bool_]
    """True where the seed blends by multiplication."""
    kept: IntArray
    """Incoming paths that continue without the seed."""
    owner_P: IntArray
    """Computed member of each outgoing path."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """The forks of all paths, and the last path of each setting."""

    members: int
    """Number of computed members."""
    forks: tuple[Fork | Unforked | None, ...]
    """Fork at each slot; None where there is no seed."""
    path_VM: IntArray
    """Last path of each setting of each member."""
    rows: IntArray | None = None
    """Index in the fleet of each computed member, which may repeat; None: the whole fleet, in order."""

    @property
    def paths(self) -> list[int]:
        """Number of paths after each slot, and at the end."""
        counts, now = list[int](), self.members
        for fork in self.forks:
            now = len(fork.owner_P) if isinstance(fork, Fork) else now
            counts.append(now)
        return [*counts, now]

    @property
    def owner_P(self) -> IntArray:
        """Computed member of each path at the end."""
        owner_P = np.empty(self.path_VM.max() + 1, dtype=np.int64)
        owner_P[self.path_VM] = np.arange(self.members)
        return owner_P


def tree(alpha_VMS: npt.NDArray[np.float32], active_S: Sequence[ActiveSeeds | None], rows: IntArray | None = None) -> Tree:
    """Return where the settings of the alphas fork.

    Args:
        alpha_VMS: blend weights of each setting of the computed members; slots without a seed are ignored.
        active_S: the active seeds of each slot, at their current alphas.
        rows: see `Tree.rows`.
    """
    settings, members, _ = alpha_VMS.shape
    path_VM, owner_P = np.tile(np.arange(members), (settings, 1)), np.arange(members)
    forks: list[Fork | Unforked | None] = []
    for slot, seeds in enumerate(active_S):
        if seeds is None:
            forks.append(None)
            continue
        live = seeds.active
        alpha_VL = alpha_VMS[:, live, slot]
        if (path_VM == np.arange(members)).all() and (alpha_VL == alpha_VL[0]).all():
            whole, alpha_L = np.array_equal(live, np.arange(members)), np.ascontiguousarray(alpha_VL[0])
            forks.append(Unforked(seeds, on_device(alpha_L, seeds.active_L.device), whole, bool((alpha_L == 1).all())))
            continue
        fork, path_VM = _fork(path_VM, owner_P, alpha_VMS[:, :, slot], seeds)
        owner_P = fork.owner_P
        forks.append(fork)
    return Tree(members=members, forks=tuple(forks), path_VM=path_VM, rows=rows)


def _fork(path_VM: IntArray, owner_P: IntArray, alpha_VM: npt.NDArray[np.float32], seeds: ActiveSeeds) -> tuple[Fork, IntArray]:
    """Return the fork at one slot, and the path of each setting after it."""
    place_M = np.full(alpha_VM.shape[1], -1)
    place_M[seeds.active] = np.arange(len(seeds.active))
    alpha_VM = np.where(place_M >= 0, alpha_VM, np.float32(0.0))
    key_VM = path_VM << 32 | np.ascontiguousarray(alpha_VM).view(np.uint32).astype(np.int64)
    key, child_VM = np.unique(key_VM, return_inverse=True)
    parent, alpha = key >> 32, (key & 0xFFFFFFFF).astype(np.uint32).view(np.float32)
    place = place_M[owner_P[parent]]
    on = np.flatnonzero((place >= 0) & ((alpha != 0) | seeds.behind[place]))
    on = on[np.lexsort((parent[on], _bank_of(seeds)[place[on]]))]
    off = np.setdiff1d(np.arange(len(key)), on)
    order = np.concatenate([on, off])
    first = np.flatnonzero(np.diff(parent[on], prepend=-1))
    seeded = place[on][first]
    fork = Fork(
        before=len(owner_P),
        seeded_D=parent[on][first],
        banks=tuple(_rows(seeds, seeded)),
        on_O=np.repeat(np.arange(len(first)), np.diff(first, append=len(on))),
        alpha_O=alpha[on],
        times_O=seeds.multiplies[place[on]],
        kept=parent[off],
        owner_P=owner_P[parent[order]],
    )
    return fork, np.argsort(order)[child_VM.reshape(path_VM.shape)]


def _bank_of(seeds: ActiveSeeds) -> IntArray:
    """Return the index of the bank of each live member's seed."""
    return np.repeat(np.arange(len(seeds.groups)), [len(group.rows_L) for group in seeds.groups])


def _rows(seeds: ActiveSeeds, place: IntArray) -> Iterator[tuple[SeedBank, IntArray]]:
    """Yield each bank with the rows of live members, which are sorted by bank and may repeat."""
    bank = _bank_of(seeds)[place]
    rows = np.concatenate([group.rows for group in seeds.groups])[place]
    for index in np.unique(bank):
        yield seeds.groups[index].bank, rows[bank == index]


@torch.no_grad()
def path_logits(host: Fleet, tree: Tree, x: Tensor) -> Tensor:
    """Compute the logits `[P, B, K]` of a batch on every path, at least in single precision.

    Args:
        host: the members.
        tree: where their paths fork.
        x: the batch in the layout of its kind.
    """
    segments, owner_P = segments_of(host.module), np.arange(tree.members)
    for segment, fork in zip(segments, [*tree.forks, None], strict=True):
        x = _computed(host, segment, owner_P if tree.rows is None else tree.rows[owner_P], x)
        if isinstance(fork, Unforked):
            x = _unforked(fork, x, tree.members)
        elif fork is not None:
            x, owner_P = _forked(fork, x), fork.owner_P
    host.bind()
    return in_single(by_member(x, len(owner_P)))


def _unforked(fork: Unforked, x: Tensor, members: int) -> Tensor:
    """Return the features of all members after a slot without a fork, bit for bit as in a forward."""
    seeds, dense = fork.seeds, x.dim() != 4 or is_batch_last(x) or x.is_contiguous(memory_format=torch.channels_last)
    if not (fork.whole and dense and seeds.multiplies_L is None):
        return seeds.varied(x, seeds.delta(take_members(x, seeds.active_L, members)), fork.alpha_L, members)
    delta = seeds.delta(x)
    return (x + (delta if fork.full else delta * per_member(fork.alpha_L, delta))).to(x.dtype)


def _forked(fork: Fork, x: Tensor) -> Tensor:
    """Return the features of the outgoing paths of a slot."""
    parts: list[Tensor] = []
    if len(fork.on_O):
        seeded = _take(x, fork.seeded_D, fork.before)
        pieces = split_members(seeded, [len(rows) for _, rows in fork.banks])
        seeds = zip(fork.banks, pieces, strict=True)
        delta = join_members([bank.delta(on_device(rows, x.device), part, repeats=True) for (bank, rows), part in seeds])
        h, delta = _take(seeded, fork.on_O, len(fork.seeded_D)), _take(delta, fork.on_O, len(fork.seeded_D))
        if fork.times_O.any():
            delta = torch.where(per_member(on_device(fork.times_O, x.device), h), h * torch.tanh(delta), delta)
        if (fork.alpha_O != 1).any():
            delta = delta * per_member(on_device(fork.alpha_O, x.device), delta)
        parts.append((h + delta).to(x.dtype))
    if len(fork.kept):
        parts.append(_take(x, fork.kept, fork.before))
    return join_members(parts)


def _computed(fleet: Fleet, part: nn.Module, rows: IntArray, x: Tensor) -> Tensor:
    """Apply a segment of a fleet of hosts to the features of some members, which may repeat."""
    if fleet.members == 1:  # one by one: layers may lack a stacked form, and rounding stays that of a single host
        fleet.bind()
        return join_members([part(piece) for piece in split_members(x, [1] * len(rows))])
    if np.array_equal(rows, np.arange(fleet.members)):
        fleet.bind()
    else:
        fleet.bind_some(on_device(rows, x.device), part)
    return part(x)


def _take(x: Tensor, chosen: IntArray, members: int) -> Tensor:
    """Return the features of the chosen members, which may repeat; a view if they are contiguous."""
    first, count = int(chosen[0]), len(chosen)
    if not np.array_equal(chosen, np.arange(first, first + count)):
        return take_members(x, on_device(chosen, x.device), members)
    return x if count == members else split_members(x, [first, count, members - first - count])[1]
