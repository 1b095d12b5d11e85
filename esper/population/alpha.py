"""How a seed is blended into its host: alpha ramps and the blend itself.

Residual-delta blend. A seed is a branch delta(x), and its slot computes

    y = h + alpha * delta(x),        x = h,  or a detached copy of h while the seed is isolated,

so that the host's own gradient dy/dh is 1 at every alpha. (A lerp of h and seed(h) has 1 - alpha there and freezes all that lies
before the slot once alpha is 1.)
"""

# B batch, M members, L members with a seed, C channels

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.population.layout import add_members, per_member, take_members


def linear_ramp(
    start: npt.NDArray[np.float32],
    target: npt.NDArray[np.float32],
    done: npt.NDArray[np.int64],
    total: npt.NDArray[np.int64],
) -> npt.NDArray[np.float32]:
    """Alpha after `done` of `total` ticks of a linear ramp; exactly `target` from the last tick on.

    alpha = start + (target - start) * done / total, elementwise over arrays of one shape; a ramp of 0 ticks is at its target.
    """
    share = np.minimum(done, total) / np.maximum(total, 1)
    value = start + (target - start) * share.astype(np.float32)
    return np.where(done >= total, target, value).astype(np.float32)


class _Isolate(torch.autograd.Function):
    """Identity whose gradient passes only for the members marked `open`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, open_L: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(open_L)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (open_L,) = ctx.saved_tensors
        return torch.where(per_member(open_L, grad), grad, 0.0), None


class _Blend(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, h: Tensor, delta: Tensor, alpha_L: Tensor, pull_L: Tensor, live_L: Tensor, members: int
    ) -> Tensor:
        ctx.save_for_backward(pull_L, live_L)
        ctx.members = members
        return add_members(h.clone(), live_L, delta * per_member(alpha_L, delta), members)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        pull_L, live_L = ctx.saved_tensors
        part = take_members(grad, live_L, ctx.members)
        return grad, part * per_member(pull_L, part), None, None, None, None


def isolate(h: Tensor, open_L: Tensor) -> Tensor:
    """The input of a seed: h itself, or a detached copy for members not marked open.

    d(out)/dh is 1 where `open_L` and 0 elsewhere; zeros are added to the host's gradient, which therefore keeps its bits.

    Args:
        h: host features `[B, L*C, ...]`.
        open_L: bool `[L]`; True where the seed's gradient may reach the host.
    """
    return _Isolate.apply(h, open_L)  # pyright: ignore[reportReturnType]


def blend(h: Tensor, delta: Tensor, alpha_L: Tensor, pull_L: Tensor, live_L: Tensor, members: int) -> Tensor:
    """y = h + alpha * delta for the live members, y = h for the others; dy/dh = 1 and dy/ddelta = pull.

    `pull` is alpha for a seed that is blended in. A seed in training behind the host has alpha 0 and pull 1, the straight-through
    estimator (Bengio et al. 2013): the output is h, and the seed learns as if it were fully in. Where delta is finite, alpha 0
    leaves h unchanged bit for bit; where it is not, the result is not either, so that a sick seed is seen at once.

    Args:
        h: host features `[B, M*C, ...]`.
        delta: output of the branches `[B, L*C, ...]`.
        alpha_L: blend weight `[L]`.
        pull_L: weight of the seed's gradient `[L]`.
        live_L: the members with a seed `[L]`.
        members: M.
    """
    return _Blend.apply(h, delta, alpha_L, pull_L, live_L, members)  # pyright: ignore[reportReturnType]
