"""The MLP host: linear layers on samples flattened to vectors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from esper.fusion.layers import MaskedLinear, spread_mask
from esper.fusion.layout import Layout
from esper.hosts.base import Host, HostConfig, SlotSpec
from esper.ranges import check_ranges


@dataclass(kw_only=True, slots=True)
class MLPConfig(HostConfig):
    """An MLP host for images as vectors: hidden layers of equal width with ReLU, each followed by a slot, and a linear head.

    A lesioned layer sees a fixed subset of its inputs. Inputs that the first layer does not see are lost; a seed before a later
    layer can move information to the inputs that the layer sees.
    """

    part = "layer (host.layers)"
    size_key = "width"

    layers: int = 2
    """Number of hidden layers, and so of slots, at least 1."""
    width: int = 16
    """Units of each hidden layer, at least 1. Higher: a stronger host, which gains less from growth."""
    lesion_keeps: float = 0.25
    """Share of its inputs that a lesioned layer sees, in (0, 1). Lower: a more severe lesion."""

    def __post_init__(self) -> None:
        check_ranges("host", self, {"[1, 1000]": ["layers"], "[1, 1e6]": ["width"], "(0, 1)": ["lesion_keeps"]})

    def num_parts(self) -> int:
        return self.layers

    def build(self, shape: tuple[int, ...], num_classes: int, lesioned: Sequence[bool]) -> "MLPHost":
        return MLPHost(self, math.prod(shape), num_classes, lesioned)


class MLPHost(Host):
    """An MLP from samples `[B, ...]` to logits `[B, num_classes]`."""

    def __init__(self, config: MLPConfig, inputs: int, num_classes: int, lesioned: Sequence[bool]) -> None:
        segments: list[nn.Module] = []
        for layer in range(config.layers):
            before = config.width if layer else inputs
            mask = spread_mask(before, config.lesion_keeps) if lesioned[layer] else torch.ones(before)
            first = [] if layer else [nn.Flatten()]
            segments.append(nn.Sequential(*first, MaskedLinear(before, config.width, mask), nn.ReLU()))
        segments.append(nn.Linear(config.width, num_classes))
        super().__init__(segments, [SlotSpec(f"r0c{layer}", config.width, Layout.VECTORS) for layer in range(config.layers)])
