"""The loss of each member, computed from the last features of a host without holding all logits at once.

The logits of a language model `[M, B*T, K]` can exceed the memory of a GPU: 8 members, 32 blocks of 256 tokens and a vocabulary
of 50,257 make 13 GB, and the loss holds three tensors of that size. Where there are more than `LOGITS`, the last linear map and
the loss are computed for some positions at a time, and once more in the backward pass. Losses and gradients are the same but for
rounding.
"""

# M members, L chosen members, B batch, T positions, K classes

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from esper.fusion.layout import by_member
from esper.fusion.precision import in_single
from esper.fusion.sequential import StackedSequential
from esper.fusion.stacked import StackedLinear
from esper.growth.objective import CLASSIFICATION, Objective
from esper.seeds.slot_gradients import GradientHooks

LOGITS = 2**27
"""Maximum number of logits held at once, 512 MB; at least those of one position of each sample. Fewer: less memory, more and
smaller operations."""


class LastSegment(NamedTuple):
    """The last segment of some hosts, and its inputs."""

    segment: nn.Module
    x: Tensor
    members: int
    objective: Objective = CLASSIFICATION

    def logits(self) -> Tensor:
        """Return the outputs of each member `[M, B, K]`, at least in single precision."""
        return in_single(by_member(self.segment(self.x), self.members))

    def losses(self, targets_LB: Tensor, chosen: Tensor | slice = slice(None), count_L: Tensor | None = None) -> Tensor:
        """Return the mean loss of the chosen members `[L]`.

        Args:
            targets_LB: targets of each chosen member's samples, or of each of their positions `[L, B*T]`.
            chosen: members that count; the others are computed with them.
            count_L: number by which each sum of losses is divided; None is the number of targets.
        """
        *body, head = _layers(self.segment)
        if self.x.dim() != 3 or not isinstance(head, (nn.Linear, StackedLinear)):
            return self.objective.mean_losses(_of(self.logits(), chosen), targets_LB, count_L)
        each = LOGITS // (self.x.shape[0] * head.weight.shape[-2])
        if each >= self.x.shape[1]:
            return self.objective.mean_losses(_of(self.logits(), chosen), targets_LB, count_L)
        x = self.x
        for layer in body:
            x = layer(x)

        def summed(x: Tensor, y_LBT: Tensor) -> Tensor:
            logits = in_single(by_member(head(x.contiguous()), self.members))
            return self.objective.sums(_of(logits, chosen), y_LBT.flatten(1))

        y_LBT = targets_LB.view(len(targets_LB), -1, x.shape[1])
        pieces = zip(x.split(max(1, each), 1), y_LBT.split(max(1, each), 2), strict=True)
        sums = [checkpoint(summed, *piece, use_reentrant=False, preserve_rng_state=False) for piece in pieces]
        return torch.stack(sums).sum(0) / (self.objective.num_targets(targets_LB) if count_L is None else count_L)


def backpropagate(loss_L: Tensor, scale_L: Tensor | None = None, hooks: GradientHooks | None = None) -> None:
    """Backpropagate the losses, each times its loss scale if given; slot gradients are divided by the scale again."""
    if scale_L is None:
        loss_L.sum().backward()
        return
    (loss_L * scale_L).sum().backward()
    if hooks is not None:
        hooks.scale(scale_L.reciprocal())


def _layers(segment: nn.Module) -> list[nn.Module]:
    """Return the layers of a sequence, or a module of another class alone: its forward may do anything."""
    if isinstance(segment, nn.Sequential) and type(segment) in (nn.Sequential, StackedSequential):
        return list(segment)
    return [segment]


def _of(logits_MBK: Tensor, chosen: Tensor | slice) -> Tensor:
    return logits_MBK[chosen] if isinstance(chosen, slice) else logits_MBK.index_select(0, chosen)
