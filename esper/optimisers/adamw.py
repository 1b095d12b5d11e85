"""AdamW: Adam with decoupled weight decay (Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from esper.optimisers.base import MemberOptimiser, OptimiserConfig, StepSettings
from esper.ranges import check_ranges


@dataclass(kw_only=True, slots=True)
class AdamWConfig(OptimiserConfig):
    """Adam with decoupled weight decay. The bias correction of a seed counts its own steps."""

    tensors: ClassVar[int] = 2

    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    beta1: float = 0.9
    """Decay rate of the running mean of gradients, in [0, 1). Higher: smoother."""
    beta2: float = 0.999
    """Decay rate of the running mean of squared gradients, in [0, 1). Higher: steadier steps, slower to adapt."""
    eps: float = 1e-8
    """Term added to the root of the mean squared gradient, above 0. Higher: smaller steps where gradients are small."""

    def __post_init__(self) -> None:
        OptimiserConfig.__post_init__(self)
        check_ranges("optimiser", self, {"[0, 1)": ["beta1", "beta2"], "(0, inf)": ["eps"]})

    def build(self, flat: Tensor, warmup_batches: int = 0) -> "MemberAdamW":
        return MemberAdamW(flat, (self.beta1, self.beta2), self.eps, warmup_batches=warmup_batches)


class MemberAdamW(MemberOptimiser):
    """AdamW with a bias correction of each row's own."""

    def __init__(self, flat: Tensor, betas: tuple[float, float], eps: float, *, warmup_batches: int = 0) -> None:
        MemberOptimiser.__init__(self, flat, ["mean", "square"], counts=True, warmup_batches=warmup_batches)
        self._betas, self._eps = betas, eps
        self._logs = [math.log(beta) if beta else -math.inf for beta in betas]

    def update(self, grad: Tensor, settings: StepSettings, takes_M1: Tensor | None) -> None:
        for name, beta, new in zip(("mean", "square"), self._betas, (grad, grad * grad), strict=True):
            kept = self.state[name]
            moved = kept * beta + new * (1.0 - beta)
            kept.copy_(moved if takes_M1 is None else torch.where(takes_M1, moved, kept))
        # 1 - beta**steps, without the loss of digits where beta is close to 1.
        mean_bias, square_bias = (-torch.expm1(self.state["steps"] * log) for log in self._logs)
        size = (self.state["square"] / square_bias).sqrt_().add_(self._eps)
        change = (self.state["mean"] / mean_bias / size + self.flat * settings.weight_decay) * settings.learning_rate
        self.flat.sub_(change if takes_M1 is None else torch.where(takes_M1, change, 0.0))
