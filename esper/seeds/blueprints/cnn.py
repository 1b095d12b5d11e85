"""Seeds for image features `[B, C, H, W]`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from esper.fusion.layout import Layout
from esper.hosts.base import SlotSpec
from esper.seeds.blueprints.base import MapConfig, born_as_zero, num_groups


def _conv(channels: int, kernel: int, groups: int = 1) -> tuple[nn.Module, ...]:
    """Return conv, group norm, ReLU."""
    conv = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=groups, bias=False)
    return conv, nn.GroupNorm(num_groups(channels), channels), nn.ReLU()


def _last(inputs: int, outputs: int) -> nn.Conv2d:
    """Return a 1x1 convolution that is initialised to zero."""
    return born_as_zero(nn.Conv2d(inputs, outputs, 1, bias=False))


@dataclass(kw_only=True, slots=True)
class ConvSmallConfig(MapConfig):
    """A hidden layer without spatial context: 1x1 conv, group norm, ReLU, 1x1 conv."""

    layouts: ClassVar[tuple[Layout, ...]] = (Layout.IMAGES,)

    def branch(self, slot: SlotSpec) -> nn.Module:
        return nn.Sequential(*_conv(slot.channels, 1), _last(slot.channels, slot.channels))


@dataclass(kw_only=True, slots=True)
class ConvLightConfig(MapConfig):
    """A spatial convolution: conv, group norm, ReLU, 1x1 conv."""

    layouts: ClassVar[tuple[Layout, ...]] = (Layout.IMAGES,)
    sizes: ClassVar[Sequence[str]] = ("kernel",)
    kernel: int = 3
    """Height and width of the convolution [pixels], odd. Larger: more context, at quadratic cost."""

    def check(self, where: str) -> None:
        MapConfig.check(self, where)
        if self.kernel % 2 == 0:
            raise ValueError(f"{where}.kernel must be odd, got {self.kernel}: use 3 or 5")

    def branch(self, slot: SlotSpec) -> nn.Module:
        return nn.Sequential(*_conv(slot.channels, self.kernel), _last(slot.channels, slot.channels))


@dataclass(kw_only=True, slots=True)
class DepthwiseConfig(ConvLightConfig):
    """A depthwise convolution and a 1x1 convolution: far fewer parameters than `conv_light`."""

    def branch(self, slot: SlotSpec) -> nn.Module:
        channels = slot.channels
        return nn.Sequential(*_conv(channels, self.kernel, groups=channels), _last(channels, channels))


@dataclass(kw_only=True, slots=True)
class ConvHeavyConfig(ConvLightConfig):
    """Two spatial convolutions and a 1x1 convolution: the strongest and costliest seed."""

    def branch(self, slot: SlotSpec) -> nn.Module:
        channels, kernel = slot.channels, self.kernel
        return nn.Sequential(*_conv(channels, kernel), *_conv(channels, kernel), _last(channels, channels))


@dataclass(kw_only=True, slots=True)
class BottleneckConfig(ConvLightConfig):
    """A spatial convolution between two 1x1 convolutions on fewer channels: cheaper than `conv_light` on wide slots."""

    sizes: ClassVar[Sequence[str]] = ("kernel", "reduction")
    reduction: int = 4
    """Reduction ratio of the convolution's channels, at least 1; at least 8 channels remain. Higher: smaller."""

    def branch(self, slot: SlotSpec) -> nn.Module:
        channels, hidden = slot.channels, max(8, slot.channels // self.reduction)
        first = nn.Conv2d(channels, hidden, 1, bias=False)
        return nn.Sequential(first, nn.ReLU(), *_conv(hidden, self.kernel), _last(hidden, channels))
