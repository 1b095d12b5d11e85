"""The convolutional host."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from esper.population.fusion import MaskedConv2d
from esper.population.hosts import SlotSpec


@dataclass(kw_only=True, slots=True)
class CNNConfig:
    """Blocks of convolution, batch norm and ReLU; channels double from block to block; a slot after each block."""

    blocks: int = 3
    """Number of blocks, and so of slots, at least 1."""
    base_channels: int = 2
    """Channels of the first block, at least 1. More make a stronger host, which gains less by growing."""
    pools: int = 2
    """The first this many blocks are followed by a 2x2 max-pooling, after the slot; from 0 to `blocks`."""
    kernel: int = 3
    """Height and width of the convolutions [pixels], odd; 1 makes a host without spatial context."""

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


class CNNHost(nn.Module):
    """`[B, in_channels, H, W]` to logits `[B, num_classes]`."""

    segments: nn.ModuleList

    def __init__(self, config: CNNConfig, in_channels: int, num_classes: int, lesioned: Sequence[bool]) -> None:
        super().__init__()
        if len(lesioned) != config.blocks:
            raise ValueError(f"lesioned must name {config.blocks} blocks, got {len(lesioned)}")
        widths = [config.base_channels * 2**block for block in range(config.blocks)]
        self.slots = tuple(SlotSpec(f"r0c{block}", width) for block, width in enumerate(widths))
        segments: list[nn.Module] = []
        for block, (before, width) in enumerate(zip([in_channels, *widths], widths, strict=False)):
            pool: list[nn.Module] = [nn.MaxPool2d(2)] if 0 < block <= config.pools else []
            conv = MaskedConv2d(before, width, config.kernel, _mask(config.kernel, lesioned[block]), padding=config.kernel // 2)
            segments.append(nn.Sequential(*pool, conv, nn.BatchNorm2d(width), nn.ReLU(inplace=True)))
        pool = [nn.MaxPool2d(2)] if config.pools == config.blocks else []
        segments.append(nn.Sequential(*pool, GlobalMean(), nn.Linear(widths[-1], num_classes)))
        self.segments = nn.ModuleList(segments)

    def forward(self, x: Tensor) -> Tensor:
        for segment in self.segments:
            x = segment(x)
        return x


def _mask(kernel: int, lesioned: bool) -> Tensor:
    """`[k, k]`: all ones, or the centre alone."""
    if not lesioned:
        return torch.ones(kernel, kernel)
    mask = torch.zeros(kernel, kernel)
    mask[kernel // 2, kernel // 2] = 1.0
    return mask
