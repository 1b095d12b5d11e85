"""The layout of members in the features of a fused network, and selections of members.

    images      [B, M*C, H, W]   channels-last or batch-last in memory, members side by side along the channels
    vectors     [B, M*C]         the same without space; row by row or batch-last in memory
    sequences   [M*B, T, D]      the batches of the members one after another; tokens are integers [M*B, T]

Images and vectors suit grouped convolutions and per-channel statistics. Sequences keep D whole, so that attention and other
operations on single samples need no stacked form. The number of axes identifies the layout; with two axes the type does (integers
are tokens).
"""

# M members, L chosen members, B batch, C channels of one member, T positions, D width of one member

import math
from collections.abc import Sequence
from enum import StrEnum

import torch
from torch import Tensor

from esper.fusion.batch_last import batch_last, is_batch_last

CONFLICTS = 256
"""Smallest size of samples [numbers] that is transposed block by block."""
PERMUTE = "if channels come last, return x.permute(0, 3, 1, 2)"
"""Remedy for images whose channels come last."""


class Layout(StrEnum):
    """Kind of features; see the module docstring."""

    IMAGES = "images"
    VECTORS = "vectors"
    SEQUENCES = "sequences"


def members_first(x: Tensor) -> bool:
    """Return whether the members lie along axis 0 (sequences and tokens)."""
    return x.dim() == 3 or not x.is_floating_point()


def side_by_side(samples_MB: Tensor, *, samples_last: bool = False) -> Tensor:
    """Return the samples of each member `[M, B, ...]` in their layout; images and vectors batch-last if `samples_last`."""
    if members_first(samples_MB[0]):
        return samples_MB.flatten(0, 1)
    if samples_last:
        return _transposed(samples_MB).flatten(0, 1).movedim(-1, 0)
    if samples_MB.dim() == 3:
        return samples_MB.transpose(0, 1).flatten(1)
    _, b, _, h, w = samples_MB.shape
    if samples_MB.device.type == "cpu":  # two copies of long runs are up to four times as fast as one of short runs
        return samples_MB.transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)
    return samples_MB.permute(1, 3, 4, 0, 2).contiguous().view(b, h, w, -1).permute(0, 3, 1, 2)


def _transposed(samples_MB: Tensor) -> Tensor:
    """Return contiguous samples `[M, ..., B]`.

    On a CPU, samples whose size is a large multiple of 512 bytes share few sets of the cache. Only matrices are transposed block
    by block in PyTorch, which is then two to five times as fast.
    """
    members, batch, *shape = samples_MB.shape
    size = math.prod(shape)
    if samples_MB.device.type != "cpu" or size < CONFLICTS or size % (CONFLICTS // 2):
        return samples_MB.movedim(1, -1).contiguous()
    out = samples_MB.new_empty(members, size, batch)
    for member in range(members):
        out[member].copy_(samples_MB[member].flatten(1).t())
    return out.view(members, *shape, batch)


def repeated(samples_B: Tensor, members: int, *, samples_last: bool = False) -> Tensor:
    """Return the same samples `[B, ...]` for each of M members, as `side_by_side` does."""
    if members_first(samples_B):
        return samples_B.repeat(members, *[1] * (samples_B.dim() - 1))
    if samples_last:
        last = batch_last(samples_B).movedim(0, -1)
        return last.repeat(members, *[1] * (last.dim() - 1)).movedim(-1, 0)
    many = samples_B.repeat(1, members, *[1] * (samples_B.dim() - 2))
    return many.contiguous(memory_format=torch.channels_last) if many.dim() == 4 else many


def per_member(value_L: Tensor, like: Tensor) -> Tensor:
    """Repeat `[L]` over the features of each member, to broadcast with `like`."""
    if members_first(like):
        return value_L.repeat_interleave(like.shape[0] // value_L.shape[0]).view(-1, *[1] * (like.dim() - 1))
    return value_L.repeat_interleave(like.shape[1] // value_L.shape[0]).view(1, -1, *[1] * (like.dim() - 2))


def take_members(x: Tensor, chosen_L: Tensor, members: int) -> Tensor:
    """Return the features of the chosen members of M, in the given order."""
    if members_first(x):
        return x.view(members, -1, *x.shape[1:]).index_select(0, chosen_L).flatten(0, 1)
    if is_batch_last(x):
        return _first(x, members).index_select(0, chosen_L).flatten(0, 1).movedim(-1, 0)
    if x.dim() == 4:
        b, _, h, w = x.shape
        chosen = x.permute(0, 2, 3, 1).view(b, h, w, members, -1).index_select(3, chosen_L)
        return chosen.view(b, h, w, -1).permute(0, 3, 1, 2)
    return x.view(x.shape[0], members, -1).index_select(1, chosen_L).view(x.shape[0], -1)


def add_members(x: Tensor, chosen_L: Tensor, part: Tensor, members: int) -> Tensor:
    """Add `part`, features of L members, to the features of the chosen members, in place, and return `x`."""
    if members_first(x):
        x.view(members, -1, *x.shape[1:]).index_add_(0, chosen_L, part.reshape(len(chosen_L), -1, *part.shape[1:]))
        return x
    if is_batch_last(x):
        _first(x, members).index_add_(0, chosen_L, _first(batch_last(part), len(chosen_L)))
        return x
    if x.dim() == 4:
        b, _, h, w = x.shape
        whole = x.permute(0, 2, 3, 1).view(b, h, w, members, -1)
        whole.index_add_(3, chosen_L, part.permute(0, 2, 3, 1).reshape(b, h, w, len(chosen_L), -1))
        return x
    x.view(x.shape[0], members, -1).index_add_(1, chosen_L, part.view(x.shape[0], len(chosen_L), -1))
    return x


def _first(x: Tensor, members: int) -> Tensor:
    """Return images in batch-last memory as `[M, C, H, W, B]`, and vectors as `[M, C, B]`, a view."""
    return x.movedim(0, -1).unflatten(0, (members, -1))


def split_members(x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Split features of sum(sizes) members into the first `sizes[0]` members, the next `sizes[1]`, and so on."""
    if len(sizes) == 1:
        return (x,)
    axis = 0 if members_first(x) else 1
    each = [size * (x.shape[axis] // sum(sizes)) for size in sizes]
    if axis and is_batch_last(x):  # so that the gradient is, too
        return tuple(part.movedim(-1, 0) for part in x.movedim(0, -1).split(each))
    return x.split(each, axis)


def join_members(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate features of members, the inverse of `split_members`."""
    if len(parts) == 1:
        return parts[0]
    if all(is_batch_last(part) for part in parts):
        return torch.cat([part.movedim(0, -1) for part in parts]).movedim(-1, 0)
    return torch.cat(list(parts), 0 if members_first(parts[0]) else 1)


def by_member(logits: Tensor, members: int) -> Tensor:
    """Return the outputs of a host by member: vectors as `[M, B, K]`, sequences as `[M, B*T, K]`."""
    if members_first(logits):
        return logits.view(members, -1, logits.shape[-1])
    return logits.view(logits.shape[0], members, -1).transpose(0, 1)


def channels_last(shape: Sequence[int]) -> bool:
    """Return whether a shape `[n, C, H, W]` looks as if its channels came last."""
    return len(shape) == 4 and 1 < shape[1] == shape[2] and shape[3] in (1, 3, 4)
