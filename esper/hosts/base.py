"""What a host is: a plain network cut into segments, with a slot between each two.

    x -> segment 0 -> slot 0 -> segment 1 -> slot 1 -> ... -> segment S -> logits

A host knows nothing of seeds. Adding an architecture is a module with these two attributes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn

from esper.fusion.layout import Layout


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """A place where a seed may grow."""

    name: str
    """`r<row>c<column>`: the column is the block or layer, the row a place in it: row 0 lies before the pooling of a block, or
    after the attention of a layer; row 1 after the pooling, or after the MLP."""
    channels: int
    """Features of one member there: channels of images, length of vectors, width of sequences."""
    layout: Layout = Layout.IMAGES
    """What the features are, and so which blueprints can grow there."""


class Host(nn.Module):
    """S slots between S + 1 segments. Any module with these two attributes is a host; this one saves writing them down."""

    segments: nn.ModuleList
    slots: tuple[SlotSpec, ...]

    def __init__(self, segments: Sequence[nn.Module], slots: Sequence[SlotSpec]) -> None:
        super().__init__()
        self.segments, self.slots = nn.ModuleList(segments), tuple(slots)

    def forward(self, x: Tensor) -> Tensor:
        """The host without seeds."""
        for segment in self.segments:
            x = segment(x)
        return x


def slot_specs(host: nn.Module) -> tuple[SlotSpec, ...]:
    """The slots of a host.

    Raises:
        TypeError: the module is not a host.
    """
    specs, segments = getattr(host, "slots", None), getattr(host, "segments", None)
    if not isinstance(specs, tuple) or not isinstance(segments, nn.ModuleList):
        raise TypeError(
            f"{type(host).__name__} is not a host: give it `segments`, a ModuleList, and `slots`, a tuple of SlotSpec"
        )
    slots = cast(tuple[SlotSpec, ...], specs)
    if len(segments) != len(slots) + 1:
        raise TypeError(
            f"{type(host).__name__} has {len(segments)} segments and {len(slots)} slots: a slot lies between each two segments"
        )
    return slots


def check_lesioned(lesioned: Sequence[bool], count: int, parts: str) -> None:
    """Raises ValueError where lesions are not named for every part of a host."""
    if len(lesioned) != count:
        raise ValueError(f"lesioned must name {count} {parts}, got {len(lesioned)}")
