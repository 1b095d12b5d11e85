"""Regression tasks: a sample is a row of numbers, its target a number."""

# n rows, C columns

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from esper.growth.objective import Numbers, Objective, RegressionLoss
from esper.ranges import check_ranges
from esper.task.base import TaskConfig
from esper.task.data import Data, TaskError, Units
from esper.task.drifts import Drift, noise

Floats = npt.NDArray[np.float64]
SHARE = 0.2
"""Share of the rows held out for validation, and again for testing."""


@dataclass(kw_only=True, slots=True)
class RegressionConfig(TaskConfig):
    """Fields of all regression tasks."""

    default_host: ClassVar[str] = "mlp"
    default_blueprint: ClassVar[tuple[str, ...]] = ("norm", "mlp_small", "mlp")
    standard_kinds: ClassVar[Mapping[int, Sequence[str]]] = {2: ("oo", "xo", "ox")}
    drifts: ClassVar[Mapping[str, Drift]] = {"noise": noise}

    objective: RegressionLoss = RegressionLoss.mse
    """Loss of the hosts: mse, the mean squared error, or huber, which limits the influence of outliers. The score is R2."""
    delta: float = 1.0
    """Error at which the Huber loss changes from quadratic to linear, > 0 [standard deviations of the training targets]. Lower:
    outliers count less. Only with objective=huber."""
    batch_size: int = 32

    def __post_init__(self) -> None:
        TaskConfig.__post_init__(self)
        check_ranges("task", self, {"(0, inf)": ["delta"]})
        if self.objective is RegressionLoss.mse and self.delta != 1.0:
            raise ValueError("task.delta applies to the Huber loss only: set task.objective=huber, or leave it out")
        if self.label_noise != [0.0]:
            raise ValueError("task.label_noise exchanges classes, and the targets of this task are numbers: leave it out")

    def build_objective(self) -> Objective:
        return Numbers(self.objective, self.delta)


def split_table(rows: Floats, targets: Floats, shuffle: np.random.Generator, name: str, target: str = "") -> Data:
    """Return shuffled rows `[n, C]` and targets `[n]`, divided into three sets, with mean 0 and deviation 1 over training.

    Rows become images `[n, C, 1, 1]`, so that every host that reads images accepts them.

    Args:
        rows: numbers of each sample.
        targets: target of each sample.
        shuffle: stream of the order.
        name: name of the table in errors.
        target: name of what is predicted.

    Raises:
        TaskError: there are too few rows, or the targets of a set are all equal.
    """
    parts = split_rows(len(targets), shuffle, name)
    if not np.ptp(targets):
        raise TaskError(f"{name} has the same target in every row, so there is nothing to predict: name another column")
    if constant := [part for part, chosen in parts.items() if not np.ptp(targets[chosen])]:
        raise TaskError(f"{name} has equal targets in all rows of its {constant[0]} split, so R2 is undefined: add rows")
    tensors: dict[str, Any] = {}
    (x, mean, std), (y, target_mean, target_std) = (scaled(values, parts["train"]) for values in (rows, targets))
    for part, chosen in parts.items():
        tensors |= {f"{part}_x": torch.from_numpy(x[chosen][:, :, None, None]), f"{part}_y": torch.from_numpy(y[chosen])}
    units = replace(Units.of_arrays(mean, std), target_mean=float(target_mean[0]), target_std=float(target_std[0]))
    return Data(**tensors, num_classes=1, target=target, units=units)


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
    """Return mean and standard deviation over these axes, kept with length 1. For constant values, these are exactly the value
    and 1. A deviation too small for a float is 1 as well."""
    lowest, highest = values.min(axis=axis, keepdims=True), values.max(axis=axis, keepdims=True)
    mean, std = values.mean(axis=axis, keepdims=True), values.std(axis=axis, keepdims=True)
    constant = lowest == highest  # there, rounding gives a deviation of 1e-17, not 0
    return np.where(constant, lowest, mean), np.where(constant | (std == 0), 1.0, std)


def scaled(values: Floats, train: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float32], Floats, Floats]:
    """Return values with mean 0 and deviation 1 over the training rows, column by column, and the mean and deviation that they
    had; columns that are constant there are only shifted, to 0."""
    mean, std = mean_and_deviation(values[train])
    return ((values - mean) / std).astype(np.float32), mean, std
