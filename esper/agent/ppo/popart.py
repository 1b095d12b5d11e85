"""PopArt: the critic learns in a scale in which its targets are of order one, and keeps what it knew when the scale moves.

And `Moments`, by which rewards are scaled before anybody learns from them, where that is asked for.
"""

# T steps, N hosts

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn


class PopArt(nn.Module):
    """Running mean and deviation of value targets (van Hasselt et al. 2016, arXiv:1602.07714).

    When the statistics move, the last layer of the critic is rescaled so that its un-normalised outputs stay as they are:
    w <- w * old deviation / new deviation,   b <- (old deviation * b + old mean - new mean) / new deviation.
    """

    moments: Tensor
    """Running means of the targets and of their squares, which start at 0; divided by `weight` they are right at once."""
    weight: Tensor
    """Total weight of the targets so far, in [0, 1)."""

    def __init__(self, *, step: float, min_deviation: float = 1e-2) -> None:
        """Mean 0 and deviation 1 before anything was seen.

        Args:
            step: weight of the newest targets, in [0, 1]; with 0 the scale stays that of the targets.
            min_deviation: the deviation never goes below it [reward].
        """
        super().__init__()
        self.step, self.min_deviation = step, min_deviation
        self.register_buffer("moments", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("weight", torch.zeros((), dtype=torch.float64))

    @property
    def mean(self) -> Tensor:
        """Mean of the targets [reward]."""
        return self.moments[0] / self.weight.clamp(min=1e-12)

    @property
    def deviation(self) -> Tensor:
        """Their standard deviation [reward]; 1 before the first update."""
        if self.weight == 0:
            return torch.ones((), dtype=torch.float64)
        return (self.moments[1] / self.weight - self.mean.square()).clamp(min=0).sqrt().clamp(min=self.min_deviation)

    def normalize(self, values: Tensor) -> Tensor:
        """From rewards to the critic's scale."""
        return ((values - self.mean) / self.deviation).to(values.dtype)

    def denormalize(self, values: Tensor) -> Tensor:
        """From the critic's scale to rewards."""
        return (values * self.deviation + self.mean).to(values.dtype)

    @torch.no_grad()
    def rescale(self, factor: float, layer: nn.Linear) -> None:
        """All rewards are this many times as large from now on, and so are the un-normalised outputs of the layer.

        Mostly the statistics say so alone. The layer does where there are none, or a deviation is as small as it may be.
        """
        mean, deviation = factor * self.mean, factor * self.deviation
        self.moments.mul_(torch.tensor([factor, factor**2], dtype=torch.float64))
        self._keep(layer, mean, deviation)

    @torch.no_grad()
    def update(self, targets: Tensor, layer: nn.Linear) -> None:
        """Moves the statistics towards those of new targets, and rescales the layer whose outputs they normalise."""
        mean, deviation = self.mean, self.deviation
        targets = targets.double()
        self.moments.lerp_(torch.stack([targets.mean(), targets.square().mean()]), self.step)
        self.weight.lerp_(torch.ones_like(self.weight), self.step)
        self._keep(layer, mean, deviation)

    def _keep(self, layer: nn.Linear, mean: Tensor, deviation: Tensor) -> None:
        """Rescales a layer, so that what it says now in this mean and deviation, it says in the present ones."""
        layer.weight.copy_(layer.weight.double() * (deviation / self.deviation))
        layer.bias.copy_((deviation * layer.bias.double() + mean - self.mean) / self.deviation)


class Moments(NamedTuple):
    """Count, mean and sum of squared deviations of numbers, in double precision; two of them merge into that of all numbers."""

    num: int = 0
    mean: float = 0.0
    square: float = 0.0

    @staticmethod
    def of(values: Tensor) -> "Moments":
        """Those of some numbers."""
        values = values.double()
        mean = values.mean() if values.numel() else torch.zeros((), dtype=torch.float64)
        return Moments(values.numel(), float(mean), float((values - mean).square().sum()))

    def merged(self, other: "Moments") -> "Moments":
        """Those of the numbers of both (Chan, Golub, LeVeque 1979)."""
        num = self.num + other.num
        if num == 0:
            return self
        step = other.mean - self.mean
        square = self.square + other.square + step**2 * self.num * other.num / num
        return Moments(num, self.mean + step * other.num / num, square)

    def deviation(self, least: float = 1e-2) -> float:
        """Standard deviation of all numbers, no less than `least`; 1 where there are fewer than two."""
        return max(math.sqrt(self.square / self.num), least) if self.num > 1 else 1.0


def discounted_sums(reward_TN: Tensor, ends_TN: Tensor, *, gamma: float) -> Tensor:
    """What was paid so far in each (sub-)episode, older rewards discounted, S_t = r_t + gamma * S_{t-1}: `[T, N]` in float64.

    Their deviation is the scale of rewards of Engstrom et al. 2020 (arXiv:2005.12729).

    Args:
        ends_TN: the (sub-)episode ended with step t.
    """
    assert reward_TN.shape == ends_TN.shape
    sums, sum_N = [], torch.zeros_like(reward_TN[0], dtype=torch.float64)
    for reward_N, ends_N in zip(reward_TN.double(), ends_TN, strict=True):
        sum_N = reward_N + gamma * sum_N
        sums.append(sum_N)
        sum_N = torch.where(ends_N, 0.0, sum_N)
    return torch.stack(sums)
