"""What a host is: a plain network cut into segments, with a slot between each two.

    x -> segment 0 -> slot 0 -> segment 1 -> slot 1 -> ... -> segment S -> logits

A host knows nothing of seeds. Adding an architecture is a module with these two attributes.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import nn


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """A place where a seed may grow."""

    name: str
    """`r<row>c<column>`: row 0 lies before a block's pooling, the column is the block."""
    channels: int
    """Features of one member there."""


class Host(Protocol):
    """S slots between S + 1 segments."""

    segments: nn.ModuleList
    slots: tuple[SlotSpec, ...]


def slot_specs(host: nn.Module) -> tuple[SlotSpec, ...]:
    """The slots of a host.

    Raises:
        TypeError: the module is not a host.
    """
    specs = getattr(host, "slots", None)
    if not isinstance(specs, tuple):
        raise TypeError(f"{type(host).__name__} is not a host: give it `segments` and a tuple `slots` of SlotSpec")
    return specs
