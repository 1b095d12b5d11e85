"""A slot on images in batch-last memory, where the features of a member are a row: two functions for autograd.

Elsewhere, the members with seeds are gathered and split by bank, and the deltas are joined, scaled and added; the backward pass
does the same in reverse. On small hosts this takes as long as the seeds themselves. Here each row is read and written once.
Results and gradients are those of `blend` and `isolate`, bit for bit.
"""

# M members, L members with a seed of one bank, K values of one member, B batch, C channels

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.fusion.batch_last import as_array, new_images

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class BankRows:
    """The members with a seed of one bank."""

    places_L: IntArray
    """Their rows in the features."""
    alpha_L: npt.NDArray[np.float32]
    """Blend weight of each seed."""
    grad_scale_L: npt.NDArray[np.float32]
    """Weight of each seed's gradient."""
    open_O: IntArray
    """Seeds whose gradient reaches the features, as indices of `places_L`."""

    @property
    def seeds(self) -> int:
        """Number of seeds."""
        return len(self.places_L)


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotRows:
    """The members with a seed in one slot, by bank."""

    members: int
    banks: tuple[BankRows, ...]
    bare: IntArray
    """Rows of the members without a seed."""
    unreached: IntArray
    """Rows that no seed's gradient reaches."""

    @classmethod
    def of(
        cls, members: int, sizes: Sequence[int], active_L: Tensor, alpha_L: Tensor, grad_scale_L: Tensor, open_L: Tensor | None
    ) -> "SlotRows":
        """Return the rows of seeds that follow each other bank by bank; see `ActiveSeeds`.

        Args:
            members: M.
            sizes: number of seeds of each bank.
            active_L: row of each seed's member in the features.
            alpha_L: see `BankRows`.
            grad_scale_L: see `BankRows`.
            open_L: seeds whose gradient reaches the features, bool; None for all.
        """
        active, alpha, scale = active_L.numpy(), alpha_L.numpy(), grad_scale_L.numpy()
        opens = np.ones(len(active), np.bool_) if open_L is None else open_L.numpy()
        ends = np.cumsum(sizes)
        parts = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        return cls(
            members=members,
            banks=tuple(
                BankRows(places_L=active[part], alpha_L=alpha[part], grad_scale_L=scale[part], open_O=np.flatnonzero(opens[part]))
                for part in parts
            ),
            bare=np.setdiff1d(np.arange(members), active),
            unreached=np.setdiff1d(np.arange(members), active[opens]),
        )


def fork_rows(x: Tensor, rows: SlotRows) -> tuple[Tensor, ...]:
    """Return the features `[B, M*C, H, W]`, and those of the members with a seed, for each bank `[B, L*C, H, W]`.

    Gradients of closed seeds stop here. Features of a bank whose seeds are all closed need no gradient.
    """
    return _Fork.apply(x, rows)  # pyright: ignore[reportReturnType]


def blend_rows(h: Tensor, deltas: Sequence[Tensor], rows: SlotRows) -> Tensor:
    """Return h + alpha * delta for the members with a seed, and h for the others, with the gradients of `blend`.

    Args:
        h: `[B, M*C, H, W]`.
        deltas: output of the seeds of each bank `[B, L*C, H, W]`.
        rows: the seeds.
    """
    return _BlendRows.apply(h, rows, *deltas)  # pyright: ignore[reportReturnType]


class _Fork(torch.autograd.Function):
    """See `fork_rows`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: SlotRows) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        from esper.fusion import kernels

        ctx.rows, given = rows, as_array(x)
        pieces = list[Tensor]()
        for bank in rows.banks:
            piece, out = _new_rows(bank.seeds, rows.members, given)
            kernels.take_rows(_by_member(given, rows.members), bank.places_L, out)
            pieces.append(piece)
        ctx.mark_non_differentiable(*(piece for bank, piece in zip(rows.banks, pieces, strict=True) if not len(bank.open_O)))
        ctx.set_materialize_grads(False)
        return x, *pieces

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor, *slopes: Tensor | None
    ) -> tuple[Tensor, None]:
        from esper.fusion import kernels

        rows: SlotRows = ctx.rows
        if all(slope is None for slope in slopes):
            return grad, None
        given = as_array(grad)
        whole, out = _new_rows(rows.members, rows.members, given)
        from_after = _by_member(given, rows.members)
        kernels.copy_rows(from_after, rows.unreached, out)
        for bank, slope in zip(rows.banks, slopes, strict=True):
            places = bank.places_L[bank.open_O]
            if slope is None:
                kernels.copy_rows(from_after, places, out)
            else:
                ones = np.ones(len(places), np.float32)
                kernels.add_scaled(from_after, _by_member(as_array(slope), bank.seeds), bank.open_O, ones, places, out)
        return whole, None


class _BlendRows(torch.autograd.Function):
    """See `blend_rows`."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, h: Tensor, rows: SlotRows, *deltas: Tensor
    ) -> Tensor:
        from esper.fusion import kernels

        ctx.rows, given = rows, as_array(h)
        result, out = _new_rows(rows.members, rows.members, given)
        before = _by_member(given, rows.members)
        kernels.copy_rows(before, rows.bare, out)
        for bank, delta in zip(rows.banks, deltas, strict=True):
            part = _by_member(as_array(delta), bank.seeds)
            if part.shape[1] != before.shape[1]:  # a kernel would read past its end
                raise ValueError(f"a seed returned {tuple(delta.shape)}, which is not the shape of its input")
            kernels.add_scaled(before, part, np.arange(bank.seeds), bank.alpha_L, bank.places_L, out)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        from esper.fusion import kernels

        rows, given = ctx.rows, as_array(grad)
        slopes = list[Tensor | None]()
        for bank, wanted in zip(rows.banks, ctx.needs_input_grad[2:], strict=True):
            slope, out = _new_rows(bank.seeds, rows.members, given)
            if wanted:
                kernels.take_scaled(_by_member(given, rows.members), bank.places_L, bank.grad_scale_L, out)
            slopes.append(slope if wanted else None)
        return grad, None, *slopes


def _by_member(images: Array, members: int) -> Array:
    """Return images `[M*C, H, W, B]` as rows `[M, K]`."""
    return images.reshape(members, -1)


def _new_rows(count: int, members: int, like: Array) -> tuple[Tensor, Array]:
    """Return new images of `count` members, and their memory as rows `[count, K]`; `like` holds those of M members."""
    images, memory = new_images((count * (len(like) // members), *like.shape[1:]), like)
    return images, memory.reshape(count, -1)
