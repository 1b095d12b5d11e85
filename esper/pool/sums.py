"""What a shard measures: sums over the samples of a split, and scores, losses and errors from them.

Sums of members that have not changed are kept: a frozen host gives the same results until its seed learns or its data drifts.
"""

# M members, L measured members, B batch, T targets of a sample, V variants

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.measure.counterfactuals import Measurement


class Sums(NamedTuple):
    """Sums over samples; the targets of one sample (all positions of a sequence) count as one draw.

    The points P of a sample and their scale n are sums over its targets; see `growth.objective`.
    """

    targets: Tensor
    """Number of targets `[M]`."""
    scale: Tensor
    """`[M]`"""
    scale_square: Tensor
    """Sum over samples of n^2 `[M]`."""
    points: Tensor
    """`[V, M]`"""
    loss: Tensor
    """`[V, M]`"""
    points_scale: Tensor
    """Sum over samples of P n `[V, M]`."""
    points_points: Tensor
    """Sum over samples of P of one variant times P of another `[V, V, M]`."""

    @staticmethod
    def total(batches: "Sequence[Sums]") -> "Sums":
        """Return the sums over several batches."""
        return Sums(*(torch.stack(parts).sum(0) for parts in zip(*batches, strict=True)))


class KnownSums:
    """The last sums of M members on one split, and the state of each member when it was measured."""

    def __init__(self) -> None:
        self._states: list[Hashable] = []
        self._sums: Sums | None = None

    def stale(self, states: Sequence[Hashable]) -> list[int]:
        """Return the members whose state has changed since their sums were last computed.

        Args:
            states: for each member, all that its sums depend on.
        """
        if self._sums is None:
            return list(range(len(states)))
        return [member for member, (now, then) in enumerate(zip(states, self._states, strict=True)) if now != then]

    def update(self, states: Sequence[Hashable], stale: Sequence[int], sums: Sums | None) -> Sums:
        """Take the sums of the stale members `[..., L]`, None for none, and return those of all members `[..., M]`."""
        if self._sums is None or len(stale) == len(states):
            assert sums is not None
            self._sums = sums
        elif sums is not None:
            rows = torch.tensor(stale, device=sums.targets.device)
            self._sums = Sums(*(old.index_copy(-1, rows, new) for old, new in zip(self._sums, sums, strict=True)))
        self._states = list(states)
        return self._sums


def sums_of(points_VMBT: Tensor, loss_VMBT: Tensor, scale_MBT: Tensor | None, weight_MBT: Tensor | None) -> Sums:
    """Return the sums over one batch."""
    if weight_MBT is None:
        count_MB = torch.full_like(points_VMBT[0, :, :, 0], points_VMBT.shape[-1])
    else:
        points_VMBT, loss_VMBT, count_MB = points_VMBT * weight_MBT, loss_VMBT * weight_MBT, weight_MBT.sum(-1)
    points_VMB, scale_MB = points_VMBT.sum(-1), count_MB
    if scale_MBT is not None:
        scale_MB = (scale_MBT if weight_MBT is None else scale_MBT * weight_MBT).sum(-1)
    return Sums(
        targets=count_MB.sum(-1),
        scale=scale_MB.sum(-1),
        scale_square=scale_MB.square().sum(-1),
        points=points_VMB.sum(-1),
        loss=loss_VMBT.sum(-1).sum(-1),
        points_scale=(points_VMB * scale_MB).sum(-1),
        points_points=torch.einsum("vmb,wmb->vwm", points_VMB, points_VMB),
    )


def copied(sums: Sums) -> list[npt.NDArray[np.float64]]:
    """Return sums as arrays, with one copy from their device."""
    whole = torch.cat([part.flatten() for part in sums]).cpu().numpy()
    pieces = np.split(whole, np.cumsum([part.numel() for part in sums])[:-1])
    return [piece.reshape(part.shape) for piece, part in zip(pieces, sums, strict=True)]


def measurement(sums: Sums, floor: float) -> Measurement:
    """Return scores and mean losses, the covariance of the scores, and the error of the difference to variant 0.

    With the points P and the scale n of a sample, a = sum P / sum n is a score, and the covariance of two scores is
    sum (P - a n)(P' - a' n) / (sum n)^2, as for ratio estimates from whole samples; for a difference, G = P - P' replaces
    P. A variant below the floor, or without a finite score, has P = floor n in every sample.
    """
    targets, scale, square, points, loss, mixed, gram = copied(sums)
    low_VM = ~(points >= floor * scale)
    if low_VM.any():
        points, mixed = np.where(low_VM, floor * scale, points), np.where(low_VM, floor * square, mixed)
        gram = np.where(low_VM[:, None], floor * mixed[None], np.where(low_VM[None], floor * mixed[:, None], gram))
    share = points / scale
    cross = share[:, None] * mixed[None]
    spread = gram - cross - cross.swapaxes(0, 1) + share[:, None] * share[None] * square
    gain, first = (points[:1] - points) / scale, np.diagonal(gram).T
    gain_square = first[:1] - 2 * gram[0] + first - 2 * gain * (mixed[:1] - mixed) + gain**2 * square
    return Measurement(
        accuracy_VM=(100.0 * share).astype(np.float32),
        loss_VM=(loss / targets).astype(np.float32),
        error_VM=(100.0 * np.sqrt(np.maximum(gain_square, 0.0)) / scale).astype(np.float32),
        covariance_VVM=1e4 * spread / scale**2,
    )
