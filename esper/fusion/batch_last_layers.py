"""Layers for images in batch-last memory, computed by `kernels`: batch norm, pooling and blocks of both, with their gradients.

They return images in batch-last memory, and take images in any.
"""

# M members, G groups, I inputs and O outputs of a group, C channels, H rows, W columns, B batch, K size of a kernel

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.fusion.batch_last import as_array, as_vector, batch_last, new_images
from esper.fusion.chain import GroupNorm, Link, chain, convolution, filters_of


def _applied(function: type[torch.autograd.Function], *given: Any) -> Tensor:
    apply: Callable[..., Tensor] = function.apply
    return apply(*given)


def batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, momentum: float, eps: float, *, rectify: bool
) -> Tensor:
    """Return the batch norm of a batch in training, and update the running statistics, as `F.batch_norm` does.

    Args:
        x: `[B, C, H, W]`.
        weight: `[C]`.
        bias: `[C]`.
        mean: running mean `[C]`.
        var: running variance `[C]`.
        momentum: weight of this batch in the running statistics.
        eps: added to the variance.
        rectify: if true, apply a ReLU to the result.
    """
    return _applied(_BatchNorm, x, weight, bias, mean, var, momentum, eps, rectify)


class _BatchNorm(torch.autograd.Function):
    """See `batch_norm`."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        var: Tensor,
        momentum: float,
        eps: float,
        rectify: bool,
    ) -> Tensor:
        from esper.fusion import kernels

        given = as_array(x)
        (result, out), (batch_mean, batch_var) = new_images(given.shape, given), np.empty((2, len(given)))
        kernels.normalise_channels(
            _rows(given), as_vector(weight), as_vector(bias), _rows(out), batch_mean, batch_var, eps, rectify
        )
        _update(mean, var, np.stack([batch_mean, batch_var]), given[0].size, momentum)
        ctx.save_for_backward(x, weight, bias)
        ctx.moments, ctx.eps, ctx.rectify = (batch_mean, batch_var), eps, rectify
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        from esper.fusion import kernels

        x, weight, bias = ctx.saved_tensors
        given, slope = as_array(x), as_array(grad)
        (found, grad_x), (grad_weight, grad_bias) = new_images(given.shape, given), np.empty((2, len(given)), given.dtype)
        (mean, var), norm = ctx.moments, (_rows(grad_x), grad_weight, grad_bias)
        arrays = _rows(slope), _rows(given), as_vector(weight), as_vector(bias), mean, var
        kernels.normalise_channels_backward(*arrays, ctx.eps, ctx.rectify, *norm)
        return found, torch.from_numpy(grad_weight), torch.from_numpy(grad_bias), *[None] * 5


def _rows(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return `[C, H, W, B]` as `[C, H*W*B]`."""
    return x.reshape(len(x), -1)


def max_pool(x: Tensor) -> Tensor:
    """Return the maximum of every 2 x 2 places, as `F.max_pool2d` does."""
    return _applied(_MaxPool, x)


