"""A table of your own whose rows belong to classes: a CSV file with a header, one column of which names the class."""

# n rows, C columns

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from esper.notices import UserNotice
from esper.seeding import stream
from esper.task.data import Data, TaskError, Units
from esper.task.drifts import LABEL_DRIFTS, Drift, noise
from esper.task.images import ImagesConfig
from esper.task.splits import USES, check_classes, scaled, split_rows, warn_of_columns, without_training
from esper.task.table_file import MISSING, read_table


@dataclass(kw_only=True, slots=True)
class TableClassesConfig(ImagesConfig):
    """Classification of the rows of a CSV file of your own, split 60 / 20 / 20 %, with healthy hosts. Standard kinds:
    [oo,xo,ox]."""

    default_host: ClassVar[str] = "mlp"
    default_blueprint: ClassVar[tuple[str, ...]] = ("norm", "mlp_small", "mlp")
    standard_kinds: ClassVar[Mapping[int, Sequence[str]]] = {2: ("oo", "xo", "ox")}
    drifts: ClassVar[Mapping[str, Drift]] = {**LABEL_DRIFTS, "noise": noise}

    file: str = "data/table.csv"
    """CSV file, separated by commas, semicolons or tabs, whose first line names the columns. One holds classes, as text or
    numbers, all others numbers; after semicolons and tabs, these may have decimal commas."""
    target: str = ""
    """Name of the column of classes; empty: the last one."""
    batch_size: int = 32

    def load(self, context: int) -> Data:
        table = read_table(self.file, self.target, numbers=False)
        found, number_n = np.unique(table.target, return_inverse=True)
        names = [str(name) for name in found]
        where = f"column {table.name} of {self.file}"
        if len(names) < 2:
            raise TaskError(f"{where} has the same class in every row: name another column with task.target")
        if len(names) > len(number_n) / 2:
            raise TaskError(
                f"{where} has {len(names)} different values in {len(number_n)} rows, which are hardly classes: name another "
                "column with task.target, or use task=table for numbers"
            )
        check_classes(np.bincount(number_n).tolist(), names, list(USES), where, "rows")
        parts = split_rows(len(number_n), stream(self.split_seed, "table_split"), f"task.file={self.file}")
        if missing := [name for rank, name in enumerate(names) if rank not in number_n[parts["train"]]]:
            raise without_training(missing[0], where, "row")
        if marks := [name for name in names if name.lower() in MISSING]:
            warnings.warn(
                f"{where} has the class {marks[0]!r}: if it marks missing values, remove these rows", UserNotice, stacklevel=2
            )
        warn_of_columns(table.rows, parts["train"], table.columns, f"task.file={self.file}")
        rows, mean, std = scaled(table.rows, parts["train"])
        x, y = rows[:, :, None, None], torch.from_numpy(number_n.astype(np.int64))
        tensors: dict[str, Any] = {f"{part}_x": torch.from_numpy(x[chosen]) for part, chosen in parts.items()}
        tensors |= {f"{part}_y": y[chosen] for part, chosen in parts.items()}
        return Data(**tensors, num_classes=len(names), target=table.name, units=Units.of_arrays(mean, std, names))
