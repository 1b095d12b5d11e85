"""Random splits of the rows of a table into three sets, and scaling by the training set."""

import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from esper.notices import UserNotice
from esper.task.data import TaskError

Floats = npt.NDArray[np.float64]
USES = {"train": "training", "valid": "validation", "test": "testing"}
"""Set -> use of its samples."""
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


def check_classes(counts: Sequence[int], names: Sequence[object], sets: Sequence[str], where: str, samples: str) -> None:
    """Check that each class has at least one sample for each set of a random split, so that this does not depend on the draw.

    Args:
        counts: number of samples of each class that are split.
        names: name of each class.
        sets: sets among which they are split.
        where: name of the data in errors.
        samples: the word for them in errors.

    Raises:
        TaskError: a class has fewer.
    """
    if few := [name for name, count in zip(names, counts, strict=True) if count < len(sets)]:
        raise TaskError(
            f"{where} has fewer than {len(sets)} {samples} of class {few[0]!r}, too few for "
            f"{', '.join(USES[one] for one in sets[:-1])} and {USES[sets[-1]]}: add {samples} of this class, or remove it"
        )


def without_training(name: object, where: str, sample: str) -> TaskError:
    """Return the error of a random split that leaves no training sample of a class."""
    return TaskError(
        f"{where} has no training {sample} of class {name!r} in this split: add some, remove the class, or set "
        "task.split_seed to another number"
    )


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


def warn_of_columns(values: Floats, train: npt.NDArray[np.int64], names: Sequence[str], where: str) -> None:
    """Warn of columns that count the rows, and of columns that are constant in the training rows and not in the others: there,
    their values are not scaled."""
    if counts := [name for name, steps in zip(names, np.diff(values, axis=0).T, strict=True) if (steps == 1).all()]:
        warnings.warn(
            f"{where}: counts the rows: {', '.join(counts)}: leave such a column out, unless it is a measurement",
            UserNotice,
            stacklevel=2,
        )
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
