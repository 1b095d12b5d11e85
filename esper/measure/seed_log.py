"""The seeds of an episode, one by one: when each was planted, what became of it, and what it contributed.

The log needs nothing but the slots after each host epoch, so that it can be kept in training and rebuilt from a trace.
"""

# N hosts, S slots

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from esper.lifecycle.stages import EMPTY, BoolArray, FloatArray, IntArray

FATES = ("live", "kept", "removed", "rolled_back")
"""What became of a seed: still live at the end of the episode, fossilized, pruned, or lost when its host was rolled back."""


@dataclass(slots=True)
class Seed:
    """One seed."""

    host: int
    slot: int
    blueprint: int
    planted: int
    """Host epoch of planting, from 1."""
    epochs: int = 0
    """Host epochs with the seed in its slot, without one that was rolled back."""
    fate: str = "live"
    contribution: float = math.nan
    """Last measured contribution to the accuracy [pp]; NaN before the first measurement."""
    contribution_error: float = math.nan
    """Its standard error [pp]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotsAfter:
    """The slots of N hosts after a host epoch."""

    blueprint_NS: IntArray
    """Blueprint of the seed in each slot, `EMPTY` for an empty one."""
    kept_NS: BoolArray
    """True where it is a fossil."""
    contribution_NS: FloatArray
    """Contribution measured in this epoch [pp], NaN where it was not."""
    contribution_error_NS: FloatArray
    rolled_back_N: BoolArray
    """Hosts that were rolled back after this epoch; nothing that was measured in it counts for them."""


@dataclass(slots=True)
class SeedLog:
    """All seeds of an episode, in the order of planting."""

    seeds: list[Seed] = field(default_factory=list[Seed])
    _now: dict[tuple[int, int], Seed] = field(default_factory=dict[tuple[int, int], Seed])
    """Newest seed of each host and slot that ever had one."""
    _restored: set[int] = field(default_factory=set[int])
    """Hosts whose slots are those of an earlier epoch again."""

    def add(self, epoch: int, slots: SlotsAfter) -> None:
        """Add a host epoch, counted from 1."""
        for host, slot in self._places(slots):
            if slots.rolled_back_N[host]:
                self._lose(epoch, slots, host, slot)
            else:
                self._update(epoch, slots, host, slot)
        self._restored = set(np.flatnonzero(slots.rolled_back_N).tolist())

    def end(self, kept_NS: npt.NDArray[np.int64] | None = None) -> None:
        """End the episode: mark the kept seeds that a rollback in the last epoch took.

        Args:
            kept_NS: blueprint of the kept seed in each slot, `EMPTY` for none; None if the rollbacks took no kept ones.
        """
        for (host, slot), seed in self._now.items():
            if host in self._restored and seed.fate == "kept" and kept_NS is not None and kept_NS[host, slot] != seed.blueprint:
                seed.fate = "rolled_back"

    def _places(self, slots: SlotsAfter) -> Iterator[tuple[int, int]]:
        """Yield the slots that have, or had, a seed."""
        occupied = {(int(host), int(slot)) for host, slot in np.argwhere(slots.blueprint_NS != EMPTY)}
        yield from sorted(occupied | {*self._now})

    def _plant(self, epoch: int, slots: SlotsAfter, host: int, slot: int) -> Seed:
        """Add a new seed."""
        seed = Seed(host, slot, int(slots.blueprint_NS[host, slot]), epoch)
        self.seeds.append(seed)
        self._now[host, slot] = seed
        return seed

    def _lose(self, epoch: int, slots: SlotsAfter, host: int, slot: int) -> None:
        """Mark the live seed of a slot as rolled back, also one that was planted in this epoch.

        No live seed survives a rollback. A kept one does unless the snapshot precedes it, which shows in the next epoch.
        """
        seed = self._now.get((host, slot))
        if seed is not None and seed.fate == "kept" and host in self._restored and not slots.kept_NS[host, slot]:
            seed.fate = "rolled_back"
        if slots.blueprint_NS[host, slot] != EMPTY and (seed is None or seed.fate in ("removed", "rolled_back")):
            seed = self._plant(epoch, slots, host, slot)
        if seed is not None and seed.fate == "live":
            seed.fate = "rolled_back"

    def _update(self, epoch: int, slots: SlotsAfter, host: int, slot: int) -> None:
        """Bring the log of a slot up to date."""
        blueprint, kept, seed = int(slots.blueprint_NS[host, slot]), bool(slots.kept_NS[host, slot]), self._now.get((host, slot))
        present, restored = seed is not None and seed.fate in ("live", "kept"), host in self._restored
        if seed is not None and present and (blueprint != seed.blueprint or (restored and not kept)):
            seed.fate, present = "rolled_back" if restored else "removed", False
        if blueprint == EMPTY:
            return
        if seed is None or not present:
            seed = self._plant(epoch, slots, host, slot)
        seed.epochs += 1
        seed.fate = "kept" if kept else "live"
        if math.isfinite(measured := float(slots.contribution_NS[host, slot])):
            seed.contribution, seed.contribution_error = measured, float(slots.contribution_error_NS[host, slot])


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedStats:
    """Seeds of one blueprint, in one slot, or on hosts of one kind."""

    planted: float
    """Seeds planted in the episode, mean over hosts."""
    kept: float
    """Seeds fossilized, mean over hosts."""
    removed: float
    """Seeds pruned, mean over hosts."""
    rolled_back: float
    """Seeds lost in rollbacks, mean over hosts."""
    churn: float
    """Share of the planted seeds that were pruned or lost; NaN if none was planted."""
    epochs: float
    """Host epochs that a seed spent in its slot, mean over seeds."""
    contribution: float
    """Last measured contribution of the seeds that stayed to the end, mean [pp]; NaN if none was measured."""
    contribution_error: float
    """Standard error of this mean [pp]; NaN if all of its seeds have one origin, see `seed_stats`."""
    contribution_removed: float
    """The same mean over the seeds that were pruned [pp]: above 0, they still helped."""


def seed_stats(seeds: Sequence[Seed], hosts: int, origins: Sequence[int] | None = None) -> SeedStats:
    """Return the statistics of these seeds.

    Args:
        seeds: seeds of one group.
        hosts: number of hosts that could have had them, at least 1.
        origins: for each host, a number shared by hosts that are no independent sample, such as twins, and the hosts of one
            policy where several policies are pooled; None if each host is one.
    """
    count = {fate: sum(seed.fate == fate for seed in seeds) for fate in FATES}
    measured = [seed for seed in seeds if math.isfinite(seed.contribution)]
    staying = [seed for seed in measured if seed.fate in ("live", "kept")]
    removed = [seed.contribution for seed in measured if seed.fate == "removed"]
    planted = len(seeds)
    contribution = np.array([seed.contribution for seed in staying])
    origin = [seed.host if origins is None else origins[seed.host] for seed in staying]
    return SeedStats(
        planted=planted / hosts,
        kept=count["kept"] / hosts,
        removed=count["removed"] / hosts,
        rolled_back=count["rolled_back"] / hosts,
        churn=(count["removed"] + count["rolled_back"]) / planted if planted else math.nan,
        epochs=float(np.mean([seed.epochs for seed in seeds])) if planted else math.nan,
        contribution=float(contribution.mean()) if len(staying) else math.nan,
        contribution_error=_clustered_error(contribution, origin),
        contribution_removed=float(np.mean(removed)) if removed else math.nan,
    )


def _clustered_error(values: npt.NDArray[np.float64], origin: Sequence[int]) -> float:
    """Return the standard error of a mean whose values depend on each other within their origin; NaN for fewer than two origins.

    It is robust to clusters (Liang, Zeger 1986), with the factor G / (G - 1) for G origins: for one value each, s / sqrt(n).
    """
    _, index, size = np.unique(origin, return_inverse=True, return_counts=True)
    if len(size) < 2:
        return math.nan
    residual = np.bincount(index, values - values.mean())
    return float(np.sqrt(np.square(residual).sum() * len(size) / (len(size) - 1)) / len(values))


def grouped(
    seeds: Sequence[Seed],
    blueprints: Sequence[str],
    slots: Sequence[str],
    kinds: Sequence[str],
    origins: Sequence[int] | None = None,
) -> dict[tuple[str, str], SeedStats]:
    """Return the statistics by group: by blueprint, by slot, and by kind of host, if there are several.

    Args:
        seeds: seeds of all hosts.
        blueprints: names of the blueprints.
        slots: names of the slots.
        kinds: kind of each host.
        origins: origin of each host; see `seed_stats`.
    """
    groups = {("blueprint", name): [seed for seed in seeds if seed.blueprint == rank] for rank, name in enumerate(blueprints)}
    groups |= {("slot", name): [seed for seed in seeds if seed.slot == rank] for rank, name in enumerate(slots)}
    hosts = dict.fromkeys(groups, len(kinds))
    if len(names := sorted(set(kinds))) > 1:
        groups |= {("kind", name): [seed for seed in seeds if kinds[seed.host] == name] for name in names}
        hosts |= {("kind", name): kinds.count(name) for name in names}
    return {group: seed_stats(own, hosts[group], origins) for group, own in groups.items()}
