"""Standardization of features by their running mean and variance."""

# F features

import torch
from torch import Tensor, nn

LEAST_DEVIATION = 0.01
"""Lower bound of the deviation that divides a feature, so that the noise of nearly constant features is not amplified."""
LIMIT = 5.0
"""Standardized features are clipped to at most this many deviations from 0."""


class Standardization(nn.Module):
    """Subtracts from each feature the mean of all values given to `update` so far, and divides by their standard deviation.

    Before the first values it returns its input. The sums are kept in float64, in buffers that checkpoints include.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean_F", torch.zeros(features, dtype=torch.float64))
        self.register_buffer("square_F", torch.zeros(features, dtype=torch.float64))
        self.count: Tensor
        self.mean_F: Tensor
        self.square_F: Tensor
        """Sum of squared deviations from the mean."""

    @torch.no_grad()
    def update(self, values: Tensor) -> None:
        """Add values `[..., F]` to the statistics, by the update of Chan et al. 1983 (doi:10.1080/00031305.1983.10483115)."""
        rows = values.flatten(0, -2).double()
        mean_F, total = rows.mean(0), self.count + len(rows)
        shift_F = mean_F - self.mean_F
        self.square_F += (rows - mean_F).square().sum(0) + shift_F.square() * self.count * len(rows) / total
        self.mean_F += shift_F * len(rows) / total
        self.count.copy_(total)

    def forward(self, values: Tensor) -> Tensor:
        """Return the standardized values `[..., F]`, within `LIMIT` deviations."""
        deviation_F = (self.square_F / self.count.clamp(min=1)).sqrt().clamp(min=LEAST_DEVIATION)
        scaled = ((values - self.mean_F.to(values)) / deviation_F.to(values)).clamp(-LIMIT, LIMIT)
        return torch.where(self.count > 0, scaled, values)  # not a branch, which `torch.export` cannot trace
