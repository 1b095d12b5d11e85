"""Slot gradients: the features h of each slot, and the gradient dL/dh of the host's loss, for some samples.

They are captured during training for growth potential (`measure.potential`) and informed initial weights (`seeds.informed`).
"""

# M members, n samples a member

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.fusion.layout import members_first
from esper.fusion.precision import in_single


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotGradients:
    """Features and gradients at one slot, by member."""

    features: Tensor
    """h `[M, n, ...]`"""
    grad: Tensor
    """dL/dh `[M, n, ...]`, where L is each member's mean loss over these samples [nats]."""

    @staticmethod
    def joined(parts: Sequence["SlotGradients"]) -> "SlotGradients":
        """Join the members of several shards of a device, one shard after another."""
        # Torch aligns what it joins: the same bits, however many shards there are.
        return SlotGradients(features=torch.cat([one.features for one in parts]), grad=torch.cat([one.grad for one in parts]))

    def split(self, count: int) -> list["SlotGradients"]:
        """Split the members into groups of `count`, in order."""
        parts = zip(self.features.split(count), self.grad.split(count), strict=True)
        return [SlotGradients(features=features, grad=grad) for features, grad in parts]

    def of_member(self, member: int) -> "SlotGradients":
        """Return one member, with a leading axis of 1 `[1, n, ...]`."""
        return SlotGradients(features=self.features[member : member + 1], grad=self.grad[member : member + 1])

    def scaled(self) -> "SlotGradients":
        """Return the gradients for a delta that multiplies, y = h (1 + tanh(delta)): at birth its gradient is h dL/dy."""
        return SlotGradients(features=self.features, grad=self.features * self.grad)


class GradientHooks:
    """Captures the features of slots in a forward pass, and their gradients in the backward pass that follows, both at least in
    single precision."""

    def __init__(self, members: int, count: int | None = None, spots: int = 0) -> None:
        """Prepare to capture the first samples of each member.

        Args:
            count: minimum number of samples; None captures all.
            spots: minimum number of vectors (samples times places or positions) per feature of a slot: a slot with few places
                captures more samples.
        """
        self.members, self.count, self.spots = members, count, spots
        self._features: list[Tensor] = []
        self._grads: dict[int, Tensor] = {}

    def watch(self, x: Tensor) -> None:
        """Capture the features of the next slot, and their gradient when it arrives. `x` is not changed."""
        slot, count = len(self._features), self._enough(x)
        self._features.append(in_single(samples_of(x.detach(), self.members, count)))

        def capture(grad: Tensor) -> None:
            self._grads[slot] = in_single(samples_of(grad, self.members, count))

        if not x.requires_grad:  # nothing that learns lies before this slot
            x.requires_grad_()
        x.register_hook(capture)

    def _enough(self, x: Tensor) -> int | None:
        """Return the number of samples to capture of these features."""
        if self.count is None:
            return None
        places = x[0].numel() // x.shape[-1] if members_first(x) else x[0, 0].numel()
        width = x.shape[-1] if members_first(x) else x.shape[1] // self.members
        return max(self.count, -(-self.spots * (width + 1) // places))

    def scale(self, factor_M: Tensor) -> None:
        """Multiply the gradients captured so far by a factor for each member."""
        for grad in self._grads.values():
            grad.mul_(factor_M.view(-1, *[1] * (grad.dim() - 1)))

    def rescale(self, whole_M: Tensor, targets_of: Callable[[int], Tensor]) -> None:
        """Turn gradients of a sum of losses divided by `whole_M` into those of the mean loss over the captured samples.

        Args:
            whole_M: the divisor, the number of targets of each member's whole batch.
            targets_of: function that returns the number of targets of each member's first n samples `[M]`.
        """
        for slot, grad in self._grads.items():
            factor_M = whole_M / targets_of(self._features[slot].shape[1])
            grad.mul_(factor_M.view(-1, *[1] * (grad.dim() - 1)))

    def gradients(self) -> list[SlotGradients]:
        """Return the gradients of each slot, once the backward pass is done."""
        return [SlotGradients(features=h, grad=self._grads[slot]) for slot, h in enumerate(self._features)]


def samples_of(x: Tensor, members: int, count: int | None = None) -> Tensor:
    """Return the first samples of each member `[M, n, ...]` as a copy: `count` of them, or all where there are fewer.

    Undoes `side_by_side`.
    """
    if members_first(x):
        return x.view(members, -1, *x.shape[1:])[:, :count].contiguous()
    return x[:count].unflatten(1, (members, -1)).transpose(0, 1).contiguous()
