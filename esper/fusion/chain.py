"""Chains of convolutions, group norms and ReLUs on images in batch-last memory, computed by `kernels`, with their gradients.

A chain is one function for autograd: the layers of a seed are so small that the bookkeeping of a function takes longer than its
kernel.
"""

# G groups, I inputs and O outputs of a group, C channels, H rows, W columns, B batch, K size of a kernel

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.fusion.batch_last import as_array, new_images

Array = npt.NDArray[Any]
Weights = tuple[Array, Array | None]
"""Weight and bias of a layer of all members; axes before those of a kernel, or of a channel, may be joined."""
Gradients = tuple[Array | None, Array | None, Array | None]
"""Gradients of the input, the weight and the bias of a layer; None for those that nobody wants."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution as `F.conv2d` computes it, for layers that `can_convolve`, and a ReLU if `rectify`.

    Its weight is `[..., I, K, K]`, for G * O outputs in all.
    """

    groups: int
    rectify: bool = False

    def channels(self, weight: Array) -> int:
        """Return the number of channels of the result."""
        return weight.size // math.prod(weight.shape[-3:])

    def compute(self, x: Array, weight: Array, bias: Array | None, out: Array | None) -> tuple[Array, Array]:
        """Return the result `[G*O, H, W, B]` for `[G*I, H, W, B]`, in `out` if it is given, and what the gradient needs."""
        filters, channels = weight.reshape(self.groups, -1, *weight.shape[-3:]), self.channels(weight)
        out = np.empty((channels, *x.shape[1:]), x.dtype) if out is None else out
        shift = np.zeros(channels, x.dtype) if bias is None else bias
        _convolve(x, filters, shift, out, rectify=self.rectify)
        return out, filters

    def gradients(self, slope: Array, x: Array, out: Array, filters: Any, weight: Array, wanted: Sequence[bool]) -> Gradients:
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

    def channels(self, weight: Array) -> int:
        """Return the number of channels of the result."""
        return weight.size

    def compute(self, x: Array, weight: Array, bias: Array | None, out: Array | None) -> tuple[Array, Array]:
        """Return the result for `[C, H, W, B]`, in `out` if it is given, and what the gradient needs."""
        from esper.fusion import kernels

        assert bias is not None
        out = np.empty_like(x) if out is None else out
        moments = np.empty((2, self.groups, x.shape[-1]), x.dtype)
        affine = weight.reshape(self.groups, -1), bias.reshape(self.groups, -1)
        given, result = _grouped(x, self.groups), _grouped(out, self.groups)
        kernels.normalise_groups(given, *affine, result, moments[0], moments[1], self.eps, self.rectify)
        return out, moments

    def gradients(self, slope: Array, x: Array, out: Array, moments: Any, weight: Array, wanted: Sequence[bool]) -> Gradients:
        """Return the gradients for that of the result."""
        from esper.fusion import kernels

        grad_x, affine = np.empty_like(x), np.empty((2, self.groups, len(x) // self.groups), x.dtype)
        given, result, weights = _grouped(x, self.groups), _grouped(out, self.groups), weight.reshape(self.groups, -1)
        found = _grouped(grad_x, self.groups), affine[0], affine[1]
        arrays = (_grouped(slope, self.groups), given, result, weights, moments[0], moments[1])
        kernels.normalise_groups_backward(*arrays, self.rectify, *found)
        return grad_x, affine[0], affine[1]


Layer = Convolution | GroupNorm


class Link(NamedTuple):
    """A layer of a chain."""

    layer: Layer
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
        ctx: Any, x: Tensor, layers: Sequence[Layer], *weights: Tensor | None
    ) -> Tensor:
        result, between, known = _forward(as_array(x), layers, _arrays(weights))
        ctx.save_for_backward(x, result if layers[-1].rectify else None, *weights)
        ctx.layers, ctx.between, ctx.known = layers, between, known
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, result, *weights = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[2 + 2 * place : 4 + 2 * place] for place in range(len(ctx.layers))]
        passed = Passed(as_array(x), result, ctx.layers, ctx.between, ctx.known, _arrays(weights))
        before, changes = _backward(passed, as_array(grad), wanted, wants_x=ctx.needs_input_grad[0])
        pairs = zip([change for pair in changes for change in pair], weights, strict=True)
        found = [
            None if change is None or weight is None else torch.from_numpy(change).view(weight.shape) for change, weight in pairs
        ]
        return before, None, *found


class FlatLayer(NamedTuple):
    """A layer of a chain whose weights are columns of a flat tensor `[M, P]`."""

    layer: Layer
    """For one member."""
    weight: slice
    shape: tuple[int, ...]
    """Shape of one member's weight."""
    bias: slice | None


def flat_chain(x: Tensor, flat: Tensor, rows_L: Tensor, layers: Sequence[FlatLayer], learns_L1: Tensor | None = None) -> Tensor:
    """Return the result of `chain` for some members, whose weights are rows of a flat tensor.

    Args:
        x: `[B, L*C, H, W]`.
        flat: `[M, P]`; its gradient is 0 for other members.
        rows_L: the members, which may repeat if no gradient is wanted.
        layers: the layers of one member.
        learns_L1: bool `[L, 1]`, members whose weights get a gradient; None for all.
    """
    apply: Callable[..., Tensor] = _FlatChain.apply
    return apply(x, flat, rows_L, layers, learns_L1)


