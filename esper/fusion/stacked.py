"""Stacked forms: one layer that computes a layer of M members at once.

A stacked layer infers the layout of its features (see `layout`) from its input.
"""

# M members, B batch, T positions, D width, C channels of one member, I inputs, O outputs

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.fusion import batch_last_layers as own
from esper.fusion.batch_last import can_convolve, fits_kernels, is_batch_last
from esper.fusion.chain import Convolution, GroupNorm, Link, chain
from esper.fusion.convolution import convolution
from esper.fusion.layer_norm import layer_norm
from esper.fusion.layers import (
    CausalAttention,
    ChannelScale,
    MaskedConv2d,
    MaskedLinear,
    Positions,
    check_length,
    self_attention,
)
from esper.fusion.layout import members_first, per_member
from esper.fusion.precision import as_given


class FusionError(ValueError):
    """A module cannot be fused; the message names the layer and the remedy."""


def refuse(layer: nn.Module, what: str, instead: str) -> FusionError:
    """Return the error for a variant of a layer that has no stacked form."""
    return FusionError(
        f"a {type(layer).__name__} with {what} has no stacked form: {instead}, or set devices.<name>.members_per_shard=1"
    )


class StackedLayer(nn.Module):
    """Base of all stacked forms: parameters and buffers of M layers on a leading member axis.

    While a `Fleet` holds the layer, its parameters are views of the fleet's flat tensor and are bound before each forward.
    """

    members: int
    origin: dict[str, int]
    """Id of the parameter of the first module behind each parameter, by which a `Fleet` ties shared parameters."""
    weight: Tensor
    bias: Tensor | None
    """None where the layer has none."""
    mask: Tensor | None

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = len(layers)
        named = dict(layers[0].named_parameters(recurse=False, remove_duplicate=False))
        self.origin = {name: id(parameter) for name, parameter in named.items()}
        for name in named:
            self.register_parameter(name, nn.Parameter(torch.stack([layer.get_parameter(name) for layer in layers])))
        for name, _ in layers[0].named_buffers(recurse=False):
            self.register_buffer(name, torch.stack([layer.get_buffer(name) for layer in layers]))
        self.bias, self.mask = getattr(self, "bias", None), getattr(self, "mask", None)


class StackedConv2d(StackedLayer):
    """`Conv2d` and `MaskedConv2d`: one `convolution`. Input `[B, M*I, H, W]`, weight `[M, O, I, k, k]`."""

    def __init__(self, layers: Sequence[nn.Conv2d]) -> None:
        super().__init__(layers)
        first = layers[0]
        if first.padding_mode != "zeros" or isinstance(first.padding, str):
            what = f"padding={first.padding!r} and padding_mode={first.padding_mode!r}"
            raise refuse(first, what, "use numeric zero padding")
        self.stride, self.padding, self.dilation = (_pair(value) for value in (first.stride, first.padding, first.dilation))
        self.groups, self.keeps_size = first.groups, can_convolve(first)

    def forward(self, x: Tensor) -> Tensor:
        if self.keeps_size and fits_kernels(x):
            return chain(x, [self.link()])
        weight, bias = self.filters()
        how = self.stride, self.padding, self.dilation, self.members * self.groups, self.members
        return convolution(x, weight, bias, *how)

    def filters(self) -> tuple[Tensor, Tensor | None]:
        """Return the weights of all members `[M*O, I, k, k]`, and their bias `[M*O]`."""
        return self._masked().flatten(0, 1), None if self.bias is None else self.bias.flatten()

    def link(self, *, rectify: bool = False) -> Link:
        """Return the layer, and a ReLU after it if `rectify`, as part of a `chain`; only if `keeps_size`."""
        return Link(Convolution(self.members * self.groups, rectify), self._masked(), self.bias)

    def for_one(self, *, rectify: bool = False) -> Convolution:
        """Return the layer of one member without its weights, and a ReLU after it if `rectify`; only if `keeps_size`."""
        return Convolution(self.groups, rectify)

    def _masked(self) -> Tensor:
        return self.weight if self.mask is None else self.weight * self.mask[:, None, None]


def _pair(value: tuple[int, ...]) -> tuple[int, int]:
    height, width = value
    return height, width


