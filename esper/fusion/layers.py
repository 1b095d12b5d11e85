"""Custom leaf layers of one network; see `stacked` for their stacked forms."""

# B batch, T positions, D width, C channels

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.fusion.batch_last import fits_kernels
from esper.fusion.layout import members_first


class MaskedConv2d(nn.Conv2d):
    """A convolution whose kernel is multiplied by a fixed 0/1 mask of the kernel's height and width."""

    any_strides = True

    mask: Tensor

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, mask: Tensor, *, padding: int) -> None:
        super().__init__(in_channels, out_channels, kernel_size, padding=padding, bias=False)
        self.register_buffer("mask", mask.clone())

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(input, self.weight * self.mask, self.bias, self.stride, self.padding, self.dilation, self.groups)


class MaskedLinear(nn.Linear):
    """A linear map whose weights are multiplied by a fixed 0/1 mask of its inputs `[in_features]`."""

    any_strides = True

    mask: Tensor

    def __init__(self, in_features: int, out_features: int, mask: Tensor) -> None:
        super().__init__(in_features, out_features)
        self.register_buffer("mask", mask.clone())

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight * self.mask, self.bias)


class GlobalMean(nn.Module):
    """The mean over height and width."""

    any_strides = True

    def forward(self, x: Tensor) -> Tensor:
        if fits_kernels(x):  # so that its gradient is, too
            return x.permute(1, 2, 3, 0).flatten(1, 2).mean(1).t()
        return x.mean((2, 3))


class ChannelScale(nn.Module):
    """A learned factor per channel, initialised to zero (LayerScale, Touvron et al. 2021)."""

    any_strides = True

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.weight if members_first(x) else self.weight.view(1, -1, *[1] * (x.dim() - 2)))


class Positions(nn.Module):
    """A learned vector added to each position of sequences `[B, T, D]`, T at most `context`."""

    def __init__(self, context: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(context, width))

    def forward(self, x: Tensor) -> Tensor:
        check_length(x, self.weight.shape[0])
        return x + self.weight[: x.shape[1]]


class CausalAttention(nn.Module):
    """Causal attention from queries, keys and values `[B, T, 3*D]` to `[B, T, D]`.

    With a lesion every position attends only to itself, so the layer returns v. The lesion is a buffer, so healthy and
    lesioned members run in one program.
    """

    lesioned: Tensor

    def __init__(self, heads: int, *, lesioned: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.register_buffer("lesioned", torch.tensor(lesioned))

    def forward(self, qkv: Tensor) -> Tensor:
        return torch.where(self.lesioned, qkv.chunk(3, -1)[2], self_attention(qkv, self.heads))


def self_attention(qkv: Tensor, heads: int, *, causal: bool = True) -> Tensor:
    """Return softmax(q k' / sqrt(D / heads)) v per head, by default with a causal mask, `[B, T, 3*D]` to `[B, T, D]`."""
    b, t, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    q, k, v = qkv.view(b, t, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(b, t, width)


def check_length(x: Tensor, context: int) -> None:
    """Raise ValueError if sequences `[B, T, ...]` are longer than the context."""
    if x.shape[1] > context:
        raise ValueError(f"a sequence of {x.shape[1]} positions exceeds host.context={context}: raise it, or shorten the text")


def spread_mask(features: int, share: float) -> Tensor:
    """Return a fixed 0/1 mask `[features]` with about this share of ones, spread evenly by steps of the golden ratio."""
    place = torch.arange(features, dtype=torch.float64) * ((math.sqrt(5) - 1) / 2)
    return (place.frac() < share).to(torch.get_default_dtype())
