"""Lion (Chen et al. 2023, arXiv:2302.06675): the sign of a momentum, so that every parameter moves by the same amount."""

# M members, P parameters of one member

from dataclasses import dataclass

import torch

from esper.optimisers.base import MemberOptimiser, OptimiserConfig
from esper.ranges import check_ranges


@dataclass(kw_only=True, slots=True)
class LionConfig(OptimiserConfig):
    """Signs of a momentum."""

    learning_rate: float = 0.003
    keep: float = 0.99
    """Share of the momentum that is kept from step to step, in [0, 1). Higher: smoother."""
    mix: float = 0.9
    """Share of the momentum in a step, in [0, 1]; the rest is the gradient. Higher: slower to turn."""

    def __post_init__(self):
        OptimiserConfig.__post_init__(self)
        check_ranges("optimiser", self, {"[0, 1)": ["keep"], "[0, 1]": ["mix"]})

    def build(self, flat, warmup_batches=0):
        return MemberLion(flat, self.keep, self.mix, warmup_batches)


class MemberLion(MemberOptimiser):
    """Lion on the rows of a tensor [M, P]; the clipped gradient of each row comes from the base class."""

    def __init__(self, flat, keep, mix, warmup_batches):
        super().__init__(flat, ["momentum"], warmup_batches=warmup_batches)
        self.keep, self.mix = keep, mix

    def update(self, grad, settings, takes_M1):
        momentum = self.state["momentum"]
        sign = torch.lerp(grad, momentum, self.mix).sign()
        change, later = (sign + self.flat * settings.weight_decay) * settings.learning_rate, torch.lerp(grad, momentum, self.keep)
        if takes_M1 is not None:  # other rows keep parameters and state
            change, later = torch.where(takes_M1, change, 0.0), torch.where(takes_M1, later, momentum)
        self.flat.sub_(change)
        momentum.copy_(later)
