"""Banks of seeds: one bank per (slot, blueprint), with a row for each member; some rows hold a live seed.

Germination in member i writes row i, parameters and optimiser state together; clearing zeroes it. Which rows are live is data, so
the shape of the program is constant, and only live rows are computed.
"""

# M members, L live members, P parameters of one member

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from esper.fusion.fuse import Fleet, flatten_parameters
from esper.fusion.layout import join_members, split_members
from esper.fusion.stacked import FusionError
from esper.hosts.base import SlotSpec
from esper.ranges import check_ranges
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.errors import seed_errors
from esper.seeds.gated import Gated
from esper.seeds.informed import inform
from esper.seeds.slot_gradients import SlotGradients


@dataclass(kw_only=True, slots=True)
class SGDConfig:
    """Stochastic gradient descent with momentum, separate for each member."""

    learning_rate: float = 0.05
    """Step size, > 0. Higher: faster, until training diverges."""
    momentum: float = 0.9
    """Share of the last step that is kept, in [0, 1). Higher: smoother."""
    weight_decay: float = 0.0
    """Decay of every parameter towards 0 [1 / step], >= 0. Higher: smaller weights."""
    max_norm: float = 1.0
    """Maximum gradient norm of a member, > 0; larger ones are scaled down, hosts and seeds separately; inf sets no limit."""

    def check(self, where: str) -> None:
        """Raise ValueError for values out of range; `where` is the key of this config on the command line."""
        ranges = {"(0, inf]": ["max_norm"], "(0, inf)": ["learning_rate"], "[0, 1)": ["momentum"], "[0, inf)": ["weight_decay"]}
        check_ranges(where, self, ranges)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSettings:
    """The settings of `SGDConfig` for each row, `[M, 1]` each."""

    learning_rate: Tensor
    momentum: Tensor
    weight_decay: Tensor
    max_norm: Tensor

    @classmethod
    def of(cls, config_M: Sequence[SGDConfig], like: Tensor) -> "RowSettings":
        """Return the settings of one config per row, with the device and dtype of `like`."""
        return cls(**{name: like.new_tensor([[getattr(config, name)] for config in config_M]) for name in cls.__slots__})

    def faster(self, rate_M1: Tensor) -> "RowSettings":
        """Return the settings with each row's learning rate times a factor."""
        return replace(self, learning_rate=self.learning_rate * rate_M1)


class MemberSGD:
    """SGD with momentum on the rows of a flat tensor `[M, P]`, each row clipped by its own gradient norm.

    The same update as `clip_grad_norm_` and `torch.optim.SGD` on each member alone.

    Args:
        rate_M1: factor of each row's learning rate `[M, 1]`; None is 1 for all.
    """

    def __init__(self, flat: Tensor, config: SGDConfig, rate_M1: Tensor | None = None) -> None:
        self.flat, self.config = flat, config
        self.momentum = torch.zeros_like(flat, requires_grad=False)
        self.settings = None if rate_M1 is None else RowSettings.of([config] * len(flat), flat.detach()).faster(rate_M1)
        self._norms, self._steps = torch.zeros_like(self.momentum[:, :1]), 0

    def step(self, active_M1: Tensor | None = None, settings: RowSettings | None = None) -> None:
        """Take one step from `flat.grad`, which is then dropped. A row's numbers do not depend on the settings of others.

        Args:
            active_M1: bool `[M, 1]`; other rows keep parameters and momentum. None updates every row: one without gradient,
                momentum and weight decay stays the same.
            settings: settings of each row, in place of the config.
        """
        grad, use = self.flat.grad, settings or self.settings or self.config
        if grad is None:
            return
        with torch.no_grad():
            norm = torch.linalg.vector_norm(grad, dim=1, keepdim=True)
            self._norms.add_(norm)
            self._steps += 1
            grad = grad * (use.max_norm / (norm + 1e-6)).clamp_(max=1.0)
            if isinstance(use, RowSettings) or use.weight_decay:
                grad.add_(self.flat * use.weight_decay)
            if active_M1 is None:
                self.momentum.mul_(use.momentum).add_(grad)
                self.flat.sub_(self.momentum * use.learning_rate)
            else:
                self.momentum.copy_(torch.where(active_M1, self.momentum * use.momentum + grad, self.momentum))
                self.flat.sub_(torch.where(active_M1, self.momentum * use.learning_rate, 0.0))
        self.flat.grad = None

    def take_norms(self) -> Tensor:
        """Return the mean gradient norm of each row before clipping, over the steps since the last call `[M]`.

        NaN without steps, infinite where a gradient is not finite.
        """
        mean = (self._norms / self._steps if self._steps else torch.full_like(self._norms, torch.nan)).squeeze(1)
        mean = torch.where(mean.isnan(), torch.inf, mean) if self._steps else mean
        self._norms.zero_()
        self._steps = 0
        return mean


