"""The host interface: a plain network cut into segments, with a slot between each pair, and the base of host configs.

    x -> segment 0 -> slot 0 -> segment 1 -> slot 1 -> ... -> segment S -> logits

A host has no knowledge of seeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

from torch import Tensor, nn

from esper.fusion.layout import Layout
from esper.options import Option
from esper.text import counted


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """A place where a seed may grow."""

    name: str
    """`r<row>c<column>`. The column is the block or layer. Row 0 lies before the pooling of a block, or after the attention of a
    layer; row 1 after the pooling, or after the MLP."""
    channels: int
    """Features per member: channels of images, length of vectors, width of sequences."""
    layout: Layout = Layout.IMAGES
    """Layout of the features, which decides which blueprints can grow there."""

    def __post_init__(self) -> None:
        if self.layout in list(Layout):  # by name; `slot_specs` refuses others
            object.__setattr__(self, "layout", Layout(self.layout))


class Host(nn.Module):
    """A network of S + 1 segments with S slots. Any module with these two attributes is a host; this class stores them."""

    segments: nn.ModuleList
    slots: tuple[SlotSpec, ...]

    def __init__(self, segments: Sequence[nn.Module], slots: Sequence[SlotSpec]) -> None:
        super().__init__()
        self.segments, self.slots = nn.ModuleList(segments), tuple(slots)

    def forward(self, x: Tensor) -> Tensor:
        """Run the host without seeds."""
        for segment in self.segments:
            x = segment(x)
        return x


@dataclass(kw_only=True, slots=True)
class HostConfig(Option):
    """Base of host configs: the architecture that all hosts of a run share."""

    samples: ClassVar[tuple[Layout, ...]] = (Layout.IMAGES,)
    """Samples that the host reads: images `[B, C, H, W]`, sequences of tokens `[B, T]`, or both."""
    part: ClassVar[str] = "part"
    """Name of a part that can be lesioned, with the key of the number of parts."""
    size_key: ClassVar[str] = ""
    """Field that most enlarges a host; empty if there is none."""

    frozen: bool = False
    """If true, a host does not learn, like a deployed network: its parameters and batch statistics stay constant in an episode,
    and only seeds learn. Combine it with `task.pretrain`, or hosts stay as initialised."""

    def num_parts(self) -> int:
        """Return the number of blocks or layers that can be lesioned."""
        return 0

    def lesion_obstacle(self) -> str | None:
        """Return why lesions would change nothing in this host, or None if they do."""
        return None if self.num_parts() else "needs a host with parts to lesion"

    def sequence_length(self) -> int:
        """Return the length of the token sequences that the host reads, or 0 if it reads images."""
        return 0

    def build(self, shape: tuple[int, ...], num_classes: int, lesioned: Sequence[bool]) -> nn.Module:
        """Return a new host with random initial weights from torch's global stream.

        Args:
            shape: shape of one sample: `(C, H, W)` of an image, `(T,)` of a token sequence.
            num_classes: number of classes, or of different tokens.
            lesioned: for each part, whether it is lesioned.
        """
        raise TypeError(f"{type(self).__name__} does not build hosts: define build(shape, num_classes, lesioned)")


def segments_of(host: nn.Module) -> list[nn.Module]:
    """Return the segments of a host, or of a module of several hosts, in order."""
    return list(host.get_submodule("segments").children())


def check_surfaces(surfaces: Sequence[str], known: Sequence[str]) -> None:
    """Raise ValueError unless the surfaces of a host are some of those known, each once."""
    if not surfaces or len(set(surfaces)) < len(surfaces) or set(surfaces) - set(known):
        got = ",".join(surfaces)
        raise ValueError(f"host.surfaces must name one or both of {', '.join(known)}, each once, got [{got}]")


def slot_specs(host: nn.Module) -> tuple[SlotSpec, ...]:
    """Return the slots of a host.

    Raises:
        ValueError: the module is not a host.
    """
    specs, segments = getattr(host, "slots", None), getattr(host, "segments", None)
    ours = isinstance(specs, tuple) and all(isinstance(slot, SlotSpec) for slot in cast(tuple[object, ...], specs))
    if not ours or not isinstance(segments, nn.ModuleList):
        raise ValueError(
            f"{type(host).__name__} is not a host: give it `segments`, a ModuleList, and `slots`, a tuple of SlotSpec, as "
            "docs/extending/hosts.md shows"
        )
    slots = cast(tuple[SlotSpec, ...], specs)
    if wrong := next((slot for slot in slots if slot.layout not in list(Layout)), None):
        raise ValueError(
            f"SlotSpec of {wrong.name}: there is no layout {wrong.layout!r}: choose from {', '.join(map(str, Layout))}"
        )
    if len(segments) != len(slots) + 1:
        raise ValueError(
            f"{type(host).__name__} has {counted(len(segments), 'segment')} and {counted(len(slots), 'slot')}: it needs one slot "
            "between each pair of segments"
        )
    if twice := next((slot.name for place, slot in enumerate(slots) if slot.name in [one.name for one in slots[:place]]), None):
        raise ValueError(f"{type(host).__name__} has two slots named {twice}: give each SlotSpec a name of its own")
    return slots
