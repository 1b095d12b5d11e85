"""A grown network as a plain module: one host with the seeds that it kept."""

# B batch

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from esper.lifecycle.roles import Blend


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptSeed:
    """A seed that a host kept."""

    slot: int
    blueprint: int
    """Index of its blueprint."""
    blend: Blend
    alpha: float
    """Blend weight, above 0."""


class GrownSlot(nn.Module):
    """A slot with its seed: `h + alpha * delta(h)`, or `h * (1 + alpha * tanh(delta(h)))`; a gate is part of delta."""

    def __init__(self, branch: nn.Module, seed: KeptSeed) -> None:
        super().__init__()
        self.branch, self.alpha, self.multiplies = branch, seed.alpha, seed.blend is Blend.MULTIPLY

    def forward(self, h: Tensor) -> Tensor:
        delta = self.branch(h)
        return h * (1 + self.alpha * torch.tanh(delta)) if self.multiplies else h + self.alpha * delta


class GrownNetwork(nn.Module):
    """A network from samples, as `Data.inputs` returns them, to outputs, in evaluation mode."""

    def __init__(self, host: nn.Module, branches: Sequence[nn.Module], seeds: Sequence[KeptSeed]) -> None:
        """
        Args:
            host: module with `segments`, and with slots between them.
            branches: branch of each seed, gate included.
            seeds: where the seeds are; at most one per slot.
        """
        super().__init__()
        segments, self.seeds = cast(nn.ModuleList, host.segments), tuple(seeds)
        there = {seed.slot: GrownSlot(branch, seed) for branch, seed in zip(branches, seeds, strict=True)}
        self.segments = nn.ModuleList(segments)
        self.slots = nn.ModuleList([there.get(slot, nn.Identity()) for slot in range(len(segments) - 1)])
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        for segment, slot in zip(self.segments, [*self.slots, nn.Identity()], strict=True):
            x = slot(segment(x))
        return x
