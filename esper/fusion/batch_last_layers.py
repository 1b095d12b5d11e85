"""Layers for images in batch-last memory, computed by `kernels`: convolution, norms and pooling, with their gradients.

They return images in batch-last memory, and take images in any.
"""

# M members, G groups, I inputs and O outputs of a group, C channels, H rows, W columns, B batch, K size of a kernel

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.fusion.batch_last import DTYPES, batch_last


def _array(x: Tensor) -> npt.NDArray[Any]:
    """Return images as an array `[C, H, W, B]`."""
    return x.detach().permute(1, 2, 3, 0).contiguous().numpy()


def _new(shape: Sequence[int], like: npt.NDArray[Any]) -> tuple[Tensor, npt.NDArray[Any]]:
    """Return new images, and their memory as an array `[C, H, W, B]` of this shape.

    The images are no view of another tensor, so that the layers that follow may change them in place.
    """
    channels, height, width, batch = shape
    strides = (1, height * width * batch, width * batch, batch)
    images = torch.empty_strided((batch, channels, height, width), strides, dtype=DTYPES[like.dtype == np.float64])
    return images, images.permute(1, 2, 3, 0).numpy()


def _vector(x: Tensor) -> npt.NDArray[Any]:
    return x.detach().contiguous().view(-1).numpy()


def _applied(function: type[torch.autograd.Function], *given: Any) -> Tensor:
    apply: Callable[..., Tensor] = function.apply
    return apply(*given)


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, *, rectify: bool = False) -> Tensor:
    """Return a convolution as `F.conv2d` does, for layers that `can_convolve`.

    Args:
        x: `[B, G*I, H, W]`.
        weight: `[G*O, I, K, K]`.
        bias: `[G*O]`.
        groups: G.
        rectify: if true, apply a ReLU to the result.
    """
    return _applied(_Convolution, x, weight, bias, groups, rectify)


class _Convolution(torch.autograd.Function):
    """See `convolution`."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, rectify: bool
    ) -> Tensor:
        given, filters = _array(x), _filters(weight, groups)
        shift = np.zeros(len(weight), given.dtype) if bias is None else _vector(bias)
        result, out = _new((len(weight), *given.shape[1:]), given)
        _convolve(given, filters, shift, out, rectify=rectify)
        ctx.save_for_backward(x, weight, *([result] if rectify else []))
        ctx.groups = groups
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        from esper.fusion import kernels

        x, weight, *result = ctx.saved_tensors
        found: list[Tensor | None] = [None] * 5
        slope, filters = _array(grad.masked_fill(result[0] <= 0, 0.0) if result else grad), _filters(weight, ctx.groups)
        if ctx.needs_input_grad[0]:
            turned = np.ascontiguousarray(filters.swapaxes(1, 2)[..., ::-1, ::-1])
            found[0], out = _new((x.shape[1], *slope.shape[1:]), slope)
            _convolve(slope, turned, np.zeros(x.shape[1], slope.dtype), out)
        if ctx.needs_input_grad[1]:
            given, change = _by_group(_array(x), ctx.groups), np.empty_like(filters)
            by_group = _by_group(slope, ctx.groups)
            if filters.shape[-1] == 1:
                kernels.mix_weight(_flat(given), _flat(by_group), change[..., 0, 0])
            else:
                kernels.convolve_weight(given, by_group, change, len(grad))
            found[1] = torch.from_numpy(change).view(weight.shape)
        if ctx.needs_input_grad[2]:
            sums = np.empty(len(slope), slope.dtype)
            kernels.channel_sums(slope.reshape(len(slope), -1), sums)
            found[2] = torch.from_numpy(sums)
        return tuple(found)


def _filters(weight: Tensor, groups: int) -> npt.NDArray[Any]:
    """Return weights as an array `[G, O, I, K, K]`."""
    return weight.detach().contiguous().view(groups, -1, *weight.shape[1:]).numpy()


def _by_group(x: npt.NDArray[Any], groups: int) -> npt.NDArray[Any]:
    """Return `[C, H, W, B]` as `[G, I, H, W*B]`."""
    return x.reshape(groups, -1, x.shape[1], x.shape[2] * x.shape[3])


def _flat(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return `[G, I, H, L]` as `[G, I, H*L]`."""
    return x.reshape(*x.shape[:2], -1)


