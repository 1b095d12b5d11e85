"""A seed that sees far: a dilated convolution."""

from dataclasses import dataclass

from torch import nn

from esper.fusion.layout import Layout
from esper.seeds.blueprints.base import BlueprintConfig, born_as_zero


@dataclass(kw_only=True, slots=True)
class DilatedConfig(BlueprintConfig):
    """A depthwise 3x3 convolution with gaps, ReLU, and a map of the channels."""

    layouts = (Layout.IMAGES,)
    sizes = ("dilation",)
    dilation: int = 2
    """Distance between the inputs of the convolution, at least 1 [pixels]. Higher: sees farther, less detail."""

    def branch(self, slot):
        channels, far = slot.channels, self.dilation
        look = nn.Conv2d(channels, channels, 3, padding=far, dilation=far, groups=channels)
        return nn.Sequential(look, nn.ReLU(), born_as_zero(nn.Conv2d(channels, channels, 1)))
