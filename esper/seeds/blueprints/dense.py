"""Seeds that map each vector separately, for vectors `[B, C]` and sequences `[B, T, C]`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from esper.fusion.layout import Layout
from esper.hosts.base import SlotSpec
from esper.seeds.blueprints.base import MapConfig, born_as_zero


@dataclass(kw_only=True, slots=True)
class LoraConfig(MapConfig):
    """A low-rank linear map without biases (Hu et al. 2021)."""

    layouts: ClassVar[tuple[Layout, ...]] = (Layout.VECTORS, Layout.SEQUENCES)
    sizes: ClassVar[Sequence[str]] = ("rank",)
    rank: int = 8
    """Rank, the width between the two maps, at least 1. Larger: stronger, at proportional cost."""

    def branch(self, slot: SlotSpec) -> nn.Module:
        c = slot.channels
        return nn.Sequential(nn.Linear(c, self.rank, bias=False), born_as_zero(nn.Linear(self.rank, c, bias=False)))


@dataclass(kw_only=True, slots=True)
class LoraLargeConfig(LoraConfig):
    """`lora` with a higher rank."""

    rank: int = 32


@dataclass(kw_only=True, slots=True)
class MLPSeedConfig(MapConfig):
    """Layer norm, linear, GELU, linear: the strongest seed without context."""

    layouts: ClassVar[tuple[Layout, ...]] = (Layout.VECTORS, Layout.SEQUENCES)
    sizes: ClassVar[Sequence[str]] = ("expansion",)
    expansion: int = 4
    """Width of the hidden layer [widths of the slot], at least 1. Larger: stronger, at proportional cost."""

    def branch(self, slot: SlotSpec) -> nn.Module:
        c, hidden = slot.channels, self.expansion * slot.channels
        return nn.Sequential(nn.LayerNorm(c), nn.Linear(c, hidden), nn.GELU(), born_as_zero(nn.Linear(hidden, c)))


@dataclass(kw_only=True, slots=True)
class MLPSmallSeedConfig(MLPSeedConfig):
    """`mlp` with a narrower hidden layer."""

    expansion: int = 2