def _convolve(
    x: npt.NDArray[Any], filters: npt.NDArray[Any], bias: npt.NDArray[Any], out: npt.NDArray[Any], *, rectify: bool = False
) -> None:
    """Set `[G*O, H, W, B]` to the convolution of `[G*I, H, W, B]` with filters `[G, O, I, K, K]`."""
    from esper.fusion import kernels

    groups, outputs = filters.shape[:2]
    given, results, shift = _by_group(x, groups), _by_group(out, groups), bias.reshape(groups, outputs)
    if filters.shape[-1] == 1:
        kernels.mix(_flat(given), filters[..., 0, 0], shift, _flat(results), rectify)
    else:
        kernels.convolve(given, filters, shift, results, x.shape[3], rectify)


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

        given = _array(x)
        (result, out), (batch_mean, batch_var) = _new(given.shape, given), np.empty((2, len(given)))
        kernels.normalise_channels(_rows(given), _vector(weight), _vector(bias), _rows(out), batch_mean, batch_var, eps, rectify)
        _update(mean, var, np.stack([batch_mean, batch_var]), given[0].size, momentum)
        ctx.save_for_backward(x, weight, *([result] if rectify else []))
        ctx.moments, ctx.eps, ctx.rectify = (batch_mean, batch_var), eps, rectify
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        from esper.fusion import kernels

        x, weight, *result = ctx.saved_tensors
        given, slope = _array(x), _array(grad)
        out = _array(result[0]) if result else given
        (found, grad_x), (grad_weight, grad_bias) = _new(given.shape, given), np.empty((2, len(given)), given.dtype)
        (mean, var), norm = ctx.moments, (_rows(grad_x), grad_weight, grad_bias)
        arrays = _rows(slope), _rows(given), _rows(out), _vector(weight), mean, var
        kernels.normalise_channels_backward(*arrays, ctx.eps, ctx.rectify, *norm)
        return found, torch.from_numpy(grad_weight), torch.from_numpy(grad_bias), *[None] * 5


