"""Seeds that map each vector separately, for vectors `[B, C]` and sequences `[B, T, C]`."""

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
    rank: int = 8
    """Rank, the width between the two maps, at least 1. Larger: stronger, at proportional cost."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"blueprint.{self._name()}.rank must be at least 1, got {self.rank}")

    def _name(self) -> str:
        return "lora"

    def branch(self, slot: SlotSpec) -> nn.Module:
        c = slot.channels
        return nn.Sequential(nn.Linear(c, self.rank, bias=False), born_as_zero(nn.Linear(self.rank, c, bias=False)))


@dataclass(kw_only=True, slots=True)
class LoraLargeConfig(LoraConfig):
    """`lora` with a higher rank."""

    rank: int = 32
    """Rank, the width between the two maps, at least 1. Larger: stronger, at proportional cost."""

    def _name(self) -> str:
        return "lora_large"


@dataclass(kw_only=True, slots=True)
class MLPSeedConfig(MapConfig):
    """Layer norm, linear, GELU, linear: the strongest seed without context."""

    layouts: ClassVar[tuple[Layout, ...]] = (Layout.VECTORS, Layout.SEQUENCES)
    expansion: int = 4
    """Width of the hidden layer [widths of the slot], at least 1. Larger: stronger, at proportional cost."""

    def __post_init__(self) -> None:
        if self.expansion < 1:
            raise ValueError(f"blueprint.{self._name()}.expansion must be at least 1, got {self.expansion}")

    def _name(self) -> str:
        return "mlp"

    def branch(self, slot: SlotSpec) -> nn.Module:
        c, hidden = slot.channels, self.expansion * slot.channels
        return nn.Sequential(nn.LayerNorm(c), nn.Linear(c, hidden), nn.GELU(), born_as_zero(nn.Linear(hidden, c)))


@dataclass(kw_only=True, slots=True)
class MLPSmallSeedConfig(MLPSeedConfig):
    """`mlp` with a narrower hidden layer."""

    expansion: int = 2
    """Width of the hidden layer [widths of the slot], at least 1. Larger: stronger, at proportional cost."""

    def _name(self) -> str:
        return "mlp_small"
