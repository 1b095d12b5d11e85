"""Stochastic gradient descent with momentum, plain or in Nesterov's form."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from esper.optimisers.base import MemberOptimiser, OptimiserConfig, StepSettings
from esper.ranges import check_ranges


@dataclass(kw_only=True, slots=True)
class SGDConfig(OptimiserConfig):
    """Stochastic gradient descent with momentum."""

    nesterov: ClassVar[bool] = False

    weight_decay: float = 5e-4
    momentum: float = 0.9
    """Momentum factor, the share of the last step that is kept, in [0, 1). Higher: smoother."""

    def __post_init__(self) -> None:
        OptimiserConfig.__post_init__(self)
        check_ranges("optimiser", self, {"[0, 1)": ["momentum"]})

    def build(self, flat: Tensor, warmup_batches: int = 0) -> "MemberSGD":
        return MemberSGD(flat, self.momentum, nesterov=self.nesterov, warmup_batches=warmup_batches)


@dataclass(kw_only=True, slots=True)
class NesterovConfig(SGDConfig):
    """Stochastic gradient descent with Nesterov momentum."""

    nesterov: ClassVar[bool] = True


class MemberSGD(MemberOptimiser):
    """SGD with momentum; weight decay is added to the clipped gradient, as in `torch.optim.SGD`."""

    def __init__(self, flat: Tensor, momentum: float, *, nesterov: bool = False, warmup_batches: int = 0) -> None:
        MemberOptimiser.__init__(self, flat, ["momentum"], warmup_batches=warmup_batches)
        self._keeps, self._nesterov = momentum, nesterov

    def update(self, grad: Tensor, settings: StepSettings, takes_M1: Tensor | None) -> None:
        momentum = self.state["momentum"]
        if isinstance(settings.weight_decay, Tensor) or settings.weight_decay:
            grad.add_(self.flat * settings.weight_decay)
        if takes_M1 is None:
            momentum.mul_(self._keeps).add_(grad)
        else:
            momentum.copy_(torch.where(takes_M1, momentum * self._keeps + grad, momentum))
        change = (grad.add_(momentum, alpha=self._keeps) if self._nesterov else momentum) * settings.learning_rate
        self.flat.sub_(change if takes_M1 is None else torch.where(takes_M1, change, 0.0))
