"""Seeds live in banks: one bank a (slot, blueprint), with a row for each member, of which some hold a live seed.

Germinating member i writes row i, parameters and optimiser state together; clearing zeroes it. Which rows are alive is data, so
the program never changes its shape under the controller, and only live rows are computed.
"""

# M members, L live members, P parameters of one member

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.population.blueprints import BlueprintConfig
from esper.population.fusion import Fleet, FusionError, flatten_parameters
from esper.population.layout import join_members, split_members


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


class MemberSGD:
    """SGD with momentum on the rows of a flat tensor `[M, P]`, each row clipped by its own gradient norm.

    The same update as `clip_grad_norm_` and `torch.optim.SGD` on each member alone.
    """

    def __init__(self, flat: Tensor, config: SGDConfig) -> None:
        self.flat, self.config = flat, config
        self.momentum = torch.zeros_like(flat, requires_grad=False)

    def step(self, active_M1: Tensor | None = None) -> None:
        """One update from `flat.grad`, which is then dropped.

        Args:
            active_M1: bool `[M, 1]`; other rows keep parameters and momentum as they are. None: every row moves, and a row
                without gradient, momentum and weight decay stays where it is.
        """
        grad, config = self.flat.grad, self.config
        if grad is None:
            return
        with torch.no_grad():
            norm = torch.linalg.vector_norm(grad, dim=1, keepdim=True)
            grad = grad * (config.max_norm / (norm + 1e-6)).clamp_(max=1.0)
            if config.weight_decay:
                grad.add_(self.flat, alpha=config.weight_decay)
            if active_M1 is None:
                self.momentum.mul_(config.momentum).add_(grad)
                self.flat.sub_(self.momentum, alpha=config.learning_rate)
            else:
                self.momentum.copy_(torch.where(active_M1, self.momentum * config.momentum + grad, self.momentum))
                self.flat.sub_(torch.where(active_M1, self.momentum * config.learning_rate, 0.0))
        self.flat.grad = None


class SeedBank:
    """All seeds of one blueprint in one slot."""

    def __init__(
        self, blueprint: BlueprintConfig, channels: int, members: int, optimiser: SGDConfig, device: torch.device | str
    ) -> None:
        self.blueprint, self.channels = blueprint, channels
        branch = blueprint.branch(channels)
        if any(True for _ in branch.buffers()):
            raise FusionError(
                f"a branch of {type(blueprint).__name__} has buffers, which a bank does not keep: "
                "use GroupNorm instead of BatchNorm"
            )
        self.fleet = Fleet([branch] * members, device)
        with torch.no_grad():
            self.fleet.flat.zero_()
        self.optimiser = MemberSGD(self.fleet.flat, optimiser)

    def plant(self, member: int, generator: torch.Generator) -> None:
        """Writes a newborn seed into a row: first weights from the generator, optimiser state from nothing."""
        row = newborn(self.blueprint, self.channels, generator)
        with torch.no_grad():
            self.fleet.flat[member] = row.to(self.fleet.flat.device)
            self.optimiser.momentum[member] = 0.0

    def clear(self, members: Sequence[int]) -> None:
        """Empties rows, parameters and optimiser state together."""
        with torch.no_grad():
            self.fleet.flat[list(members)] = 0.0
            self.optimiser.momentum[list(members)] = 0.0

    def delta(self, live_L: Tensor, x: Tensor) -> Tensor:
        """Outputs of the live members' branches for their features `[B, L*C, ...]`.

        One live row beside empty ones is computed twice: an ungrouped convolution may round in another way than a grouped one,
        and the numbers of a member must not depend on whether others hold a seed.
        """
        rows = self.fleet.flat if len(live_L) == self.fleet.members else self.fleet.flat.index_select(0, live_L)
        if len(live_L) == 1 < self.fleet.members:
            return split_members(self.fleet.bind(rows.expand(2, -1))(join_members([x, x])), [1, 1])[0]
        return self.fleet.bind(rows)(x)


def newborn(blueprint: BlueprintConfig, channels: int, generator: torch.Generator) -> Tensor:
    """The parameters `[P]` of a new branch, drawn from the generator and from nothing else."""
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(generator.get_state())
        return flatten_parameters(blueprint.branch(channels))
