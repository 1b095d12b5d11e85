"""Seeds for image features `[B, C, H, W]`."""

from dataclasses import dataclass

from torch import Tensor, nn

from esper.population.blueprints.base import BlueprintConfig, num_groups
from esper.population.fusion import ChannelScale


def _zero(layer: nn.Conv2d) -> nn.Conv2d:
    """The last map of a branch: born as nothing."""
    nn.init.zeros_(layer.weight)
    return layer


def _check_kernel(name: str, kernel: int) -> None:
    if kernel < 1 or kernel % 2 == 0:
        raise ValueError(f"blueprint.{name}.kernel must be odd and at least 1, got {kernel}: use 3 or 5")


class NormBranch(nn.Module):
    """delta(x) = s * (GN(x) - x) with one factor s a channel, born as zero."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(num_groups(channels), channels)
        self.scale = ChannelScale(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(self.norm(x) - x)


@dataclass(kw_only=True, slots=True)
class NormConfig(BlueprintConfig):
    """Moves the features towards their group-normalised form: the cheapest seed, without spatial context."""

    def branch(self, channels: int) -> nn.Module:
        return NormBranch(channels)

    def num_parameters(self, channels: int) -> int:
        return 3 * channels


@dataclass(kw_only=True, slots=True)
class ConvLightConfig(BlueprintConfig):
    """One convolution over space, then a map of the channels: conv, group norm, ReLU, 1x1 conv."""

    kernel: int = 3
    """Height and width of the convolution [pixels], odd. Larger sees further and costs its square."""

    def __post_init__(self) -> None:
        _check_kernel("conv_light", self.kernel)

    def branch(self, channels: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, channels, self.kernel, padding=self.kernel // 2, bias=False),
            nn.GroupNorm(num_groups(channels), channels),
            nn.ReLU(),
            _zero(nn.Conv2d(channels, channels, 1, bias=False)),
        )

    def num_parameters(self, channels: int) -> int:
        return (self.kernel**2 + 1) * channels**2 + 2 * channels


@dataclass(kw_only=True, slots=True)
class DepthwiseConfig(BlueprintConfig):
    """One small kernel for each channel alone, then a map of the channels: far fewer parameters than `conv_light`."""

    kernel: int = 3
    """Height and width of the kernels [pixels], odd. Larger sees further."""

    def __post_init__(self) -> None:
        _check_kernel("depthwise", self.kernel)

    def branch(self, channels: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, channels, self.kernel, padding=self.kernel // 2, groups=channels, bias=False),
            nn.GroupNorm(num_groups(channels), channels),
            nn.ReLU(),
            _zero(nn.Conv2d(channels, channels, 1, bias=False)),
        )

    def num_parameters(self, channels: int) -> int:
        return channels**2 + (self.kernel**2 + 2) * channels


@dataclass(kw_only=True, slots=True)
class ConvHeavyConfig(BlueprintConfig):
    """Two convolutions over space, then a map of the channels: the strongest seed and the dearest."""

    kernel: int = 3
    """Height and width of both convolutions [pixels], odd. Larger sees further and costs its square."""

    def __post_init__(self) -> None:
        _check_kernel("conv_heavy", self.kernel)

    def branch(self, channels: int) -> nn.Module:
        layers: list[nn.Module] = []
        for _ in range(2):
            layers += [
                nn.Conv2d(channels, channels, self.kernel, padding=self.kernel // 2, bias=False),
                nn.GroupNorm(num_groups(channels), channels),
                nn.ReLU(),
            ]
        return nn.Sequential(*layers, _zero(nn.Conv2d(channels, channels, 1, bias=False)))

    def num_parameters(self, channels: int) -> int:
        return (2 * self.kernel**2 + 1) * channels**2 + 4 * channels
