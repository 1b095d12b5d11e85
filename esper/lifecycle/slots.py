"""The `slots` group: slots in use, and the rules of the seeds in them.

Slots are named r<row>c<column>: the column is the index of the block, counted from the input, and the row the index of the slot
in its block. A host with other slot names works with every option that does not select by row or column.
"""

# S slots

import re
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from esper.lifecycle.roles import Fossils, Incubation
from esper.lifecycle.stages import BoolArray, Stage
from esper.options import Option
from esper.ranges import check_options, check_ranges

GATES = {"training": Stage.GERMINATED, "blending": Stage.TRAINING, "holding": Stage.BLENDING, "fossilized": Stage.HOLDING}
"""Gate, named by the stage that it leads to -> stage that it leads from."""


class Isolation(StrEnum):
    """Duration of a seed's isolation, in which its gradient does not reach the host."""

    training = "training"
    """While the seed trains behind the host."""
    until_kept = "until_kept"
    """Until the seed is fossilized: the host does not adapt to seeds on trial."""


@dataclass(kw_only=True, slots=True)
class SlotsConfig(Option):
    """Slots in use, and the rules of the seeds in them."""

    where: list[str] = field(default_factory=lambda: list[str]())
    """Names of the slots in use, such as [r0c0,r1c2]; empty: the slots of the chosen option, by default every slot."""
    max_seeds: int = 0
    """Maximum number of seeds per host, live and fossilized together, at least 0; 0: no limit."""
    one_at_a_time: bool = False
    """If true, a host may germinate a seed only while it has no other germinated or training seed."""
    auto_advance: list[str] = field(default_factory=lambda: ["training", "holding"])
    """Stages entered without an action as soon as their gate opens: any of training, blending, holding, fossilized."""
    min_prune_age: int = 5
    """Minimum age of a seed to be pruned, at least 0 [host epochs]. Higher: less churn."""
    embargo: int = 2
    """Time for which an emptied slot stays closed, at least 0 [host epochs]: a slot emptied in step t can be planted again in
    step t + embargo + 2. After a rollback it opens one step later, or at once if the snapshot precedes its seed. Higher: less
    churn."""
    prune_after: int = 0
    """Age at which a seed that is not fossilized is removed, at least 0 [host epochs]; 0: never. Lower: frees slots sooner."""
    prune_below: float | None = None
    """Contribution below which a seed with alpha at its target is removed, from `min_prune_age` on [pp]; null: never. Higher:
    stricter."""
    incubation: Incubation = Incubation.closed_loop
    """Training of a seed before it is blended in: straight_through, closed_loop or none."""
    isolation: Isolation = Isolation.training
    """Duration of a seed's isolation, in which its gradient does not reach the host: training or until_kept."""
    fossils: Fossils = Fossils.learning
    """Training of fossils: learning (they learn with the host) or frozen (their parameters stay constant)."""
    learning_epochs: int = 0
    """Host epochs in which a seed learns, counted from its germination, at least 0; then its parameters stay constant. 0: no
    limit. Lower: timing matters more, since a seed learns only the data of its time."""
    switchable: bool = False
    """If true, SET_ALPHA_TARGET on a fossil switches it off (alpha 0), or on again (alpha 1), at once. A fossil that is off stays
    in the network and costs its rent."""

    def __post_init__(self) -> None:
        if len(set(self.where)) < len(self.where):
            raise ValueError(f"slots.where names a slot twice: {self.where}")
        check_options("slots", self, {"incubation": Incubation, "isolation": Isolation, "fossils": Fossils})
        whole = ["max_seeds", "min_prune_age", "embargo", "prune_after", "learning_epochs"]
        check_ranges("slots", self, {"[0, inf]": whole, "(-inf, inf)": ["prune_below"]})
        unknown = [name for name in self.auto_advance if name not in GATES]
        if unknown:
            raise ValueError(f"slots.auto_advance must name stages from {', '.join(GATES)}, got {', '.join(unknown)}")
        if 0 < self.prune_after < self.min_prune_age:
            raise ValueError(
                f"slots.prune_after={self.prune_after} is below slots.min_prune_age={self.min_prune_age}, before which no seed "
                "is removed: raise slots.prune_after or lower slots.min_prune_age"
            )

    def chosen(self, names: tuple[str, ...], option: str | None = None) -> BoolArray:
        """Return which of the host's slots are in use `[S]`.

        Args:
            names: names of the host's slots, in forward order.
            option: name of this config as an option, for the message.

        Raises:
            ValueError: `where` names a slot that the host does not have, or the host has no slot of the option.
        """
        unknown = [name for name in self.where if name not in names]
        if unknown:
            raise ValueError(f"slots.where={','.join(unknown)} is not a slot of this host: it has {', '.join(names)}")
        chosen = self.where or self.default_slots(names)
        if not chosen:
            raise ValueError(
                f"slots={option or type(self).__name__} finds no slot in this host, which has "
                f"{', '.join(names) or 'none'}: choose slots=all, or name slots as in slots.where=[{', '.join(names[:1])}]"
            )
        return np.array([name in chosen for name in names], dtype=np.bool_)

    def default_slots(self, names: tuple[str, ...]) -> list[str]:
        """Return the names of the option's slots, empty if the host has none of them; by default every slot."""
        return list(names)


