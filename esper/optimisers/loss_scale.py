"""Loss scales, one for each member, with the rules of `torch.amp.GradScaler`.

In fp16 small gradients would be rounded to zero. So the loss of a member is multiplied by its scale before the backward pass, and
its gradients are divided by it before anything else reads them: norms, clipping, the update, and slot gradients. Where a gradient
is not finite then, it overflowed, and the step is skipped. As with several optimisers and one `GradScaler`, host and seeds of a
member share the scale, and each decides for itself: the host takes its step although a seed skips its own, and the reverse.

An overflow is not a fault: it halves the scale, and training goes on with the next batch. At the lowest scale, 1, it is a fault:
the gradient itself, not a multiple of it, exceeds the range of half precision or is NaN.
"""

# M members, L some of them

from collections.abc import Sequence

import torch
from torch import Tensor

FIRST = 2.0**12
"""Scale of a new member. Higher: more bits of small gradients, and more overflows at first; PyTorch's 2^16
makes a host of `digits` skip one or two batches of its short episode; with 2^12, one host in several skips one."""
LEAST = 1.0
"""Lowest scale; an overflow there counts as non-finite."""
MOST = 2.0**127
"""Highest scale; twice as much would be infinite."""
STEPS_TO_GROW = 2000
"""Steps without an overflow after which the scale doubles."""


class LossScale:
    """The loss scales of M members, and their overflows."""

    def __init__(self, members: int, device: torch.device | str) -> None:
        zero_M1 = torch.zeros(members, 1, device=device)
        self.state = {"scale": torch.full_like(zero_M1, FIRST), "steps": zero_M1}
        """`scale`, a power of two so that scaling is exact, and `steps` since it last changed, `[M, 1]` each."""
        self._skipped_M, self._faulty_M = torch.zeros_like(zero_M1[:, 0]), torch.zeros_like(zero_M1[:, 0], dtype=torch.bool)

    def of(self, members_L: Tensor | None = None) -> Tensor:
        """Return the scale of the chosen members `[L]`; None is all."""
        scale_M = self.state["scale"][:, 0]
        return scale_M if members_L is None else scale_M.index_select(0, members_L)

    def adjust(self, overflows: Sequence[Tensor], learns_M1: Tensor | None = None) -> None:
        """Adjust the scales after a step.

        Args:
            overflows: for each part of the members, whether its gradient overflowed, bool `[M, 1]`.
            learns_M1: members of which a part took the step, bool `[M, 1]`; None is all.
        """
        over_M1 = torch.stack(list(overflows)).any(0) if overflows else torch.zeros_like(self.state["scale"], dtype=torch.bool)
        scale_M1, steps_M1 = self.state["scale"], self.state["steps"]
        self._skipped_M += over_M1[:, 0]
        self._faulty_M |= (over_M1 & (scale_M1 <= LEAST))[:, 0]
        steps_M1.add_(1.0 if learns_M1 is None else learns_M1)
        grows_M1 = steps_M1 >= STEPS_TO_GROW
        steps_M1.masked_fill_(over_M1 | grows_M1, 0.0)
        scale_M1.mul_(torch.where(over_M1, 0.5, torch.where(grows_M1, 2.0, 1.0))).clamp_(LEAST, MOST)

    def take_overflows(self) -> tuple[Tensor, Tensor]:
        """Return the overflows of each member since the last call `[M]`, and whether one was at the lowest scale `[M]`."""
        found = self._skipped_M.clone(), self._faulty_M.clone()
        self._skipped_M.zero_()
        self._faulty_M.zero_()
        return found
