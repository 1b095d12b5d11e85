"""The convolutional host."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from esper.fusion.layers import MaskedConv2d
from esper.hosts.base import Host, SlotSpec, check_lesioned

SURFACES = ("pre", "post")
"""Where slots may lie in a block: the row of a slot's name is the index here."""


@dataclass(kw_only=True, slots=True)
class CNNConfig:
    """Blocks of convolution, batch norm and ReLU; channels double from block to block; slots after each block."""

    blocks: int = 3
    """Number of blocks, at least 1."""
    base_channels: int = 2
    """Channels of the first block, at least 1. More make a stronger host, which gains less by growing."""
    pools: int = 2
    """The first this many blocks are followed by a 2x2 max-pooling; from 0 to `blocks`."""
    kernel: int = 3
    """Height and width of the convolutions [pixels], odd; 1 makes a host without spatial context."""
    surfaces: list[str] = field(default_factory=lambda: ["pre"])
    """Where the slots of a block lie: before its pooling (`pre`, row 0 of the names, whether it is pooled or not), after it
    (`post`, row 1, pooled blocks only), or both."""

    norm_momentum: float = 0.8
    """Weight of the newest batch in the running statistics of batch norm, above 0 and at most 1. Low ones lag behind weights that
    move fast, so that validation is low and noisy: at 0.1 the accuracy of `digits` is 5 pp lower and its noise twice as large."""

    def __post_init__(self) -> None:
        if self.blocks < 1:
            raise ValueError(f"task.host.blocks must be at least 1, got {self.blocks}")
        if self.base_channels < 1:
            raise ValueError(f"task.host.base_channels must be at least 1, got {self.base_channels}")
        if not 0 <= self.pools <= self.blocks:
            raise ValueError(
                f"task.host.pools must be from 0 to task.host.blocks={self.blocks}, got {self.pools}: "
                "a pooling belongs to a block"
            )
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError(f"task.host.kernel must be odd and at least 1, got {self.kernel}: use 3 or 1")
        if not 0 < self.norm_momentum <= 1:
            raise ValueError(
                f"task.host.norm_momentum must be above 0 and at most 1, got {self.norm_momentum}: 0.8 is a good start"
            )
        if not self.surfaces or len(set(self.surfaces)) < len(self.surfaces) or set(self.surfaces) - set(SURFACES):
            got = ",".join(self.surfaces)
            raise ValueError(f"task.host.surfaces must name one or both of {', '.join(SURFACES)}, each once, got [{got}]")
        if self.surfaces == ["post"] and not self.pools:
            raise ValueError(
                "task.host.surfaces=[post] leaves no slot where nothing is pooled: use [pre], or set task.host.pools"
            )

    def build(self, in_channels: int, num_classes: int, lesioned: Sequence[bool]) -> "CNNHost":
        """A new host with random first weights from torch's global stream.

        Args:
            lesioned: per block; True reduces its kernels to their centre, so that it sees no neighbours.
        """
        return CNNHost(self, in_channels, num_classes, lesioned)


class GlobalMean(nn.Module):
    """Mean over height and width."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


class CNNHost(Host):
    """`[B, in_channels, H, W]` to logits `[B, num_classes]`."""

    def __init__(self, config: CNNConfig, in_channels: int, num_classes: int, lesioned: Sequence[bool]) -> None:
        check_lesioned(lesioned, config.blocks, "blocks")
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
    """`[k, k]`: all ones, or the centre alone."""
    if not lesioned:
        return torch.ones(kernel, kernel)
    mask = torch.zeros(kernel, kernel)
    mask[kernel // 2, kernel // 2] = 1.0
    return mask
