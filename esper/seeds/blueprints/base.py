"""What every blueprint is: a rule that makes a branch for the features of a slot.

A branch computes delta(x) of the shape of x, and its last operation is an affine map born as zero, with no norm or
activation after it. So a newborn seed changes nothing, exactly, and yet its first gradient is not zero.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, TypeVar

from torch import nn

from esper.fusion.layout import Layout
from esper.hosts.base import SlotSpec

Affine = TypeVar("Affine", bound=nn.Linear | nn.Conv2d)


@dataclass(kw_only=True, slots=True)
class BlueprintConfig:
    """One kind of seed."""

    layouts: ClassVar[tuple[Layout, ...]] = ()
    """The layouts of features it can grow in."""
    plantable: ClassVar[bool] = True
    """May a controller plant it?"""

    def branch(self, slot: SlotSpec) -> nn.Module:
        """A new branch delta(x) for the features of a slot, with random first weights and a last map of zeros."""
        raise TypeError(f"{type(self).__name__} does not say how to make a branch: define branch(slot)")

    def obstacle(self, slot: SlotSpec) -> str | None:
        """Why it cannot grow in this slot, as a sentence without its full stop; None where it can."""
        if slot.layout in self.layouts:
            return None
        grows = ", ".join(self.layouts) or "no layout (its class sets no `layouts`)"
        return f"it grows in {grows}, and {slot.name} holds {slot.layout}"


class Init(StrEnum):
    """First weights of a seed."""

    default = "default"
    informed = "informed"


@dataclass(kw_only=True, slots=True)
class MapConfig(BlueprintConfig):
    """A seed whose last map is fed by a linear map or a convolution."""

    init: Init = Init.default
    """First weights: `default` draws them as PyTorch does; `informed` makes the filters before the last map from the gradient
    that the seed would receive where it is planted, so that the last map, born as zero, starts with a large gradient."""


def is_informed(blueprint: BlueprintConfig) -> bool:
    """Are its first weights made from what its slot feels?"""
    return isinstance(blueprint, MapConfig) and blueprint.init is Init.informed


def born_as_zero(layer: Affine) -> Affine:
    """The last map of a branch: weight and bias are zero."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:  # pyright: ignore[reportUnnecessaryComparison]  (bias=False makes it None)
        nn.init.zeros_(layer.bias)
    return layer


def num_groups(channels: int) -> int:
    """Groups of a GroupNorm: the most, not above channels / 16, that divide the channels; at least one."""
    return max(groups for groups in range(1, max(1, channels // 16) + 1) if channels % groups == 0)