def _rows(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return `[C, H, W, B]` as `[C, H*W*B]`."""
    return x.reshape(len(x), -1)


def group_norm(x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float, *, rectify: bool) -> Tensor:
    """Return the group norm of images `[B, C, H, W]`, as `F.group_norm` does, and apply a ReLU to it if `rectify`."""
    return _applied(_GroupNorm, x, groups, weight, bias, eps, rectify)


class _GroupNorm(torch.autograd.Function):
    """See `group_norm`."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float, rectify: bool
    ) -> Tensor:
        from esper.fusion import kernels

        given = _array(x)
        (result, out), moments = _new(given.shape, given), np.empty((2, groups, len(x)), given.dtype)
        affine = _vector(weight).reshape(groups, -1), _vector(bias).reshape(groups, -1)
        mean, inverse = moments
        kernels.normalise_groups(_grouped(given, groups), *affine, _grouped(out, groups), mean, inverse, eps, rectify)
        ctx.save_for_backward(x, weight, *([result] if rectify else []))
        ctx.moments, ctx.groups, ctx.rectify = moments, groups, rectify
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        from esper.fusion import kernels

        (x, weight, *result), groups = ctx.saved_tensors, ctx.groups
        given, slope = _array(x), _array(grad)
        out = _array(result[0]) if result else given
        (found, grad_x), affine = _new(given.shape, given), np.empty((2, groups, len(given) // groups), given.dtype)
        (mean, inverse), (grad_weight, grad_bias) = ctx.moments, affine
        arrays = _grouped(slope, groups), _grouped(given, groups), _grouped(out, groups)
        weights = _vector(weight).reshape(groups, -1)
        kernels.normalise_groups_backward(
            *arrays, weights, mean, inverse, ctx.rectify, _grouped(grad_x, groups), grad_weight, grad_bias
        )
        return found, None, torch.from_numpy(grad_weight).flatten(), torch.from_numpy(grad_bias).flatten(), None, None


def _grouped(x: npt.NDArray[Any], groups: int) -> npt.NDArray[Any]:
    """Return `[C, H, W, B]` as `[G, I, H*W, B]`."""
    return x.reshape(groups, -1, x.shape[1] * x.shape[2], x.shape[3])


def max_pool(x: Tensor) -> Tensor:
    """Return the maximum of every 2 x 2 places, as `F.max_pool2d` does."""
    return _applied(_MaxPool, x)


class _MaxPool(torch.autograd.Function):
    """See `max_pool`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        from esper.fusion import kernels

        given = _array(x)
        shape = (len(given), given.shape[1] // 2, given.shape[2] // 2, given.shape[3])
        (result, out), place = _new(shape, given), np.empty(shape, np.uint8)
        kernels.pool(given, out, place)
        ctx.place, ctx.shape = place, given.shape
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        from esper.fusion import kernels

        slope = _array(grad)
        found, grad_x = _new(ctx.shape, slope)
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

        source, weights = _array(x), _filters(filters, members)
        shape, (height, width) = (members, -1, *source.shape[1:]), (side // (1 + pools) for side in source.shape[1:3])
        source = source.reshape(shape)
        given = np.empty((*source.shape[:2], height, width, len(x)), source.dtype) if pools else source
        place = np.empty(given.shape if pools else (members, 0, 0, 0, 0), np.uint8)
        features = np.empty((members, weights.shape[1], *given.shape[2:]), source.dtype)
        result, out = _new((len(filters), *given.shape[2:]), source)
        out = out.reshape(features.shape)
        shift = np.zeros(len(filters), source.dtype) if conv_bias is None else _vector(conv_bias)
        affine = shift.reshape(members, -1), _vector(weight).reshape(members, -1), _vector(bias).reshape(members, -1)
        moments = np.empty((2, members, weights.shape[1]))
        running = mean.view(members, -1).numpy(), var.view(members, -1).numpy()
        arrays = (source, place, given, weights, *affine, features, out, moments[0], moments[1], *running)
        kernels.run_block(*arrays, momentum, eps, pools)
        ctx.save_for_backward(filters, weight, result, *([] if pools else [x]))
        ctx.kept, ctx.moments, ctx.eps, ctx.shape = (given if pools else None, place, features), moments, eps, source.shape
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        from esper.fusion import kernels

        (filters, weight, result, *source), (pooled, place, features) = ctx.saved_tensors, ctx.kept
        given, out = _array(source[0]).reshape(ctx.shape) if source else pooled, _array(result).reshape(features.shape)
        members, wanted, pools = len(given), ctx.needs_input_grad[0], not source
        weights = _filters(filters, members)
        turned = np.ascontiguousarray(weights.swapaxes(1, 2)[..., ::-1, ::-1])
        shape = ctx.shape if wanted else (members, 0, 0, 0, 0)
        before, grad_x = _new((members * shape[1], *shape[2:]), given)
        grad_filters, affine = np.empty_like(weights), np.empty((3, members, weights.shape[1]), given.dtype)
        slope, norms = _array(grad).reshape(out.shape), _vector(weight).reshape(members, -1)
        arrays = (slope, given, place, turned, norms, features, out, ctx.moments[0], ctx.moments[1])
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
def prepare() -> None:
    """Compute every layer once, so that no training step includes the loading of kernels, or their compilation."""
    from esper.fusion import kernels

    x = batch_last(torch.zeros(2, 4, 4, 4)).requires_grad_()
    filters, mixing = (torch.zeros(4, 2, size, size, requires_grad=True) for size in (3, 1))
    weight, bias = (torch.zeros(4, requires_grad=True) for _ in range(2))
    mean, var = torch.zeros(4), torch.ones(4)
    with kernels.announced():
        results = [convolution(x, filters, bias, 2), convolution(x, mixing, None, 2, rectify=True), max_pool(x)]
        for rectify in (False, True):
            results.append(batch_norm(x, weight, bias, mean, var, 0.1, 1e-5, rectify=rectify))
            results.append(group_norm(x, 2, weight, bias, 1e-5, rectify=rectify))
            results.append(block(x, filters, bias, weight, bias, mean, var, 0.1, 1e-5, members=2, pools=rectify))
        torch.cat([result.flatten() for result in results]).sum().backward()
