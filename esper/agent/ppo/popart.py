"""PopArt: normalised value targets, with the critic's last layer rescaled so that its predictions do not change."""

import torch
from torch import Tensor, nn

MIN_DEVIATION = 1e-2
"""Lower bound of the deviation [reward]."""


class PopArt(nn.Module):
    """Running mean and deviation of value targets (van Hasselt et al. 2016, arXiv:1602.07714).

    When the statistics change, the last layer of the critic is rescaled so that its denormalised outputs do not:
    w <- w * old deviation / new deviation,   b <- (old deviation * b + old mean - new mean) / new deviation.
    """

    moments: Tensor
    """Running means of the targets and of their squares, initially 0; dividing by `weight` corrects the bias towards 0."""
    weight: Tensor
    """Total weight of the targets so far, in [0, 1]."""

    def __init__(self, *, step: float) -> None:
        """Start with mean 0 and deviation 1.

        Args:
            step: weight of the newest targets, in [0, 1]; 0 leaves the targets unscaled.
        """
        super().__init__()
        self.step = step
        self.register_buffer("moments", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("weight", torch.zeros((), dtype=torch.float64))

    @property
    def mean(self) -> Tensor:
        """Mean of the targets [reward]."""
        return self.moments[0] / self.weight.clamp(min=1e-12)

    @property
    def deviation(self) -> Tensor:
        """Standard deviation of the targets [reward]; 1 before the first update."""
        if self.weight == 0:
            return torch.ones((), dtype=torch.float64)
        return (self.moments[1] / self.weight - self.mean.square()).clamp(min=0).sqrt().clamp(min=MIN_DEVIATION)

    def normalize(self, values: Tensor) -> Tensor:
        """Convert rewards to the critic's scale."""
        return ((values - self.mean) / self.deviation).to(values.dtype)

    def denormalize(self, values: Tensor) -> Tensor:
        """Convert the critic's scale to rewards."""
        return (values * self.deviation + self.mean).to(values.dtype)

    @torch.no_grad()
    def update(self, targets: Tensor, layer: nn.Linear) -> None:
        """Move the statistics towards new targets and rescale the layer whose outputs they normalise."""
        mean, deviation = self.mean, self.deviation
        targets = targets.double()
        self.moments.lerp_(torch.stack([targets.mean(), targets.square().mean()]), self.step)
        self.weight.lerp_(torch.ones_like(self.weight), self.step)
        layer.weight.copy_(layer.weight.double() * (deviation / self.deviation))
        layer.bias.copy_((deviation * layer.bias.double() + mean - self.mean) / self.deviation)
