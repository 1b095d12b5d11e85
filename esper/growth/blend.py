"""Blending of a seed into its host; `ramps` defines the course of alpha.

Residual-delta blend. A seed is a branch delta(x), and its slot computes

    y = h + alpha * delta(x),        x = h,  or a detached copy of h while the seed is isolated,

so that the host's own gradient dy/dh is 1 at every alpha. (A lerp of h and seed(h) has 1 - alpha there and freezes every layer
before the slot once alpha is 1.) See `blend` for the two other blends, by a gate and by multiplication.
"""

# B batch, M members, L members with a seed, C channels

from typing import Any

import torch
from torch import Tensor

from esper.fusion.layout import add_members, per_member, take_members
from esper.fusion.precision import in_single


class _Blend(torch.autograd.Function):
    """MULTIPLY for the members marked in `multiplies_L`, ADD for the others; see `blend`."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        h: Tensor,
        delta: Tensor,
        alpha_L: Tensor,
        grad_scale_L: Tensor,
        active_L: Tensor,
        multiplies_L: Tensor | None,
        members: int,
    ) -> Tensor:
        mixed: tuple[Tensor, ...] = ()
        ctx.members, effect = members, delta
        if multiplies_L is not None:
            product = take_members(h, active_L, members) * torch.tanh(delta)
            effect, mixed = torch.where(per_member(multiplies_L, delta), product, delta), (alpha_L, multiplies_L, h, delta)
        ctx.save_for_backward(grad_scale_L, active_L, *mixed)
        return _added(h, active_L, effect * per_member(alpha_L, delta), members)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad_scale_L, active_L, *mixed = ctx.saved_tensors
        g = take_members(grad, active_L, ctx.members)
        grad_delta = g * per_member(grad_scale_L, g).to(g.dtype)
        if mixed:
            alpha_L, multiplies_L, h, delta = mixed  # inputs, not intermediates, so that second derivatives are right too
            times, part, factor = per_member(multiplies_L, g), take_members(h, active_L, ctx.members), torch.tanh(delta)
            direct = torch.where(times, g * factor * per_member(alpha_L, g).to(g.dtype), 0.0)
            grad = _added(grad, active_L, direct, ctx.members)
            grad_delta = grad_delta * torch.where(times, part * (1.0 - factor.square()), 1.0)
        return grad, grad_delta, None, None, None, None, None


def _added(h: Tensor, active_L: Tensor, part: Tensor, members: int) -> Tensor:
    """Return `h` plus the part of the live members; half precision is added in single, where torch's `index_add_` is faster."""
    whole = in_single(h)
    return add_members(h.clone() if whole is h else whole, active_L, part.to(whole.dtype), members).to(h.dtype)


def isolate(h: Tensor, open_L: Tensor) -> Tensor:
    """Return the input of a seed: h itself, or a detached copy for members not marked open.

    d(out)/dh is 1 where `open_L` and 0 elsewhere. Zeros are added to the host's gradient, so it stays the same bit for bit.

    Args:
        h: host features `[B, L*C, ...]`.
        open_L: bool `[L]`; True where the seed's gradient may reach the host.
    """
    x = h.view_as(h)

    def closed(grad: Tensor) -> Tensor:
        return torch.where(per_member(open_L, grad), grad, 0.0)

    if x.requires_grad:
        x.register_hook(closed)
    return x


def blend(
    h: Tensor,
    delta: Tensor,
    alpha_L: Tensor,
    grad_scale_L: Tensor,
    active_L: Tensor,
    members: int,
    multiplies_L: Tensor | None = None,
) -> Tensor:
    """Return the output of a slot: y for the live members, h for the others.

        ADD        y = h + alpha * delta                 dy/dh = 1                          dy/ddelta = scale
        GATE       y = h + alpha * g * delta             dy/dh = 1                          dy/d(g delta) = scale
        MULTIPLY   y = h * (1 + alpha * tanh(delta))     dy/dh = 1 + alpha * tanh(delta)    dy/ddelta = scale * h * sech(delta)^2

    dy/dh is the direct part; the path through the seed's input comes on top unless it is isolated. GATE is ADD of the product
    g(x) * delta(x), which the seed's module computes (see `gated`).

    `scale`, one of `grad_scale_L`, is alpha for a seed that is blended in. A seed in training behind the host has alpha 0 and
    scale 1, the straight-through estimator (Bengio et al. 2013): the output is h, and the seed learns as if it were fully in.
    Where delta is finite, alpha 0 leaves h and the host's gradient unchanged bit for bit; a NaN delta propagates, so a non-finite
    seed is detected at once.

    Args:
        h: host features of M members, in any layout.
        delta: output of the branches of the L live members, in the dtype of `h`.
        alpha_L: blend weights `[L]`.
        grad_scale_L: weights of the seeds' gradients `[L]`.
        active_L: members with a seed `[L]`.
        members: M.
        multiplies_L: seeds that blend by multiplication, bool `[L]`; None for none.
    """
    return _Blend.apply(h, delta, alpha_L, grad_scale_L, active_L, multiplies_L, members)  # pyright: ignore[reportReturnType]
