"""The convolutional host."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from esper.fusion.layers import GlobalMean, MaskedConv2d
from esper.hosts.base import Host, HostConfig, SlotSpec, check_surfaces
from esper.ranges import check_ranges

SURFACES = ("pre", "post")
"""Places of the slots in a block; the row in a slot's name is the index in this tuple."""


@dataclass(kw_only=True, slots=True)
class CNNConfig(HostConfig):
    """A convolutional host for images: blocks of convolution, batch norm and ReLU; channels double from block to block.

    A lesioned block's kernels are reduced to their centre, so that the block lacks spatial context.
    """

    part = "block (host.blocks)"
    size_key = "base_channels"

    blocks: int = 3
    """Number of blocks, at least 1."""
    base_channels: int = 2
    """Channels of the first block, at least 1. Higher: a stronger host, which gains less from growth."""
    pools: int = 2
    """Number of blocks, counted from the first, that end in 2x2 max pooling, from 0 to `blocks`."""
    kernel: int = 3
    """Height and width of the kernels [pixels], odd; 1: no spatial context. Higher: more context, more parameters."""
    surfaces: list[str] = field(default_factory=lambda: ["pre"])
    """Places of the slots in a block: before its pooling (`pre`, row 0 in slot names; every block has one), after it (`post`,
    row 1; pooled blocks only), or both."""
    norm_momentum: float = 0.8
    """Weight of the newest batch in the running statistics of batch norm, above 0 and at most 1. Lower: the statistics lag behind
    fast-changing weights, and validation accuracy is low and noisy; 0.1 costs 5 pp on `digits` and doubles the noise."""

    def __post_init__(self) -> None:
        check_ranges(
            "host",
            self,
            {"[1, 30]": ["blocks"], "[1, 1e6]": ["base_channels"], "[1, 999]": ["kernel"], "(0, 1]": ["norm_momentum"]},
        )
        if not 0 <= self.pools <= self.blocks:
            raise ValueError(
                f"host.pools must be from 0 to host.blocks={self.blocks}, got {self.pools}: each pooling belongs to a block"
            )
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError(f"host.kernel must be odd and at least 1, got {self.kernel}: use 3 or 1")
        check_surfaces(self.surfaces, SURFACES)
        if self.surfaces == ["post"] and not self.pools:
            raise ValueError(
                "host.surfaces=[post] needs pooled blocks, and host.pools=0: use host.surfaces=[pre], or raise host.pools"
            )

    def num_parts(self) -> int:
        return self.blocks

    def lesion_obstacle(self) -> str | None:
        return "reduces kernels to their centre, and those of host.kernel=1 have no more" if self.kernel == 1 else None

    def build(self, shape: tuple[int, ...], num_classes: int, lesioned: Sequence[bool]) -> "CNNHost":
        return CNNHost(self, shape[0], num_classes, lesioned)


class CNNHost(Host):
    """A convolutional network from images `[B, in_channels, H, W]` to logits `[B, num_classes]`."""

    def __init__(self, config: CNNConfig, in_channels: int, num_classes: int, lesioned: Sequence[bool]) -> None:
        widths = [config.base_channels * 2**block for block in range(config.blocks)]
        parts, segments, slots = list[nn.Module](), list[nn.Module](), list[SlotSpec]()
        for block, (before, width) in enumerate(zip([in_channels, *widths], widths, strict=False)):
            conv = MaskedConv2d(before, width, config.kernel, _mask(config.kernel, lesioned[block]), padding=config.kernel // 2)
            parts += [conv, nn.BatchNorm2d(width, momentum=config.norm_momentum), nn.ReLU(inplace=True)]
            for row, surface in enumerate(SURFACES):
                if surface == "post":
                    if block >= config.pools:
                        continue
                    parts.append(nn.MaxPool2d(2))
                if surface in config.surfaces:
                    slots.append(SlotSpec(f"r{row}c{block}", width))
                    segments.append(nn.Sequential(*parts))
                    parts = []
        segments.append(nn.Sequential(*parts, GlobalMean(), nn.Linear(widths[-1], num_classes)))
        super().__init__(segments, slots)


def _mask(kernel: int, lesioned: bool) -> Tensor:
    """Return a `[k, k]` mask of ones, or with a one in the centre only."""
    if not lesioned:
        return torch.ones(kernel, kernel)
    mask = torch.zeros(kernel, kernel)
    mask[kernel // 2, kernel // 2] = 1.0
    return mask
