"""What the slots of a host feel: features h, and the gradient dL/dh of the host's loss, of some samples.

Training has both at hand for a moment; this is where they are kept for those who ask what a seed could do there (`potential`,
`informed`).
"""

# M members, n samples a member

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.fusion.layout import members_first


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotGradients:
    """What one slot felt of some samples, by member."""

    features: Tensor
    """h `[M, n, ...]`"""
    grad: Tensor
    """dL/dh `[M, n, ...]`, where L is each member's mean loss over these samples [nats]."""

    @staticmethod
    def joined(parts: Sequence["SlotGradients"]) -> "SlotGradients":
        """The members of several parts of a population, one part after another."""
        if len(parts) == 1:
            return parts[0]
        return SlotGradients(features=torch.cat([part.features for part in parts]), grad=torch.cat([part.grad for part in parts]))

    def of_member(self, member: int) -> "SlotGradients":
        """What one member felt, still with a leading axis `[1, n, ...]`."""
        return SlotGradients(features=self.features[member : member + 1], grad=self.grad[member : member + 1])

    def scaled(self) -> "SlotGradients":
        """The same for a delta that multiplies, y = h (1 + tanh(delta)): its gradient at birth is h dL/dy."""
        return SlotGradients(features=self.features, grad=self.features * self.grad)


class GradientHooks:
    """Watches the features of slots in a forward pass, and their gradients in the backward pass that follows."""

    def __init__(self, members: int, count: int | None = None, spots: int = 0) -> None:
        """Will keep the first samples of each member.

        Args:
            count: how many, at least; None for all.
            spots: vectors (samples times places or positions) for each feature of a slot, at least: a slot of few places keeps
                more samples for it.
        """
        self.members, self.count, self.spots = members, count, spots
        self._features: list[Tensor] = []
        self._grads: dict[int, Tensor] = {}

    def watch(self, x: Tensor) -> None:
        """Keeps the features of the next slot, and their gradient when it comes. `x` is not changed."""
        slot, count = len(self._features), self._enough(x)
        self._features.append(samples_of(x.detach(), self.members, count))
        scale = x.numel() / self._features[-1].numel()  # the mean loss of fewer samples has larger gradients

        def feel(grad: Tensor) -> None:
            self._grads[slot] = scale * samples_of(grad, self.members, count)

        if not x.requires_grad:  # nothing that learns lies before this slot
            x.requires_grad_()
        x.register_hook(feel)

    def _enough(self, x: Tensor) -> int | None:
        """Samples to keep of these features."""
        if self.count is None:
            return None
        places = x[0].numel() // x.shape[-1] if members_first(x) else x[0, 0].numel()
        width = x.shape[-1] if members_first(x) else x.shape[1] // self.members
        return max(self.count, -(-self.spots * (width + 1) // places))

    def gradients(self) -> list[SlotGradients]:
        """What each slot felt, once the backward pass is done."""
        return [SlotGradients(features=h, grad=self._grads[slot]) for slot, h in enumerate(self._features)]


def samples_of(x: Tensor, members: int, count: int | None = None) -> Tensor:
    """The first samples of each member `[M, n, ...]`, all of them where there are fewer or no count is given, as a copy.

    Undoes `side_by_side`.
    """
    if members_first(x):
        return x.view(members, -1, *x.shape[1:])[:, :count].contiguous()
    return x[:count].unflatten(1, (members, -1)).transpose(0, 1).contiguous()
