"""The interface of optimisers: their config, the settings of an update, and the update of many members at once."""

# M members, P parameters of one member

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from esper.optimisers.schedules import PEAK, RateSchedule, fall, rise
from esper.options import Option
from esper.ranges import check_ranges


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSettings:
    """The settings of an update: numbers, or tensors `[M, 1]` with a value for each row."""

    learning_rate: float | Tensor
    weight_decay: float | Tensor
    max_norm: float | Tensor

    def scaled(self, factor: float | Tensor) -> "StepSettings":
        """Return the settings with the learning rate times a factor."""
        return replace(self, learning_rate=self.learning_rate * factor)

    def where(self, rows_M1: Tensor, other: "StepSettings") -> "StepSettings":
        """Return these settings for the marked rows, and the other ones for the rest."""
        values = {name: (getattr(self, name), getattr(other, name)) for name in StepSettings.__slots__}
        return StepSettings(**{name: torch.where(rows_M1, mine, theirs) for name, (mine, theirs) in values.items()})


@dataclass(kw_only=True, slots=True)
class SeedSettingsConfig:
    """Settings of the optimiser for seeds, where they differ from those for hosts."""

    learning_rate: float | None = None
    """Step size of seeds, above 0; null: as for hosts. Higher: faster, until training diverges."""
    weight_decay: float | None = 0.0
    """Weight decay of seeds, at least 0; null: as for hosts. Higher: smaller weights."""
    max_norm: float | None = None
    """Maximum gradient norm of a seed, above 0; null: as for hosts."""
    warmup_batches: int = 0
    """Number of batches after planting over which a seed's learning rate rises linearly, at least 0. Higher: a gentler start."""

    def __post_init__(self) -> None:
        ranges = {
            "(0, inf)": ["learning_rate"],
            "[0, inf)": ["weight_decay"],
            "(0, inf]": ["max_norm"],
            "[0, inf]": ["warmup_batches"],
        }
        check_ranges("optimiser.seeds", self, ranges)


@dataclass(kw_only=True, slots=True)
class OptimiserConfig(Option):
    """Base of optimiser configs. Every host and every seed is updated as if it were alone."""

    tensors: ClassVar[int] = 1
    """Tensors of state, each of the size of the parameters."""

    learning_rate: float = 0.05
    """Step size, above 0. Higher: faster, until training diverges."""
    weight_decay: float = 0.0
    """Decay of every parameter towards 0 per step, as a multiple of the learning rate, at least 0. Higher: smaller weights."""
    max_norm: float = 1.0
    """Maximum gradient norm, above 0, for each host and each seed separately; larger gradients are scaled down; inf sets no
    limit."""
    schedule: RateSchedule = RateSchedule.constant
    """Learning rate schedule over an episode, or over pretraining. Its decay applies to seeds as well."""
    warmup: float | None = None
    """Share of the episode over which the hosts' learning rate rises, in [0, 1); null: 0.3 for one_cycle, else 0. Higher: a
    gentler start. Seeds have `optimiser.seeds.warmup_batches` instead."""
    micro_batches: int = 1
    """Parts of a batch whose gradients are computed one after the other and accumulated for one step, at least 1. Higher: less
    memory, slower. The step is that of the whole batch up to rounding, except that batch norm normalises each part alone."""
    seeds: SeedSettingsConfig = field(default_factory=SeedSettingsConfig)
    """Settings for seeds. Fossils that learn use those for hosts."""

    def __post_init__(self) -> None:
        ranges = {"(0, inf)": ["learning_rate"], "[0, inf)": ["weight_decay"], "(0, inf]": ["max_norm"]}
        check_ranges("optimiser", self, ranges | {"[0, 1)": ["warmup"], "[1, inf]": ["micro_batches"]})

    def at(self, progress: float) -> tuple[StepSettings, StepSettings]:
        """Return the settings for hosts and for seeds at this share of an episode, in [0, 1]."""
        warmup = self.warmup if self.warmup is not None else PEAK * (self.schedule is RateSchedule.one_cycle)
        host = StepSettings(learning_rate=self.learning_rate, weight_decay=self.weight_decay, max_norm=self.max_norm)
        own = {name: getattr(self.seeds, name) for name in StepSettings.__slots__ if getattr(self.seeds, name) is not None}
        seed, later = replace(host, **own), fall(self.schedule, progress, warmup)
        return host.scaled(rise(self.schedule, progress, warmup) * later), seed.scaled(later)

    def build(self, flat: Tensor, warmup_batches: int = 0) -> "MemberOptimiser":
        """Return the optimiser of the rows of a tensor `[M, P]`."""
        raise TypeError(f"{type(self).__name__} does not define build(flat, warmup_batches)")


