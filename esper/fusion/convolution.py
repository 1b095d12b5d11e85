"""The convolution of many members: a grouped convolution, and what a GPU needs instead.

cuDNN computes a grouped convolution in single precision group by group, with several kernels for each. For small images these
take longer to launch than to compute, so windows are gathered into matrices and multiplied as one batch: on an H200, forward and
backward of 64 convolutions of 8 channels on images of 8 x 8 take 0.7 ms instead of 4.4, and 2.8 instead of 36 for 512 of them.

In other kernels, as in half precision, cuDNN computes several groups in one tile, as a matrix with zeros between the groups.
Since infinity times zero is NaN, one member's overflow would spread to its neighbours. So a member with a non-finite value is
computed with zeros, and its results are then set to NaN.
"""

# M members, G groups, B batch, I inputs and O outputs of a group, R output positions of a batch

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from esper.fusion.precision import HALF

Pair = tuple[int, int]
GATHERED = 2**21
"""Maximum number of values that a group gathers into its matrix: 8 MB. With more of them, a grouped convolution is about as fast
on an H200: it takes 1.3 times as long with 4.7 million, and 0.7 times with 9.4."""
KEPT = 2**27
"""Maximum number of values in the matrices of one layer that are kept for the backward pass, 512 MB; more are gathered again
there."""


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, dilation: Pair, groups: int, members: int
) -> Tensor:
    """Return the convolution of M members, as `F.conv2d` does, by the method that suits the device.

    Args:
        x: features `[B, G*I, H, W]`.
        weight: `[G*O, I, k, k]`.
        bias: `[G*O]`.
        stride: steps of the kernel.
        padding: zeros around the image.
        dilation: distance of the kernel's elements.
        groups: G, a multiple of M.
        members: M.
    """
    if not x.is_cuda or members == 1:
        return F.conv2d(x, weight, bias, stride, padding, dilation, groups)
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    height, width = _size(x.shape[2:], weight.shape[2:], stride, padding, dilation)
    gathered = x.shape[0] * height * width * weight[0].numel()
    if dtype in HALF.values() or weight.shape[1] == 1 or dilation != (1, 1) or gathered > GATHERED:
        return contained(x, weight, bias, stride, padding, dilation, groups, members)
    if groups * gathered <= KEPT:
        return by_matrices(x, weight, bias, stride, padding, groups)
    how = (x, weight, bias, stride, padding, groups)
    return checkpoint(by_matrices, *how, use_reentrant=False, preserve_rng_state=False)  # pyright: ignore[reportReturnType]


def _size(image: torch.Size, kernel: torch.Size, stride: Pair, padding: Pair, dilation: Pair) -> Pair:
    """Return the height and the width of the output."""
    height, width = (
        (side + 2 * pad - wide * (length - 1) - 1) // step + 1
        for side, length, step, pad, wide in zip(image, kernel, stride, padding, dilation, strict=True)
    )
    return height, width


def by_matrices(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, groups: int) -> Tensor:
    """Return a grouped convolution as one batch of matrix products, in channels-last memory; see `convolution`."""
    outputs, inputs, *kernel = weight.shape[0] // groups, *weight.shape[1:]
    h, w = padding
    padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, w, w, h, h))
    windows = padded.unflatten(3, (groups, inputs)).unfold(1, kernel[0], stride[0]).unfold(2, kernel[1], stride[1])
    batch, height, width = windows.shape[:3]
    x_GRI = windows.permute(3, 0, 1, 2, 4, 5, 6).reshape(groups, batch * height * width, -1)
    weight_GIO = weight.view(groups, outputs, -1).transpose(1, 2)
    bias_G1O = None if bias is None else bias.view(groups, 1, outputs)
    y_GRO = torch.bmm(x_GRI, weight_GIO) if bias_G1O is None else torch.baddbmm(bias_G1O, x_GRI, weight_GIO)
    y = y_GRO.view(groups, batch, height, width, outputs).permute(1, 2, 3, 0, 4)
    return y.reshape(batch, height, width, -1).permute(0, 3, 1, 2)


def contained(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, dilation: Pair, groups: int, members: int
) -> Tensor:
    """Return a grouped convolution in which a member that is not finite affects no other; see `convolution`."""
    how = (stride, padding, dilation, False, [0, 0], groups)
    return _Contained.apply(x, weight, bias, how, members)  # pyright: ignore[reportReturnType]


class _Contained(torch.autograd.Function):
    """A grouped convolution in which a member that is not finite affects no other; its own results are NaN then."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, how: Any, members: int
    ) -> Tensor:
        ctx.how, ctx.members = how, members
        nonfinite_M = _nonfinite(x, members) + weight.reshape(members, -1).sum(1, dtype=torch.float32) * 0.0
        x, weight = _cleaned(x), _cleaned(weight)
        ctx.save_for_backward(x, weight, nonfinite_M)
        added = _per_channel(nonfinite_M, len(weight), x.dtype)
        y = torch.ops.aten.convolution(x, weight, None, *how)
        return y.add_((added if bias is None else added + bias).view(1, -1, 1, 1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight, nonfinite_M = ctx.saved_tensors
        nonfinite_M = nonfinite_M + _nonfinite(grad, ctx.members)
        wanted = list(ctx.needs_input_grad[:3])
        grads = torch.ops.aten.convolution_backward(_cleaned(grad), x, weight, [len(weight)], *ctx.how, wanted)
        grad_x, grad_weight, grad_bias = (one if given else None for one, given in zip(grads, wanted, strict=True))
        if grad_x is not None:
            grad_x = grad_x.add_(_per_channel(nonfinite_M, x.shape[1], x.dtype).view(1, -1, 1, 1))
        added = _per_channel(nonfinite_M, len(weight), weight.dtype)
        grad_weight = None if grad_weight is None else grad_weight.add_(added.view(-1, 1, 1, 1))
        return grad_x, grad_weight, None if grad_bias is None else grad_bias + added, None, None


def _cleaned(x: Tensor) -> Tensor:
    """Return a copy with 0 in place of all that is not finite."""
    return x.nan_to_num(0.0, 0.0, 0.0)


def _nonfinite(x: Tensor, members: int) -> Tensor:
    """Return NaN for members with a value that is not finite in their features, or with a sum beyond single precision; else 0
    `[M]`."""
    batch, _, height, width = x.shape
    by_member = x.permute(0, 2, 3, 1).reshape(batch, height, width, members, -1)
    return by_member.sum((0, 1, 2, 4), dtype=torch.float32) * 0.0


def _per_channel(nonfinite_M: Tensor, channels: int, dtype: torch.dtype) -> Tensor:
    return nonfinite_M.to(dtype).repeat_interleave(channels // len(nonfinite_M))
