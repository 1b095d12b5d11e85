"""Kernels on the features of members in batch-last memory, where a member is a row. They round as the formulas are written."""

# M members, L chosen members, K values of one member

from functools import partial

import numpy as np
import numpy.typing as npt

from esper.fusion.kernels import Array, compiled

as_written = partial(compiled, reordered=False)
Places = npt.NDArray[np.int64]


@as_written
def copy_rows(x: Array, places: Places, out: Array) -> None:
    """Copy the rows at these places of `x` `[M, K]` to the same places of `out`."""
    for m in places:
        out[m] = x[m]


@as_written
def take_rows(x: Array, places: Places, out: Array) -> None:
    """Set `out` `[L, K]` to the rows at these places of `x` `[M, K]`."""
    for index in range(len(places)):
        out[index] = x[places[index]]


@as_written
def take_scaled(x: Array, places: Places, scale: Array, out: Array) -> None:
    """Set `out` `[L, K]` to the rows at these places of `x` `[M, K]`, times `scale` `[L]`."""
    for index in range(len(places)):
        row, factor = x[places[index]], scale[index]
        for k in range(len(row)):
            out[index, k] = row[k] * factor


@as_written
def add_scaled(x: Array, part: Array, rows: Places, scale: Array, places: Places, out: Array) -> None:
    """Set `out` `[M, K]` at these places to `x` plus the given rows of `part` times `scale`; other places keep their values.

    Args:
        x: `[M, K]`.
        part: `[L, K]`.
        rows: a row of `part` for each place.
        scale: a factor for each place.
        places: rows of `x` and `out`.
        out: `[M, K]`.
    """
    for index in range(len(places)):
        row, other, factor, m = x[places[index]], part[rows[index]], scale[index], places[index]
        for k in range(len(row)):
            out[m, k] = row[k] + other[k] * factor