class _MaxPool(torch.autograd.Function):
    """See `max_pool`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        from esper.fusion import kernels

        given = as_array(x)
        shape = (len(given), given.shape[1] // 2, given.shape[2] // 2, given.shape[3])
        (result, out), place = new_images(shape, given), np.empty(shape, np.uint8)
        kernels.pool(given, out, place)
        ctx.place, ctx.shape = place, given.shape
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        from esper.fusion import kernels

        slope = as_array(grad)
        found, grad_x = new_images(ctx.shape, slope)
        kernels.pool_backward(slope, ctx.place, grad_x)
        return found


def block(
    x: Tensor,
    filters: Tensor,
    conv_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
    *,
    members: int,
    pools: bool,
) -> Tensor:
    """Return a block in training: max pooling of 2 x 2 places (if `pools`), convolution, batch norm and ReLU.

    Args:
        x: `[B, M*I, H, W]`.
        filters: weights of the convolution `[M*O, I, K, K]`.
        conv_bias: its bias `[M*O]`.
        weight: weights of the norm `[M*O]`; see `batch_norm` for what follows.
    """
    return _applied(_Block, x, filters, conv_bias, weight, bias, mean, var, momentum, eps, members, pools)


class _Block(torch.autograd.Function):
    """See `block`."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        x: Tensor,
        filters: Tensor,
        conv_bias: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        var: Tensor,
        momentum: float,
        eps: float,
        members: int,
        pools: bool,
    ) -> Tensor:
        from esper.fusion import kernels

        source, weights = as_array(x), filters_of(filters, members)
        shape, (height, width) = (members, -1, *source.shape[1:]), (side // (1 + pools) for side in source.shape[1:3])
        source = source.reshape(shape)
        given = np.empty((*source.shape[:2], height, width, len(x)), source.dtype) if pools else source
        place = np.empty(given.shape if pools else (members, 0, 0, 0, 0), np.uint8)
        features = np.empty((members, weights.shape[1], *given.shape[2:]), source.dtype)
        result, out = new_images((len(filters), *given.shape[2:]), source)
        out = out.reshape(features.shape)
        shift = np.zeros(len(filters), source.dtype) if conv_bias is None else as_vector(conv_bias)
        affine = shift.reshape(members, -1), as_vector(weight).reshape(members, -1), as_vector(bias).reshape(members, -1)
        moments = np.empty((2, members, weights.shape[1]))
        running = mean.view(members, -1).numpy(), var.view(members, -1).numpy()
        arrays = (source, place, given, weights, *affine, features, out, moments[0], moments[1], *running)
        kernels.run_block(*arrays, momentum, eps, pools)
        ctx.save_for_backward(filters, weight, bias, *([] if pools else [x]))
        ctx.kept, ctx.moments, ctx.eps, ctx.shape = (given if pools else None, place, features), moments, eps, source.shape
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        from esper.fusion import kernels

        (filters, weight, bias, *source), (pooled, place, features) = ctx.saved_tensors, ctx.kept
        given = as_array(source[0]).reshape(ctx.shape) if source else pooled
        members, wanted, pools = len(given), ctx.needs_input_grad[0], not source
        weights = filters_of(filters, members)
        turned = np.ascontiguousarray(weights.swapaxes(1, 2)[..., ::-1, ::-1])
        shape = ctx.shape if wanted else (members, 0, 0, 0, 0)
        before, grad_x = new_images((members * shape[1], *shape[2:]), given)
        grad_filters, affine = np.empty_like(weights), np.empty((3, members, weights.shape[1]), given.dtype)
        slope = as_array(grad).reshape(features.shape)
        norm = as_vector(weight).reshape(members, -1), as_vector(bias).reshape(members, -1)
        arrays = (slope, given, place, turned, *norm, features, ctx.moments[0], ctx.moments[1])
        found = (grad_x.reshape(shape), grad_filters, affine[0], affine[1], affine[2])
        kernels.run_block_backward(*arrays, ctx.eps, pools, wanted, *found)
        conv_bias, grad_weight, grad_bias = (torch.from_numpy(one).flatten() for one in affine)
        conv_bias = conv_bias if ctx.needs_input_grad[2] else None
        filters_grad = torch.from_numpy(grad_filters).view(filters.shape)
        return before if wanted else None, filters_grad, conv_bias, grad_weight, grad_bias, *[None] * 6


def _update(mean: Tensor, var: Tensor, moments: npt.NDArray[Any], count: int, momentum: float) -> None:
    """Update running statistics from the mean and the biased variance of a batch with `count` samples times places."""
    now = torch.from_numpy(moments.reshape(2, -1)) * momentum
    mean.mul_(1 - momentum).add_(now[0])  # lerp_ would make NaN of infinity
    var.mul_(1 - momentum).add_(now[1] * (count / max(1, count - 1)))


@cache
def prepare(dtype: torch.dtype = torch.float32) -> None:
    """Compute every layer once, so that no training step includes the loading of kernels, or their compilation."""
    from esper.fusion import kernels

    x = batch_last(torch.zeros(2, 4, 4, 4, dtype=dtype)).requires_grad_()
    filters, mixing = (torch.zeros(4, 2, size, size, dtype=dtype, requires_grad=True) for size in (3, 1))
    weight, bias = (torch.zeros(4, dtype=dtype, requires_grad=True) for _ in range(2))
    mean, var = torch.zeros(4, dtype=dtype), torch.ones(4, dtype=dtype)
    with kernels.announced():
        results = [convolution(x, filters, bias, 2), convolution(x, mixing, None, 2, rectify=True), max_pool(x)]
        for rectify in (False, True):
            results.append(batch_norm(x, weight, bias, mean, var, 0.1, 1e-5, rectify=rectify))
            results.append(chain(x, [Link(GroupNorm(2, 1e-5, rectify), weight, bias)]))
            results.append(block(x, filters, bias, weight, bias, mean, var, 0.1, 1e-5, members=2, pools=rectify))
        torch.cat([result.flatten() for result in results]).sum().backward()
        rows, places, scale = torch.zeros(2, 4, dtype=dtype).numpy(), np.arange(2), torch.ones(2, dtype=dtype).numpy()
        kernels.copy_rows(rows, places, rows.copy())
        kernels.take_rows(rows, places, rows.copy())
        kernels.take_scaled(rows, places, scale, rows.copy())
        kernels.add_scaled(rows, rows.copy(), places, scale, places, rows.copy())