class SeedBank:
    """All seeds of one blueprint in one slot; in a gated bank each has a gate."""

    def __init__(
        self,
        blueprint: BlueprintConfig,
        slot: SlotSpec,
        members: int,
        optimiser: SGDConfig,
        device: torch.device | str,
        *,
        gated: bool = False,
        rate_M1: Tensor | None = None,
    ) -> None:
        self.blueprint, self.slot, self.gated = blueprint, slot, gated
        branch = seed_module(blueprint, slot, gated=gated)
        if any(True for _ in branch.buffers()):
            raise FusionError(
                f"a branch of {type(blueprint).__name__} has buffers, which a bank does not keep: "
                "use GroupNorm instead of BatchNorm"
            )
        self.fleet = Fleet([branch] * members, device)
        with torch.no_grad():
            self.fleet.flat.zero_()
        self.optimiser = MemberSGD(self.fleet.flat, optimiser, rate_M1)

    def plant(self, member: int, generator: torch.Generator, gradients: SlotGradients | None = None) -> None:
        """Write a newborn seed into a row: initial weights from the generator, and a zero optimiser state.

        Args:
            gradients: slot gradients of this member `[1, n, ...]`, for informed filters. None draws all weights.
        """
        row = newborn(self.blueprint, self.slot, generator, gated=self.gated)
        if gradients is not None:
            row = informed(self.blueprint, self.slot, row, gradients)
        with torch.no_grad():
            self.fleet.flat[member] = row.to(self.fleet.flat.device)
            self.optimiser.momentum[member] = 0.0

    def clear(self, members: Sequence[int]) -> None:
        """Zero rows, parameters and optimiser state together."""
        with torch.no_grad():
            self.fleet.flat[list(members)] = 0.0
            self.optimiser.momentum[list(members)] = 0.0

    def delta(self, live_L: Tensor, x: Tensor, taught_L1: Tensor | None = None, *, learns: bool = True) -> Tensor:
        """Return the deltas of the live members' seeds, in the layout of `x`: delta(x), or g(x) * delta(x) with a gate.

        A single live row of several is computed twice: an ungrouped convolution may round differently from a grouped one, and the
        numbers of a member should not depend on whether others hold a seed.

        Args:
            live_L: rows of the bank, in the order of the features.
            x: features of L members.
            taught_L1: bool `[L, 1]`, rows whose parameters get a gradient. None: all.
            learns: if false, no parameter gets a gradient.

        Raises:
            SeedError: the branch raised an error.
        """
        flat = self.fleet.flat if learns else self.fleet.flat.detach()
        rows = flat if len(live_L) == self.fleet.members else flat.index_select(0, live_L)
        if taught_L1 is not None:
            rows = torch.where(taught_L1, rows, rows.detach())
        with seed_errors(self.blueprint, self.slot):
            if len(live_L) == 1 < self.fleet.members:
                return split_members(self.fleet.bind(rows.expand(2, -1))(join_members([x, x])), [1, 1])[0]
            return self.fleet.bind(rows)(x)


def seed_module(blueprint: BlueprintConfig, slot: SlotSpec, *, gated: bool) -> nn.Module:
    """Return the module of a seed: the blueprint's branch, with a gate if `gated`."""
    branch = blueprint.branch(slot)
    return Gated(branch, slot.channels) if gated else branch


def newborn(blueprint: BlueprintConfig, slot: SlotSpec, generator: torch.Generator, *, gated: bool = False) -> Tensor:
    """Return the parameters `[P]` of a new seed, drawn from the generator alone: the branch, then its gate."""
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(generator.get_state())
        return flatten_parameters(seed_module(blueprint, slot, gated=gated))


def informed(blueprint: BlueprintConfig, slot: SlotSpec, row: Tensor, gradients: SlotGradients) -> Tensor:
    """Return the parameters `[P]` of `row` with filters from slot gradients; see `inform`."""
    with torch.random.fork_rng(devices=[]):
        branch = blueprint.branch(slot)
    size = sum(parameter.numel() for parameter in branch.parameters())
    nn.utils.vector_to_parameters(row[:size].clone(), branch.parameters())
    inform(branch, gradients)
    return torch.cat([flatten_parameters(branch), row[size:]])
