"""Seeds live in banks: one bank a (slot, blueprint), with a row for each member, of which some hold a live seed.

Germinating member i writes row i, parameters and optimiser state together; clearing zeroes it. Which rows are alive is data, so
the program never changes its shape under the controller, and only live rows are computed.
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
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.errors import seed_errors
from esper.seeds.gated import Gated
from esper.seeds.informed import inform
from esper.seeds.slot_gradients import SlotGradients


@dataclass(kw_only=True, slots=True)
class SGDConfig:
    """Stochastic gradient descent with momentum, for each member on its own."""

    learning_rate: float = 0.05
    """Step size, above 0. Larger learns faster until it diverges."""
    momentum: float = 0.9
    """Share of the last step that goes on, in [0, 1)."""
    weight_decay: float = 0.0
    """Pull of every parameter towards 0 [1 / step], at least 0."""
    max_norm: float = 1.0
    """A member's gradient is scaled down to at most this norm, above 0. Hosts and seeds have budgets of their own."""

    def check(self, where: str) -> None:
        """Raises ValueError in the words of the command line; `where` is the key of this config."""
        if not self.learning_rate > 0:
            raise ValueError(f"{where}.learning_rate must be above 0, got {self.learning_rate}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"{where}.momentum must be in [0, 1), got {self.momentum}")
        if not self.weight_decay >= 0:
            raise ValueError(f"{where}.weight_decay must be at least 0, got {self.weight_decay}")
        if not self.max_norm > 0:
            raise ValueError(f"{where}.max_norm must be above 0, got {self.max_norm}: use inf for no clipping")


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSettings:
    """The settings of `SGDConfig` for each row on its own, each `[M, 1]`."""

    learning_rate: Tensor
    momentum: Tensor
    weight_decay: Tensor
    max_norm: Tensor

    @classmethod
    def of(cls, config_M: Sequence[SGDConfig], like: Tensor) -> "RowSettings":
        """Those of one config a row, on the device and in the type of `like`."""
        return cls(**{name: like.new_tensor([[getattr(config, name)] for config in config_M]) for name in cls.__slots__})

    def faster(self, rate_M1: Tensor) -> "RowSettings":
        """The same with each row's learning rate times a factor."""
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
        """One update from `flat.grad`, which is then dropped. A row's numbers do not depend on whether others have settings.

        Args:
            active_M1: bool `[M, 1]`; other rows keep parameters and momentum as they are. None: every row moves, and a row
                without gradient, momentum and weight decay stays where it is.
            settings: of each row, in place of the config.
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
        """Mean gradient norm of each row before clipping, over the steps since the last call `[M]`.

        NaN where there were no steps, infinite where a gradient was not finite.
        """
        mean = (self._norms / self._steps if self._steps else torch.full_like(self._norms, torch.nan)).squeeze(1)
        mean = torch.where(mean.isnan(), torch.inf, mean) if self._steps else mean
        self._norms.zero_()
        self._steps = 0
        return mean


class SeedBank:
    """All seeds of one blueprint in one slot, with a gate each where the bank is gated."""

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

    def plant(self, member: int, generator: torch.Generator, felt: SlotGradients | None = None) -> None:
        """Writes a newborn seed into a row: first weights from the generator, optimiser state from nothing.

        Args:
            felt: what the slot of this member felt, `[1, n, ...]`: filters are made from it. None: all weights are drawn.
        """
        row = newborn(self.blueprint, self.slot, generator, gated=self.gated)
        if felt is not None:
            row = informed(self.blueprint, self.slot, row, felt)
        with torch.no_grad():
            self.fleet.flat[member] = row.to(self.fleet.flat.device)
            self.optimiser.momentum[member] = 0.0

    def clear(self, members: Sequence[int]) -> None:
        """Empties rows, parameters and optimiser state together."""
        with torch.no_grad():
            self.fleet.flat[list(members)] = 0.0
            self.optimiser.momentum[list(members)] = 0.0

    def delta(self, live_L: Tensor, x: Tensor, taught_L1: Tensor | None = None, *, learns: bool = True) -> Tensor:
        """What the live members' seeds make of their features, in the layout of `x`: delta(x), or g(x) * delta(x) with a gate.

        One live row beside empty ones is computed twice: an ungrouped convolution may round in another way than a grouped one,
        and the numbers of a member must not depend on whether others hold a seed.

        Args:
            live_L: rows of the bank, in the order of the features.
            x: features of L members.
            taught_L1: bool `[L, 1]`; rows whose parameters get a gradient. None: all.
            learns: without it, no parameter gets one.

        Raises:
            SeedError: the branch raised an error.
        """
        flat = self.fleet.flat if learns else self.fleet.flat.detach()
        rows = flat if len(live_L) == self.fleet.members else flat.index_select(0, live_L)
        if taught_L1 is not None:
            rows = torch.where(taught_L1, rows, rows.detach())
        with seed_errors(self.blueprint, self.slot, live_L):
            if len(live_L) == 1 < self.fleet.members:
                return split_members(self.fleet.bind(rows.expand(2, -1))(join_members([x, x])), [1, 1])[0]
            return self.fleet.bind(rows)(x)


def seed_module(blueprint: BlueprintConfig, slot: SlotSpec, *, gated: bool) -> nn.Module:
    """The module of a seed: the blueprint's branch, with a gate where wanted."""
    branch = blueprint.branch(slot)
    return Gated(branch, slot.channels) if gated else branch


def newborn(blueprint: BlueprintConfig, slot: SlotSpec, generator: torch.Generator, *, gated: bool = False) -> Tensor:
    """The parameters `[P]` of a new seed, drawn from the generator and from nothing else; the branch first, then its gate."""
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(generator.get_state())
        return flatten_parameters(seed_module(blueprint, slot, gated=gated))


def informed(blueprint: BlueprintConfig, slot: SlotSpec, row: Tensor, felt: SlotGradients) -> Tensor:
    """The same parameters `[P]` with filters made from what the slot felt, see `inform`."""
    with torch.random.fork_rng(devices=[]):
        branch = blueprint.branch(slot)
    size = sum(parameter.numel() for parameter in branch.parameters())
    nn.utils.vector_to_parameters(row[:size].clone(), branch.parameters())
    inform(branch, felt)
    return torch.cat([flatten_parameters(branch), row[size:]])
