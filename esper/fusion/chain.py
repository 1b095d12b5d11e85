"""Chains of convolutions, group norms and ReLUs on images in batch-last memory, computed by `kernels`, with their gradients.

A chain is one function for autograd: the layers of a seed are so small that the bookkeeping of a function takes longer than its
kernel.
"""

# G groups, I inputs and O outputs of a group, C channels, H rows, W columns, B batch, K size of a kernel

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.fusion.batch_last import as_array, as_vector, new_images

Array = npt.NDArray[Any]
Gradients = tuple[Array | None, Array | None, Array | None]
"""Gradients of the input, the weight and the bias of a layer; None for those that nobody wants."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution as `F.conv2d` computes it, for layers that `can_convolve`, and a ReLU if `rectify`.

    Its weight is `[..., I, K, K]`, for G * O outputs in all.
    """

    groups: int
    rectify: bool = False

    def channels(self, weight: Tensor) -> int:
        """Return the number of channels of the result."""
        return weight.numel() // weight.shape[-3:].numel()

    def compute(self, x: Array, weight: Tensor, bias: Tensor | None, out: Array | None) -> tuple[Array, Array]:
        """Return the result `[G*O, H, W, B]` for `[G*I, H, W, B]`, in `out` if it is given, and what the gradient needs."""
        filters, channels = filters_of(weight, self.groups), self.channels(weight)
        out = np.empty((channels, *x.shape[1:]), x.dtype) if out is None else out
        shift = np.zeros(channels, x.dtype) if bias is None else as_vector(bias)
        _convolve(x, filters, shift, out, rectify=self.rectify)
        return out, filters

    def gradients(self, slope: Array, x: Array, out: Array, filters: Any, weight: Tensor, wanted: Sequence[bool]) -> Gradients:
        """Return the gradients for that of the result."""
        from esper.fusion import kernels

        if self.rectify:
            slope = np.where(out <= 0, slope.dtype.type(0), slope)
        grad_x = change = sums = None
        if wanted[0]:
            turned = np.ascontiguousarray(filters.swapaxes(1, 2)[..., ::-1, ::-1])
            grad_x = np.empty_like(x)
            _convolve(slope, turned, np.zeros(len(x), x.dtype), grad_x)
        if wanted[1]:
            given, by_group, change = _by_group(x, self.groups), _by_group(slope, self.groups), np.empty_like(filters)
            if filters.shape[-1] == 1:
                kernels.mix_weight(_flat(given), _flat(by_group), change[..., 0, 0])
            else:
                kernels.convolve_weight(given, by_group, change, slope.shape[-1])
        if wanted[2]:
            sums = np.empty(len(slope), slope.dtype)
            kernels.channel_sums(slope.reshape(len(slope), -1), sums)
        return grad_x, change, sums


