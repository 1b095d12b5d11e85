"""The MLP host: plain layers for anything that can be laid out as a vector."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from esper.fusion.layers import MaskedLinear, spread_mask
from esper.fusion.layout import Layout
from esper.hosts.base import Host, SlotSpec, check_lesioned


@dataclass(kw_only=True, slots=True)
class MLPConfig:
    """Hidden layers of one width with ReLU, and a linear head; a slot after each hidden layer."""

    layers: int = 2
    """Number of hidden layers, and so of slots, at least 1."""
    width: int = 16
    """Units of each hidden layer, at least 1. More make a stronger host, which gains less by growing."""
    lesion_keeps: float = 0.25
    """Share of its inputs that a lesioned layer still sees, in (0, 1). Less hurts more."""

    def __post_init__(self) -> None:
        for name in ("layers", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"task.host.{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.lesion_keeps < 1:
            raise ValueError(f"task.host.lesion_keeps must be above 0 and below 1, got {self.lesion_keeps}")

    def build(self, inputs: int, num_classes: int, lesioned: Sequence[bool]) -> "MLPHost":
        """A new host with random first weights from torch's global stream.

        Args:
            inputs: numbers in a sample, channels x height x width of an image.
            lesioned: per hidden layer; True leaves it a fixed part of its inputs. What the first layer does not see is lost for
                good; what a later one does not see, a seed before it can bring to where it looks.
        """
        return MLPHost(self, inputs, num_classes, lesioned)


class MLPHost(Host):
    """`[B, ...]`, images or vectors, to logits `[B, num_classes]`."""

    def __init__(self, config: MLPConfig, inputs: int, num_classes: int, lesioned: Sequence[bool]) -> None:
        check_lesioned(lesioned, config.layers, "layers")
        segments: list[nn.Module] = []
        for layer in range(config.layers):
            before = config.width if layer else inputs
            mask = spread_mask(before, config.lesion_keeps) if lesioned[layer] else torch.ones(before)
            first = [] if layer else [nn.Flatten()]
            segments.append(nn.Sequential(*first, MaskedLinear(before, config.width, mask), nn.ReLU()))
        segments.append(nn.Linear(config.width, num_classes))
        super().__init__(segments, [SlotSpec(f"r0c{layer}", config.width, Layout.VECTORS) for layer in range(config.layers)])