class StackedBatchNorm2d(StackedLayer):
    """`BatchNorm2d`: statistics are per channel, so M layers are one wider layer. Running statistics `[M, C]`."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, layers: Sequence[nn.BatchNorm2d]) -> None:
        super().__init__(layers)
        first = layers[0]
        if first.momentum is None or not (first.affine and first.track_running_stats):
            raise refuse(first, "no momentum, affine parameters or running statistics", "use the defaults")
        self.momentum, self.eps = first.momentum, first.eps

    def forward(self, x: Tensor, *, rectify: bool = False) -> Tensor:
        weight, bias, mean, var = self.vectors()
        if fits_kernels(x) and self.training:
            return own.batch_norm(x, weight, bias, mean, var, self.momentum, self.eps, rectify=rectify)
        y = F.batch_norm(x, mean, var, weight, bias, self.training, self.momentum, self.eps)
        return F.relu_(y) if rectify else y

    def vectors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return weight, bias, running mean and running variance of all members, each `[M*C]`."""
        assert self.bias is not None
        # One channel per member is a column of the flat tensor: torch 2.13 ignores its stride in a backward pass on a CPU.
        weight, bias = self.weight.flatten().contiguous(), self.bias.flatten().contiguous()
        return weight, bias, self.running_mean.view(-1), self.running_var.view(-1)


class StackedGroupNorm(StackedLayer):
    """`GroupNorm` on images and vectors: M layers of G groups are one layer of M*G groups."""

    def __init__(self, layers: Sequence[nn.GroupNorm]) -> None:
        super().__init__(layers)
        if not layers[0].affine:
            raise refuse(layers[0], "no affine parameters", "use the defaults")
        self.num_groups, self.eps = layers[0].num_groups, layers[0].eps

    def forward(self, x: Tensor) -> Tensor:
        assert self.bias is not None
        if members_first(x):
            raise ValueError("a fused GroupNorm takes images or vectors, got sequences: use LayerNorm there")
        if fits_kernels(x):
            return chain(x, [self.link()])
        if self.weight.requires_grad and not x.requires_grad:
            # On a CPU, torch 2.13 crashes in the backward of a channels-last group norm whose input needs no gradient.
            x = x.detach().requires_grad_()
        weight, bias = self.weight.flatten().to(x.dtype), self.bias.flatten().to(x.dtype)
        with as_given(x):
            return F.group_norm(x, self.members * self.num_groups, weight, bias, self.eps)

    def link(self, *, rectify: bool = False) -> Link:
        """Return the layer, and a ReLU after it if `rectify`, as part of a `chain`."""
        return Link(GroupNorm(self.members * self.num_groups, self.eps, rectify), self.weight, self.bias)

    def for_one(self, *, rectify: bool = False) -> GroupNorm:
        """Return the layer of one member without its weights, and a ReLU after it if `rectify`."""
        return GroupNorm(self.num_groups, self.eps, rectify)


class StackedMaxPool2d(StackedLayer):
    """`MaxPool2d`, which does not mix channels."""

    def __init__(self, layers: Sequence[nn.MaxPool2d]) -> None:
        super().__init__(layers)
        self._pool = layers[0]
        sizes = [_both(one) for one in (self._pool.kernel_size, self._pool.stride, self._pool.padding, self._pool.dilation)]
        self.halves = sizes == [(2, 2), (2, 2), (0, 0), (1, 1)] and not (self._pool.ceil_mode or self._pool.return_indices)

    def forward(self, x: Tensor) -> Tensor:
        if self.halves and fits_kernels(x) and min(x.shape[2:]) > 1:
            return own.max_pool(x)
        return self._pool(x)


def _both(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value)


class StackedLayerNorm(StackedLayer):
    """`LayerNorm` over the last axis: the width of sequences, or the whole of vectors, batch-last if the input is. Weight and
    bias `[M, D]`."""

    def __init__(self, layers: Sequence[nn.LayerNorm]) -> None:
        super().__init__(layers)
        first = layers[0]
        if len(first.normalized_shape) != 1 or not first.elementwise_affine:
            raise refuse(first, "several axes or no affine parameters", "normalise the last axis, with the defaults")
        self.normalized_shape, self.eps = first.normalized_shape, first.eps

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 4:
            raise ValueError("a fused LayerNorm takes sequences or vectors, got images: use GroupNorm there")
        if is_batch_last(x) and x.dtype == self.weight.dtype:
            x_MCB = x.t().unflatten(0, (self.members, -1))
            return layer_norm(x_MCB, self.weight, self.bias, self.eps).flatten(0, 1).t()
        weight, bias = self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype)
        if members_first(x):
            y, weight = x.unflatten(0, (self.members, -1)), weight[:, None, None]
            bias = None if bias is None else bias[:, None, None]
        else:
            y = x.unflatten(1, (self.members, -1))
        with as_given(x):
            y = F.layer_norm(y, self.normalized_shape, None, None, self.eps)
            return (y * weight if bias is None else torch.addcmul(bias, y, weight)).view(x.shape)


