"""Random splits of the rows of a table into three sets, and scaling by the training set."""

import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from esper.notices import UserNotice
from esper.task.data import TaskError

Floats = npt.NDArray[np.float64]
SHARE = 0.2
"""Share of the rows held out for validation, and again for testing."""

ROUNDING = 1e-12
"""Relative difference up to which values are equal, as 0.3 and 0.1 + 0.2 are meant to be."""


def split_rows(count: int, shuffle: np.random.Generator, name: str) -> dict[str, npt.NDArray[np.int64]]:
    """Return the rows of each set, drawn without replacement.

    Raises:
        TaskError: there are too few rows.
    """
    held_out = round(SHARE * count)
    if held_out < 2:
        raise TaskError(f"{name} has {count} rows, and a division into three sets needs at least 8: add rows")
    order = shuffle.permutation(count)
    return {"valid": order[:held_out], "test": order[held_out : 2 * held_out], "train": order[2 * held_out :]}


def mean_and_deviation(values: Floats, axis: tuple[int, ...] = (0,)) -> tuple[Floats, Floats]:
    """Return mean and standard deviation over these axes, kept with length 1. For values that are constant up to rounding, these
    are exactly the lowest value and 1. A deviation too small for a float is 1 as well."""
    constant, lowest = _constant(values, axis), values.min(axis=axis, keepdims=True)
    mean, std = values.mean(axis=axis, keepdims=True), values.std(axis=axis, keepdims=True)
    return np.where(constant, lowest, mean), np.where(constant | (std == 0), 1.0, std)


def _constant(values: Floats, axis: tuple[int, ...] = (0,)) -> npt.NDArray[np.bool_]:
    """Return whether values are constant over these axes up to rounding."""
    lowest, highest = values.min(axis=axis, keepdims=True), values.max(axis=axis, keepdims=True)
    return highest - lowest <= ROUNDING * np.maximum(abs(lowest), abs(highest))


def warn_of_constants(values: Floats, train: npt.NDArray[np.int64], names: Sequence[str], where: str) -> None:
    """Warn of columns that are constant in the training rows and not in the others: there, their values are not scaled."""
    told = _constant(values[train])[0] & ~_constant(values)[0]
    if found := [name for name, one in zip(names, told, strict=True) if one]:
        warnings.warn(
            f"{where}: constant in the training rows only: {', '.join(found)}: hosts learn nothing from such a column, and read "
            "its other values unscaled: leave it out",
            UserNotice,
            stacklevel=2,
        )


def scaled(values: Floats, train: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float32], Floats, Floats]:
    """Return values with mean 0 and deviation 1 over the training rows, column by column, and the mean and deviation that they
    had; columns that are constant there are only shifted, to 0."""
    mean, std = mean_and_deviation(values[train])
    return ((values - mean) / std).astype(np.float32), mean, std
