"""Snapshots of members, from which failed members are restored."""

# M members

from collections.abc import Mapping

import torch
from torch import Tensor


class Snapshots:
    """The last snapshot of every member: one row of each of several tensors."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def save(self, rows: Mapping[str, Tensor], healthy_M: Tensor | None) -> None:
        """Save the rows of the marked members; the snapshot of a tensor that is new is zero at first.

        Args:
            rows: tensors `[M, ...]` by name.
            healthy_M: the members to save, bool `[M]`, on the device of the tensors; None for all.
        """
        for name, row in rows.items():
            kept = self._kept.get(name)
            if kept is None:
                kept = self._kept[name] = torch.zeros_like(row)
            kept.copy_(row if healthy_M is None else _where(healthy_M, row, kept))

    def restore(self, rows: Mapping[str, Tensor], failed_M: Tensor) -> None:
        """Restore the rows of the marked members in place, exactly; other members do not change."""
        for name, row in rows.items():
            kept = self._kept.get(name)
            row.copy_(_where(failed_M, torch.zeros_like(row) if kept is None else kept, row))


def _where(which_M: Tensor, here: Tensor, there: Tensor) -> Tensor:
    """Return the rows of the marked members from `here`, the others from `there`."""
    return torch.where(which_M.view(-1, *[1] * (here.dim() - 1)), here, there)