@dataclass(kw_only=True, slots=True)
class OneSeedConfig(SlotsConfig):
    """Every slot, at most one seed per host: a test of where and whether to grow."""

    max_seeds: int = 1


@dataclass(kw_only=True, slots=True)
class EveryBlockConfig(SlotsConfig):
    """Every slot, one seed each."""


@dataclass(kw_only=True, slots=True)
class InServiceConfig(SlotsConfig):
    """Every slot, with seeds that are active at once and learn for eight host epochs: for deployed hosts."""

    incubation: Incubation = Incubation.none
    learning_epochs: int = 8


@dataclass(kw_only=True, slots=True)
class OnePermanentConfig(InServiceConfig):
    """As in_service, with one seed per host that stays for good: a test of when to commit."""

    max_seeds: int = 1
    auto_advance: list[str] = field(default_factory=lambda: list(GATES))


@dataclass(kw_only=True, slots=True)
class OneConfig(SlotsConfig):
    """The first slot of the middle block: a test of what and when to grow."""

    def default_slots(self, names: tuple[str, ...]) -> list[str]:
        columns = sorted({column for _, column in map(_place, names) if column >= 0})
        middle = columns[len(columns) // 2] if columns else -1
        return [name for name in names if columns and _place(name)[1] == middle][:1]


@dataclass(kw_only=True, slots=True)
class ThreeConfig(SlotsConfig):
    """The first three slots of row 0."""

    def default_slots(self, names: tuple[str, ...]) -> list[str]:
        first = [name for name in names if _place(name)[0] == 0][:3]
        return first if len(first) == 3 else []


@dataclass(kw_only=True, slots=True)
class PreConfig(SlotsConfig):
    """The slots of row 0: before the pools of a CNN, after the attention of a transformer."""

    def default_slots(self, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if _place(name)[0] == 0]


@dataclass(kw_only=True, slots=True)
class PostConfig(SlotsConfig):
    """The slots of row 1: after the pools of a CNN, after the MLP of a transformer."""

    def default_slots(self, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if _place(name)[0] == 1]


@dataclass(kw_only=True, slots=True)
class DeepConfig(SlotsConfig):
    """The slots of the last half of the blocks, including the middle block if their number is odd."""

    def default_slots(self, names: tuple[str, ...]) -> list[str]:
        columns = sorted({column for _, column in map(_place, names) if column >= 0})
        return [name for name in names if _place(name)[1] in columns[len(columns) // 2 :]]


def _place(name: str) -> tuple[int, int]:
    """Return row and column of a slot; -1 if its name has another form."""
    found = re.fullmatch(r"r(\d+)c(\d+)", name)
    return (int(found[1]), int(found[2])) if found else (-1, -1)
