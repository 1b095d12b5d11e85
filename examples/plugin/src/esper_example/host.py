"""A host: patches, mixed over space and over channels, as in ConvMixer (Trockman & Kolter 2022, arXiv:2201.09792)."""

from dataclasses import dataclass

from torch import nn

from esper.fusion.layout import Layout
from esper.hosts.base import Host, HostConfig, SlotSpec
from esper.ranges import check_ranges


@dataclass(kw_only=True, slots=True)
class MixerConfig(HostConfig):
    """Patches and one mixing block, with a slot after each."""

    patch: int = 2
    """Side of a patch, at least 1 [pixels]. Higher: fewer patches, faster."""
    width: int = 8
    """Channels, at least 1. Higher: a stronger host."""

    def __post_init__(self):
        check_ranges("host", self, {"[1, inf]": ["patch", "width"]})

    def build(self, shape, num_classes, lesioned):
        width = self.width
        patches = nn.Sequential(nn.Conv2d(shape[0], width, self.patch, stride=self.patch), nn.ReLU())
        over_space, over_channels = nn.Conv2d(width, width, 3, padding=1, groups=width), nn.Conv2d(width, width, 1)
        mix = nn.Sequential(over_space, nn.ReLU(), over_channels, nn.ReLU())
        classify = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_classes))
        slots = [SlotSpec(name, width, Layout.IMAGES) for name in ("r0c0", "r0c1")]
        return Host([patches, mix, classify], slots)
