"""The seed that grows in every layout: norm."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from esper.fusion.layers import ChannelScale
from esper.fusion.layout import Layout
from esper.hosts.base import SlotSpec
from esper.seeds.blueprints.base import BlueprintConfig, num_groups


class NormBranch(nn.Module):
    """delta(x) = s * (norm(x) - x) with one factor s per channel, initialised to zero."""

    any_strides = True

    def __init__(self, slot: SlotSpec) -> None:
        super().__init__()
        c = slot.channels
        self.norm = nn.GroupNorm(num_groups(c), c) if slot.layout is Layout.IMAGES else nn.LayerNorm(c)
        self.scale = ChannelScale(c)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(self.norm(x) - x)


@dataclass(kw_only=True, slots=True)
class NormConfig(BlueprintConfig):
    """Interpolation of features towards their group norm (images) or layer norm (vectors, sequences); the cheapest seed."""

    layouts: ClassVar[tuple[Layout, ...]] = tuple(Layout)

    def branch(self, slot: SlotSpec) -> nn.Module:
        return NormBranch(slot)