class _FlatChain(torch.autograd.Function):
    """See `flat_chain`."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, x: Tensor, flat: Tensor, rows_L: Tensor, flat_layers: Sequence[FlatLayer], learns_L1: Tensor | None
    ) -> Tensor:
        rows = rows_L.numpy()
        values, count = flat.detach().numpy()[rows], len(rows)
        layers = [replace(one.layer, groups=count * one.layer.groups) for one in flat_layers]
        weights: list[Weights] = [
            (
                np.ascontiguousarray(values[:, one.weight]).reshape(count, *one.shape),
                None if one.bias is None else np.ascontiguousarray(values[:, one.bias]).reshape(-1),
            )
            for one in flat_layers
        ]
        result, between, known = _forward(as_array(x), layers, weights)
        ctx.save_for_backward(x, result if layers[-1].rectify else None)
        ctx.layers, ctx.between, ctx.known, ctx.weights = layers, between, known, weights
        ctx.places, ctx.rows, ctx.shape, ctx.learns = flat_layers, rows, flat.shape, learns_L1
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, result = ctx.saved_tensors
        wants_x, wants_flat = ctx.needs_input_grad[:2]
        passed = Passed(as_array(x), result, ctx.layers, ctx.between, ctx.known, ctx.weights)
        before, changes = _backward(passed, as_array(grad), [(wants_flat, wants_flat)] * len(ctx.layers), wants_x=wants_x)
        if not wants_flat:
            return before, *[None] * 4
        whole = torch.zeros(ctx.shape, dtype=grad.dtype)
        rows, out = ctx.rows, whole.numpy()
        for one, (weight, bias) in zip(ctx.places, changes, strict=True):
            for columns, change in ((one.weight, weight), (one.bias, bias)):
                if columns is not None and change is not None:
                    out[rows, columns] += change.reshape(len(rows), -1)  # layers may share a weight
        if ctx.learns is not None:
            out[rows[~ctx.learns.numpy()[:, 0]]] = 0
        return before, whole, None, None, None


class Passed(NamedTuple):
    """A forward pass through a chain."""

    x: Array
    """The input `[C, H, W, B]`."""
    result: Tensor | None
    """The result, if its last layer has a ReLU."""
    layers: Sequence[Layer]
    between: Sequence[Array]
    """Inputs of all layers but the first."""
    known: Sequence[Any]
    """What the gradient of each layer needs."""
    weights: Sequence[Weights]


def _forward(x: Array, layers: Sequence[Layer], weights: Sequence[Weights]) -> tuple[Tensor, list[Array], list[Any]]:
    """Return the result for `[C, H, W, B]`, the inputs of all layers but the first, and what the gradient of each layer needs."""
    inputs, known, (*inner, last) = [x], list[Any](), layers
    for place, layer in enumerate(inner):
        out, found = layer.compute(inputs[place], *weights[place], None)
        inputs.append(out)
        known.append(found)
    weight, bias = weights[-1]
    result, out = new_images((last.channels(weight), *inputs[-1].shape[1:]), inputs[-1])
    known.append(last.compute(inputs[-1], weight, bias, out)[1])
    return result, inputs[1:], known


def _backward(
    passed: Passed, slope: Array, wanted: Sequence[Sequence[bool]], *, wants_x: bool
) -> tuple[Tensor | None, list[tuple[Array | None, Array | None]]]:
    """Return the gradient of the input, and those of weight and bias of each layer, for that of the result.

    Args:
        passed: the forward pass.
        slope: gradient of the result.
        wanted: for each layer, whether the gradients of weight and bias are wanted.
        wants_x: whether that of the input is.
    """
    inputs = [passed.x, *passed.between]
    results = [*passed.between, inputs[-1] if passed.result is None else as_array(passed.result)]
    now: Array | None = slope
    changes = list[tuple[Array | None, Array | None]]()
    for place in reversed(range(len(passed.layers))):
        assert now is not None
        given = inputs[place], results[place], passed.known[place], passed.weights[place][0]
        now, weight, bias = passed.layers[place].gradients(now, *given, (place > 0 or wants_x, *wanted[place]))
        changes.append((weight, bias))
    return torch.from_numpy(now).movedim(-1, 0) if wants_x and now is not None else None, changes[::-1]


def _arrays(weights: Sequence[Tensor | None]) -> list[Weights]:
    """Return weight and bias of each layer as contiguous arrays."""
    arrays = [None if weight is None else weight.detach().contiguous().numpy() for weight in weights]
    pairs = list[Weights]()
    for weight, bias in zip(arrays[::2], arrays[1::2], strict=True):
        assert weight is not None
        pairs.append((weight, None if bias is None else bias.reshape(-1)))
    return pairs


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