@dataclass(frozen=True, slots=True)
class GroupNorm:
    """A group norm as `F.group_norm` computes it, with weight and bias of all channels, and a ReLU if `rectify`."""

    groups: int
    eps: float
    rectify: bool = False

    def channels(self, weight: Tensor) -> int:
        """Return the number of channels of the result."""
        return weight.numel()

    def compute(self, x: Array, weight: Tensor, bias: Tensor | None, out: Array | None) -> tuple[Array, Array]:
        """Return the result for `[C, H, W, B]`, in `out` if it is given, and what the gradient needs."""
        from esper.fusion import kernels

        assert bias is not None
        out = np.empty_like(x) if out is None else out
        moments = np.empty((2, self.groups, x.shape[-1]), x.dtype)
        affine = as_vector(weight).reshape(self.groups, -1), as_vector(bias).reshape(self.groups, -1)
        given, result = _grouped(x, self.groups), _grouped(out, self.groups)
        kernels.normalise_groups(given, *affine, result, moments[0], moments[1], self.eps, self.rectify)
        return out, moments

    def gradients(self, slope: Array, x: Array, out: Array, moments: Any, weight: Tensor, wanted: Sequence[bool]) -> Gradients:
        """Return the gradients for that of the result."""
        from esper.fusion import kernels

        grad_x, affine = np.empty_like(x), np.empty((2, self.groups, len(x) // self.groups), x.dtype)
        given, result, weights = _grouped(x, self.groups), _grouped(out, self.groups), as_vector(weight).reshape(self.groups, -1)
        found = _grouped(grad_x, self.groups), affine[0], affine[1]
        arrays = (_grouped(slope, self.groups), given, result, weights, moments[0], moments[1])
        kernels.normalise_groups_backward(*arrays, self.rectify, *found)
        return grad_x, affine[0], affine[1]


class Link(NamedTuple):
    """A layer of a chain."""

    layer: Convolution | GroupNorm
    weight: Tensor
    bias: Tensor | None


def chain(x: Tensor, links: Sequence[Link]) -> Tensor:
    """Return the result of layers that follow each other, for images in any memory; it is in batch-last memory."""
    apply: Callable[..., Tensor] = _Chain.apply
    return apply(x, [link.layer for link in links], *(part for link in links for part in link[1:]))


class _Chain(torch.autograd.Function):
    """See `chain`."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, x: Tensor, layers: Sequence[Convolution | GroupNorm], *weights: Tensor | None
    ) -> Tensor:
        inputs, known = [as_array(x)], list[Any]()
        *inner, last = layers
        for place, layer in enumerate(inner):
            out, found = layer.compute(inputs[place], *_of(weights, place), None)
            inputs.append(out)
            known.append(found)
        weight, bias = _of(weights, len(inner))
        result, out = new_images((last.channels(weight), *inputs[-1].shape[1:]), inputs[-1])
        known.append(last.compute(inputs[-1], weight, bias, out)[1])
        ctx.save_for_backward(x, result if last.rectify else None, *weights)
        ctx.layers, ctx.between, ctx.known = layers, inputs[1:], known
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, result, *weights = ctx.saved_tensors
        inputs = [as_array(x), *ctx.between]
        results = [*ctx.between, inputs[-1] if result is None else as_array(result)]  # only a ReLU needs its result
        slope: Array | None = as_array(grad)
        found: list[Tensor | None] = [None] * len(weights)
        for place in reversed(range(len(ctx.layers))):
            wanted = (place > 0 or ctx.needs_input_grad[0], *ctx.needs_input_grad[2 + 2 * place : 4 + 2 * place])
            given = inputs[place], results[place], ctx.known[place], weights[2 * place]
            slope, *changes = ctx.layers[place].gradients(slope, *given, wanted)
            for index, change in enumerate(changes, 2 * place):
                if ctx.needs_input_grad[2 + index] and change is not None:
                    found[index] = torch.from_numpy(change).view(weights[index].shape)
        before = None if slope is None or not ctx.needs_input_grad[0] else torch.from_numpy(slope).movedim(-1, 0)
        return before, None, *found


def _of(weights: Sequence[Tensor | None], place: int) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias of a layer."""
    weight = weights[2 * place]
    assert weight is not None
    return weight, weights[2 * place + 1]


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, *, rectify: bool = False) -> Tensor:
    """Return a convolution as `F.conv2d` does, for layers that `can_convolve`.

    Args:
        x: `[B, G*I, H, W]`.
        weight: `[G*O, I, K, K]`.
        bias: `[G*O]`.
        groups: G.
        rectify: if true, apply a ReLU to the result.
    """
    return chain(x, [Link(Convolution(groups, rectify), weight, bias)])


def filters_of(weight: Tensor, groups: int) -> Array:
    """Return weights `[..., I, K, K]` as an array `[G, O, I, K, K]`."""
    return weight.detach().contiguous().view(groups, -1, *weight.shape[-3:]).numpy()


def _convolve(x: Array, filters: Array, bias: Array, out: Array, *, rectify: bool = False) -> None:
    """Set `[G*O, H, W, B]` to the convolution of `[G*I, H, W, B]` with filters `[G, O, I, K, K]`."""
    from esper.fusion import kernels

    groups, outputs = filters.shape[:2]
    given, results, shift = _by_group(x, groups), _by_group(out, groups), bias.reshape(groups, outputs)
    if filters.shape[-1] == 1:
        kernels.mix(_flat(given), filters[..., 0, 0], shift, _flat(results), rectify)
    else:
        kernels.convolve(given, filters, shift, results, x.shape[3], rectify)


def _by_group(x: Array, groups: int) -> Array:
    """Return `[C, H, W, B]` as `[G, I, H, W*B]`."""
    return x.reshape(groups, -1, x.shape[1], x.shape[2] * x.shape[3])


def _flat(x: Array) -> Array:
    """Return `[G, I, H, L]` as `[G, I, H*L]`."""
    return x.reshape(*x.shape[:2], -1)


def _grouped(x: Array, groups: int) -> Array:
    """Return `[C, H, W, B]` as `[G, I, H*W, B]`."""
    return x.reshape(groups, -1, x.shape[1] * x.shape[2], x.shape[3])
