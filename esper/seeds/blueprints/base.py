"""The interface of blueprints, which make a branch for the features of a slot.

A branch computes delta(x) of the shape of x. Its last operation is an affine map initialised to zero, without a norm or
activation after it, so a newborn seed is exactly the identity and still has a nonzero first gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import ClassVar, TypeVar

from torch import nn

from esper.fusion.layout import Layout
from esper.hosts.base import SlotSpec
from esper.options import Option
from esper.ranges import check_ranges, is_required

Affine = TypeVar("Affine", bound=nn.Linear | nn.Conv2d)


@dataclass(kw_only=True, slots=True)
class BlueprintConfig(Option):
    """Config of one kind of seed."""

    layouts: ClassVar[tuple[Layout, ...]] = ()
    """Layouts of features in which the seed can grow."""
    sizes: ClassVar[Sequence[str]] = ()
    """Fields that must be from 1 to 1,000,000."""

    def check(self, where: str) -> None:
        """Raise ValueError for values out of range; `where` is the key of this config on the command line."""
        check_ranges(where, self, {"[1, 1e6]": self.sizes})

    def branch(self, slot: SlotSpec) -> nn.Module:
        """Return a new branch delta(x) for the features of a slot, with random initial weights and a last map of zeros."""
        raise TypeError(f"{type(self).__name__} does not define branch(slot)")

    def obstacle(self, slot: SlotSpec) -> str | None:
        """Return the reason why the seed cannot grow in this slot, without a full stop; None if it can."""
        if slot.layout in self.layouts:
            return None
        grows = ", ".join(self.layouts) or "no layout (its class sets no `layouts`)"
        return f"it grows in {grows}, and {slot.name} holds {slot.layout}"


def required(kind: type[BlueprintConfig]) -> list[str]:
    """Return the fields of a blueprint's config that have no default."""
    return [one.name for one in fields(kind) if is_required(one)]


class Init(StrEnum):
    """Initial weights of a seed."""

    default = "default"
    informed = "informed"


@dataclass(kw_only=True, slots=True)
class MapConfig(BlueprintConfig):
    """A seed whose last map is fed by a linear map or a convolution."""

    init: Init = Init.default
    """Initial weights: `default` draws them as PyTorch does; `informed` derives the filters before the last map from the gradient
    at the slot, so that the last map, initialised to zero, starts with a large gradient."""


def is_informed(blueprint: BlueprintConfig) -> bool:
    """Return whether the initial weights depend on slot gradients."""
    return isinstance(blueprint, MapConfig) and blueprint.init is Init.informed


def born_as_zero(layer: Affine) -> Affine:
    """Set weight and bias of the last map of a branch to zero, and return it."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:  # pyright: ignore[reportUnnecessaryComparison]  (bias=False makes it None)
        nn.init.zeros_(layer.bias)
    return layer


def num_groups(channels: int) -> int:
    """Return the groups of a GroupNorm: the largest divisor of the channels up to channels / 16, at least 1."""
    return max(groups for groups in range(1, max(1, channels // 16) + 1) if channels % groups == 0)
