"""A seed with a large receptive field: a dilated convolution."""

from dataclasses import dataclass

from torch import nn

from esper.fusion.layout import Layout
from esper.seeds.blueprints.base import BlueprintConfig, born_as_zero


@dataclass(kw_only=True, slots=True)
class DilatedConfig(BlueprintConfig):
    """A dilated depthwise 3x3 convolution, ReLU, and a map of the channels."""

    layouts = (Layout.IMAGES,)
    sizes = ("dilation",)
    dilation: int = 2
    """Distance between the inputs of the convolution, at least 1 [pixels]. Higher: larger receptive field, coarser sampling."""

    def branch(self, slot):
        channels, apart = slot.channels, self.dilation
        depthwise = nn.Conv2d(channels, channels, 3, padding=apart, dilation=apart, groups=channels)
        return nn.Sequential(depthwise, nn.ReLU(), born_as_zero(nn.Conv2d(channels, channels, 1)))
