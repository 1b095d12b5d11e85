"""Regression tasks: a sample is a row of numbers, its target a number."""

# n rows, C columns

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from esper.growth.objective import Numbers, Objective, RegressionLoss
from esper.ranges import check_ranges
from esper.task.base import TaskConfig
from esper.task.data import Data, TaskError, Units
from esper.task.drifts import Drift, noise
from esper.task.splits import Floats, scaled, split_rows, warn_of_columns


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


def split_table(
    rows: Floats, targets: Floats, shuffle: np.random.Generator, name: str, target: str = "", columns: Sequence[str] = ()
) -> Data:
    """Return shuffled rows `[n, C]` and targets `[n]`, divided into three sets, with mean 0 and deviation 1 over training.

    Rows become images `[n, C, 1, 1]`, which hosts that read images accept unless they pool.

    Args:
        rows: numbers of each sample.
        targets: target of each sample.
        shuffle: stream of the order.
        name: name of the table in errors.
        target: name of what is predicted.
        columns: names of the columns, for a warning.

    Raises:
        TaskError: there are too few rows, or the targets of a set are all equal.
    """
    parts = split_rows(len(targets), shuffle, name)
    if not np.ptp(targets):
        raise TaskError(f"{name} has the same target in every row, so there is nothing to predict: name another column")
    if constant := [part for part, chosen in parts.items() if not np.ptp(targets[chosen])]:
        raise TaskError(f"{name} has equal targets in all rows of its {constant[0]} split, so R2 is undefined: add rows")
    if columns:
        warn_of_columns(rows, parts["train"], columns, name)
    tensors: dict[str, Any] = {}
    (x, mean, std), (y, target_mean, target_std) = (scaled(values, parts["train"]) for values in (rows, targets))
    for part, chosen in parts.items():
        tensors |= {f"{part}_x": torch.from_numpy(x[chosen][:, :, None, None]), f"{part}_y": torch.from_numpy(y[chosen])}
    units = replace(Units.of_arrays(mean, std), target_mean=float(target_mean[0]), target_std=float(target_std[0]))
    return Data(**tensors, num_classes=1, target=target, units=units)
