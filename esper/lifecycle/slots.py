"""Which slots may hold seeds, and the rules of their life: the `slots` group.

Slots are named r<row>c<column>: the column counts the blocks of a host from its input on, the row counts the slots of a block (r0
comes before r1). A host whose slots are named otherwise works with every option that does not speak of rows or columns.
"""

# S slots

import re
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from esper.lifecycle.roles import Fossils, Incubation
from esper.lifecycle.stages import BoolArray, Stage

GATES = {
    "training": Stage.GERMINATED,
    "blending": Stage.TRAINING,
    "holding": Stage.BLENDING,
    "fossilized": Stage.HOLDING,
}
"""Gates by the stage they lead to, with the stage they start from."""


class Isolation(StrEnum):
    """How long the gradient of a seed is kept from its host."""

    training = "training"
    """While it trains behind the host."""
    until_kept = "until_kept"
    """Until it is fossilized: the host does not adapt to seeds on trial."""


@dataclass(kw_only=True, slots=True)
class SlotsConfig:
    """Which slots may hold seeds, and the rules of their life."""

    where: list[str] = field(default_factory=lambda: list[str]())
    """Names of the slots in use, such as [r0c0,r1c2]; empty means those that the option names, every slot where it names none."""
    max_seeds: int = 0
    """Most seeds a host may hold at once, live and fossilized together, at least 0; 0 means no cap."""
    one_at_a_time: bool = False
    """If true, a host may germinate a seed only while none of its seeds is germinated or in training."""
    auto_advance: list[str] = field(default_factory=lambda: ["training", "holding"])
    """Stages that are entered as soon as their gate opens, without an action, out of training, blending, holding, fossilized."""
    min_prune_age: int = 5
    """Host epochs a seed lives before it may be pruned, at least 0. More keeps a controller from churning."""
    embargo: int = 2
    """Host epochs an emptied slot stays closed besides the one in which it is emptied and the next, at least 0: a slot emptied in
    step t may be planted again in step t + embargo + 2."""
    prune_after: int = 0
    """A seed that was not kept after so many host epochs is removed, at least 0; 0 never does. Lower makes room sooner."""
    prune_below: float | None = None
    """A seed whose alpha has come to its target is removed when its measured contribution is below this [pp]; null never does.
    The rule respects `min_prune_age`. Higher is stricter."""
    incubation: Incubation = Incubation.closed_loop
    """How a seed learns in training, before it is blended in."""
    isolation: Isolation = Isolation.training
    """How long the gradient of a seed is kept from its host."""
    fossils: Fossils = Fossils.learning
    """Does a seed that was kept go on learning?"""

    def __post_init__(self) -> None:
        if len(set(self.where)) < len(self.where):
            raise ValueError(f"slots.where names a slot twice: {self.where}")
        if self.max_seeds < 0:
            raise ValueError(f"slots.max_seeds must be at least 0, got {self.max_seeds}: 0 means no cap")
        unknown = [name for name in self.auto_advance if name not in GATES]
        if unknown:
            raise ValueError(f"slots.auto_advance must name stages out of {', '.join(GATES)}, got {', '.join(unknown)}")
        for name in ("min_prune_age", "embargo", "prune_after"):
            if getattr(self, name) < 0:
                raise ValueError(f"slots.{name} must be at least 0, got {getattr(self, name)}")
        if 0 < self.prune_after < self.min_prune_age:
            raise ValueError(
                f"slots.prune_after={self.prune_after} is below slots.min_prune_age={self.min_prune_age}, before which no seed "
                "is removed: raise the one or lower the other"
            )
        if self.prune_below is not None and not np.isfinite(self.prune_below):
            raise ValueError(f"slots.prune_below must be finite or null, got {self.prune_below}: null never removes a seed")

    def chosen(self, names: tuple[str, ...], option: str | None = None) -> BoolArray:
        """`[S]`: which of the host's slots are in use.

        Args:
            names: of the host's slots, in forward order.
            option: name by which this config was chosen, for the message.

        Raises:
            ValueError: `where` names a slot that the host does not have, or the host has none of those that the option means.
        """
        unknown = [name for name in self.where if name not in names]
        if unknown:
            raise ValueError(f"slots.where={','.join(unknown)} is not a slot of this host: it has {', '.join(names)}")
        meant = self.where or self.meant(names)
        if not meant:
            raise ValueError(
                f"slots={option or type(self).__name__} finds no slot in this host, which has "
                f"{', '.join(names) or 'none'}: choose slots=all, or name slots as in slots.where=[{', '.join(names[:1])}]"
            )
        return np.array([name in meant for name in names], dtype=np.bool_)

    def meant(self, names: tuple[str, ...]) -> list[str]:
        """The slots that the option stands for, empty where the host has none of them; every slot but for the options below."""
        return list(names)


@dataclass(kw_only=True, slots=True)
class OneSeedConfig(SlotsConfig):
    """Every slot is open, and a host may hold one seed: where to grow, or whether, is the whole question."""

    max_seeds: int = 1
    """Most seeds a host may hold at once, live and fossilized together, at least 0; 0 means no cap."""


@dataclass(kw_only=True, slots=True)
class EveryBlockConfig(SlotsConfig):
    """Every slot is open and may hold a seed of its own."""


@dataclass(kw_only=True, slots=True)
class OneConfig(SlotsConfig):
    """The first slot of the middle block: what is grown, and when, but not where."""

    def meant(self, names: tuple[str, ...]) -> list[str]:
        columns = sorted({column for _, column in map(_place, names) if column >= 0})
        middle = columns[len(columns) // 2] if columns else -1
        return [name for name in names if columns and _place(name)[1] == middle][:1]


@dataclass(kw_only=True, slots=True)
class ThreeConfig(SlotsConfig):
    """The first three slots of row 0."""

    def meant(self, names: tuple[str, ...]) -> list[str]:
        first = [name for name in names if _place(name)[0] == 0][:3]
        return first if len(first) == 3 else []


@dataclass(kw_only=True, slots=True)
class PreConfig(SlotsConfig):
    """The slots of row 0: before the pools of a CNN, after the attention of a transformer."""

    def meant(self, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if _place(name)[0] == 0]


@dataclass(kw_only=True, slots=True)
class PostConfig(SlotsConfig):
    """The slots of row 1: after the pools of a CNN, after the MLP of a transformer."""

    def meant(self, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if _place(name)[0] == 1]


@dataclass(kw_only=True, slots=True)
class DeepConfig(SlotsConfig):
    """The slots of the last half of the blocks; of an odd number of blocks the middle one is among them."""

    def meant(self, names: tuple[str, ...]) -> list[str]:
        columns = sorted({column for _, column in map(_place, names) if column >= 0})
        return [name for name in names if _place(name)[1] in columns[len(columns) // 2 :]]


def _place(name: str) -> tuple[int, int]:
    """Row and column of a slot, -1 where its name does not tell."""
    found = re.fullmatch(r"r(\d+)c(\d+)", name)
    return (int(found[1]), int(found[2])) if found else (-1, -1)