class StackedLinear(StackedLayer):
    """`Linear` and `MaskedLinear`: a batch of matrix products, weight `[M, O, I]`.

    Vectors `[B, M*I]` to `[B, M*O]`, batch-last if the input is; sequences `[M*B, T, I]` to `[M*B, T, O]`.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 4:
            raise ValueError("a fused Linear takes vectors or sequences, got images: flatten them, or use Conv2d")
        weight = self.weight if self.mask is None else self.weight * self.mask[:, None]
        rows_first = members_first(x)
        if not rows_first and is_batch_last(x):
            x_MIB = x.t().unflatten(0, (self.members, -1))
            y_MOB = weight.bmm(x_MIB) if self.bias is None else torch.baddbmm(self.bias[:, :, None], weight, x_MIB)
            return y_MOB.flatten(0, 1).t()
        x_MRI = x.view(self.members, -1, x.shape[-1]) if rows_first else x.view(x.shape[0], self.members, -1).transpose(0, 1)
        weight_MIO = weight.transpose(1, 2)
        y_MRO = torch.bmm(x_MRI, weight_MIO) if self.bias is None else torch.baddbmm(self.bias[:, None], x_MRI, weight_MIO)
        return y_MRO.view(*x.shape[:-1], -1) if rows_first else y_MRO.transpose(0, 1).reshape(x.shape[0], -1)


class StackedEmbedding(StackedLayer):
    """`Embedding`: one table per member. Tokens `[M*B, T]` to `[M*B, T, D]`."""

    def __init__(self, layers: Sequence[nn.Embedding]) -> None:
        super().__init__(layers)
        first = layers[0]
        if first.padding_idx is not None or first.max_norm is not None or first.scale_grad_by_freq or first.sparse:
            raise refuse(first, "padding_idx, max_norm, scale_grad_by_freq or sparse", "use the defaults")

    def forward(self, tokens: Tensor) -> Tensor:
        # Beyond its own table, a member would read the next one's. On a GPU, a check would force a synchronisation.
        if tokens.device.type == "cpu" and tokens.numel():
            least, largest = map(int, tokens.aminmax())
            if least < 0 or largest >= self.weight.shape[1]:
                raise IndexError(
                    f"token {largest if least >= 0 else least} is not one of the {self.weight.shape[1]} rows of an embedding"
                )
        first_M = torch.arange(self.members, device=tokens.device) * self.weight.shape[1]
        return F.embedding(tokens + per_member(first_M, tokens), self.weight.flatten(0, 1))


class StackedPositions(StackedLayer):
    """`Positions`: weight `[M, T, D]`."""

    def forward(self, x: Tensor) -> Tensor:
        check_length(x, self.weight.shape[1])
        return (x.unflatten(0, (self.members, -1)) + self.weight[:, None, : x.shape[1]]).view(x.shape)


class StackedChannelScale(StackedLayer):
    """`ChannelScale`: weight `[M, C]`."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype)
        if members_first(x):
            return (x.unflatten(0, (self.members, -1)) * weight[:, None, None]).view(x.shape)
        return x * weight.reshape(1, -1, *[1] * (x.dim() - 2))


class StackedCausalAttention(StackedLayer):
    """`CausalAttention`: attention does not mix samples; the lesions are booleans `[M]`."""

    lesioned: Tensor

    def __init__(self, layers: Sequence[CausalAttention]) -> None:
        super().__init__(layers)
        self.heads = layers[0].heads

    def forward(self, qkv: Tensor) -> Tensor:
        alone = per_member(self.lesioned, qkv)
        return torch.where(alone, qkv.chunk(3, -1)[2], self_attention(qkv, self.heads))


class StackedFlatten(StackedLayer):
    """`Flatten` from axis 1 on: images `[B, M*C, H, W]` to vectors `[B, M*(C*H*W)]`, members side by side."""

    def __init__(self, layers: Sequence[nn.Flatten]) -> None:
        super().__init__(layers)
        first = layers[0]
        if (first.start_dim, first.end_dim) != (1, -1):
            raise refuse(first, f"start_dim={first.start_dim} and end_dim={first.end_dim}", "use the defaults")

    def forward(self, x: Tensor) -> Tensor:
        if members_first(x):
            raise ValueError("a fused Flatten takes images, got sequences: take a mean over the positions instead")
        return x.flatten(1)


STACKED: dict[type[nn.Module], type[StackedLayer]] = {
    nn.Conv2d: StackedConv2d,
    MaskedConv2d: StackedConv2d,
    nn.BatchNorm2d: StackedBatchNorm2d,
    nn.GroupNorm: StackedGroupNorm,
    nn.MaxPool2d: StackedMaxPool2d,
    nn.LayerNorm: StackedLayerNorm,
    nn.Linear: StackedLinear,
    MaskedLinear: StackedLinear,
    nn.Embedding: StackedEmbedding,
    nn.Flatten: StackedFlatten,
    Positions: StackedPositions,
    ChannelScale: StackedChannelScale,
    CausalAttention: StackedCausalAttention,
}
"""Stacked form of each leaf layer; a new one takes one line here and one class above."""
