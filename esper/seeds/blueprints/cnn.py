"""Seeds for image features `[B, C, H, W]`."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from esper.fusion.layout import Layout
from esper.hosts.base import SlotSpec
from esper.seeds.blueprints.base import MapConfig, born_as_zero, num_groups


def _check_kernel(name: str, kernel: int) -> None:
    if kernel < 1 or kernel % 2 == 0:
        raise ValueError(f"blueprint.{name}.kernel must be odd and at least 1, got {kernel}: use 3 or 5")


@dataclass(kw_only=True, slots=True)
class ConvLightConfig(MapConfig):
    """A spatial convolution: conv, group norm, ReLU, 1x1 conv."""

    layouts: ClassVar[tuple[Layout, ...]] = (Layout.IMAGES,)
    kernel: int = 3
    """Height and width of the convolution [pixels], odd. Larger: more context, at quadratic cost."""

    def __post_init__(self) -> None:
        _check_kernel("conv_light", self.kernel)

    def branch(self, slot: SlotSpec) -> nn.Module:
        channels = slot.channels
        return nn.Sequential(
            nn.Conv2d(channels, channels, self.kernel, padding=self.kernel // 2, bias=False),
            nn.GroupNorm(num_groups(channels), channels),
            nn.ReLU(),
            born_as_zero(nn.Conv2d(channels, channels, 1, bias=False)),
        )


@dataclass(kw_only=True, slots=True)
class DepthwiseConfig(MapConfig):
    """A depthwise convolution and a 1x1 convolution: far fewer parameters than `conv_light`."""

    layouts: ClassVar[tuple[Layout, ...]] = (Layout.IMAGES,)
    kernel: int = 3
    """Height and width of the kernels [pixels], odd. Larger: more context."""

    def __post_init__(self) -> None:
        _check_kernel("depthwise", self.kernel)

    def branch(self, slot: SlotSpec) -> nn.Module:
        channels = slot.channels
        return nn.Sequential(
            nn.Conv2d(channels, channels, self.kernel, padding=self.kernel // 2, groups=channels, bias=False),
            nn.GroupNorm(num_groups(channels), channels),
            nn.ReLU(),
            born_as_zero(nn.Conv2d(channels, channels, 1, bias=False)),
        )


@dataclass(kw_only=True, slots=True)
class ConvHeavyConfig(MapConfig):
    """Two spatial convolutions and a 1x1 convolution: the strongest and costliest seed."""

    layouts: ClassVar[tuple[Layout, ...]] = (Layout.IMAGES,)
    kernel: int = 3
    """Height and width of both convolutions [pixels], odd. Larger: more context, at quadratic cost."""

    def __post_init__(self) -> None:
        _check_kernel("conv_heavy", self.kernel)

    def branch(self, slot: SlotSpec) -> nn.Module:
        channels = slot.channels
        layers: list[nn.Module] = []
        for _ in range(2):
            layers += [
                nn.Conv2d(channels, channels, self.kernel, padding=self.kernel // 2, bias=False),
                nn.GroupNorm(num_groups(channels), channels),
                nn.ReLU(),
            ]
        return nn.Sequential(*layers, born_as_zero(nn.Conv2d(channels, channels, 1, bias=False)))


@dataclass(kw_only=True, slots=True)
class ConvSmallConfig(MapConfig):
    """A hidden layer without spatial context: 1x1 conv, group norm, ReLU, 1x1 conv."""

    layouts: ClassVar[tuple[Layout, ...]] = (Layout.IMAGES,)

    def branch(self, slot: SlotSpec) -> nn.Module:
        channels = slot.channels
        return nn.Sequential(
            nn.Conv2d(channels, channels, 1, bias=False),
            nn.GroupNorm(num_groups(channels), channels),
            nn.ReLU(),
            born_as_zero(nn.Conv2d(channels, channels, 1, bias=False)),
        )


@dataclass(kw_only=True, slots=True)
class BottleneckConfig(MapConfig):
    """A spatial convolution between two 1x1 convolutions on fewer channels: cheaper than `conv_light` on wide slots."""

    layouts: ClassVar[tuple[Layout, ...]] = (Layout.IMAGES,)
    kernel: int = 3
    """Height and width of the convolution [pixels], odd. Larger: more context, at quadratic cost."""
    reduction: int = 4
    """Divisor of the channels of the convolution, which has at least 8; at least 1. Higher: smaller."""

    def __post_init__(self) -> None:
        _check_kernel("bottleneck", self.kernel)
        if self.reduction < 1:
            raise ValueError(f"blueprint.bottleneck.reduction must be at least 1, got {self.reduction}")

    def branch(self, slot: SlotSpec) -> nn.Module:
        channels, hidden = slot.channels, self._hidden(slot)
        return nn.Sequential(
            nn.Conv2d(channels, hidden, 1, bias=False),
            nn.ReLU(),
            nn.Conv2d(hidden, hidden, self.kernel, padding=self.kernel // 2, bias=False),
            nn.GroupNorm(num_groups(hidden), hidden),
            nn.ReLU(),
            born_as_zero(nn.Conv2d(hidden, channels, 1, bias=False)),
        )

    def _hidden(self, slot: SlotSpec) -> int:
        return max(8, slot.channels // self.reduction)