class MemberOptimiser:
    """An optimiser of the rows of a flat tensor `[M, P]`, each clipped by its own gradient norm.

    Updates are those of `clip_grad_norm_` and an optimiser of `torch.optim` on each member alone. The state of a row is a row of
    every tensor in `state`, zero for a newborn member.

    Args:
        rows: names of the state tensors `[M, P]`.
        counts: if true, the state has the number of steps of each row, `steps` `[M, 1]`. A warm-up needs it as well.
        warmup_batches: steps of a row over which its learning rate rises linearly.
    """

    def __init__(self, flat: Tensor, rows: Sequence[str], *, counts: bool = False, warmup_batches: int = 0) -> None:
        self.flat, self._warmup = flat, warmup_batches
        self.state = {name: torch.zeros_like(flat, requires_grad=False) for name in rows}
        # Sums of norms, and how many, are tensors: a captured step counts when it is replayed.
        self._norms, self._counted = (flat.new_zeros(len(flat), 1) for _ in range(2))
        if counts or warmup_batches:
            self.state["steps"] = torch.zeros_like(self._norms)

    def step(
        self,
        settings: StepSettings,
        takes_M1: Tensor | None = None,
        scale_M1: Tensor | None = None,
        *,
        fossil_M1: Tensor | None = None,
    ) -> Tensor | None:
        """Take one step from `flat.grad`, which is then dropped. A row's numbers do not depend on the settings of others.

        Args:
            takes_M1: bool `[M, 1]`, rows that take the step; others keep parameters and state. None: all.
            scale_M1: loss scale of each row `[M, 1]`, by which its gradient is divided first. A row whose gradient is then not
                finite does not take the step. None: gradients are not scaled, and are taken as they are.
            fossil_M1: bool `[M, 1]`, rows without a warm-up. None: no row.

        Returns:
            Rows whose gradient overflowed, bool `[M, 1]`; None without loss scales or gradients.
        """
        grad = self.flat.grad
        if grad is None:
            return None
        overflows_M1 = None
        with torch.no_grad():
            grad = grad if scale_M1 is None else grad / scale_M1
            norm = torch.linalg.vector_norm(grad, dim=1, keepdim=True)
            if scale_M1 is not None:
                overflows_M1 = ~norm.isfinite()
                takes_M1 = ~overflows_M1 if takes_M1 is None else takes_M1 & ~overflows_M1
                norm = norm.masked_fill(overflows_M1, 0.0)
            self._norms.add_(norm)
            self._counted.add_(1 if overflows_M1 is None else ~overflows_M1)
            grad = grad * ((norm + 1e-6).reciprocal_() * settings.max_norm).clamp_(max=1.0)
            if "steps" in self.state:
                self.state["steps"].add_(1 if takes_M1 is None else takes_M1)
            if self._warmup:
                share_M1 = ((self.state["steps"] - 0.5) / self._warmup).clamp_(max=1.0)
                settings = settings.scaled(share_M1 if fossil_M1 is None else share_M1.masked_fill(fossil_M1, 1.0))
            self.update(grad, settings, takes_M1)
        self.flat.grad = None
        return overflows_M1

    def update(self, grad: Tensor, settings: StepSettings, takes_M1: Tensor | None) -> None:
        """Update parameters and state in place.

        Args:
            grad: clipped gradient `[M, P]`, which may be overwritten.
        """
        raise TypeError(f"{type(self).__name__} does not define update(grad, settings, takes_M1)")

    def forget(self, members: Sequence[int]) -> None:
        """Zero the state of these rows."""
        for rows in self.state.values():
            for member in members:  # one by one: indexing with a list would make the CPU wait for a GPU
                rows[member].zero_()

    def take_norms(self) -> Tensor:
        """Return the mean gradient norm of each row before clipping, over the steps since the last call `[M]`.

        NaN without steps, infinite where a gradient is not finite. Steps that were skipped for an overflow do not count.
        """
        norms = torch.where(self._norms.isnan(), torch.inf, self._norms)
        mean = (norms / self._counted).squeeze(1)
        self._norms.zero_()
        self._counted.zero_()
        return mean
