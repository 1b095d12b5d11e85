"""A table of your own: a CSV file with a header, one column of which holds the numbers to predict."""

import csv
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from esper.seeding import stream
from esper.task.data import Data, TaskError, reading
from esper.task.regression import RegressionConfig, divided

FEW = 10
"""Most different whole numbers in a target column that suggest classes."""


@dataclass(kw_only=True, slots=True)
class TableFileConfig(RegressionConfig):
    """Regression on a CSV file of your own, split 60 / 20 / 20 %, with healthy hosts. Standard kinds: [oo,xo,ox]."""

    file: str = "data/table.csv"
    """CSV file of numbers, separated by commas, whose first line names the columns."""
    target: str = ""
    """Name of the column to predict from all others; empty: the last one."""

    def load(self, context: int) -> Data:
        table = read_table(self.file, self.target, numbers=True)
        values = np.array([_number(cell, "") for cell in table.target])
        distinct = np.unique(values)
        if 1 < len(distinct) <= FEW < len(values) and not (distinct % 1).any():
            warnings.warn(
                f"column {table.name} of {self.file} holds {len(distinct)} different whole numbers: if they are classes, "
                "use task=table_classes",
                stacklevel=2,
            )
        return divided(table.rows, values, stream(self.split_seed, "table_split"), f"task.file={self.file}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """The contents of a CSV file: n rows of numbers, and a column to predict."""

    rows: npt.NDArray[np.float64]
    """All columns but the target `[n, C]`."""
    target: list[str]
    """The column to predict, as text."""
    name: str
    """Name of that column."""


def read_table(file: str, target: str, *, numbers: bool) -> Table:
    """Read a CSV file.

    Args:
        file: its path.
        target: name of the column to predict; empty: the last one.
        numbers: whether that column must hold numbers too.

    Raises:
        TaskError: the file is missing or has no such column, or a value is no finite number.
    """
    kind = "of numbers whose" if numbers else "whose"
    with reading(Path(file), f"set task.file to a CSV file {kind} first line names the columns"):
        with Path(file).open(encoding="utf-8-sig", newline="") as opened:
            lines = [line for line in csv.reader(opened) if line]
        names, cells = (lines[0], lines[1:]) if lines else ([], [])
        if len(names) < 2:
            raise ValueError("its first line does not name two columns, separated by commas")
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two of its columns have the name {twice[0]}")
        column = names.index(target) if target in names else len(names) - 1
        rows = np.empty((len(cells), len(names)))
        for number, (line, row) in enumerate(zip(cells, rows, strict=True), 2):
            if len(line) != len(names):
                raise ValueError(f"line {number} has {len(line)} values and the first line {len(names)}")
            for place, cell in enumerate(line):
                if numbers or place != column:
                    row[place] = _number(cell, f"line {number}, column {names[place]}")
    if target and target not in names:
        raise TaskError(f"task.target={target} is no column of {file}: choose from {', '.join(names)}")
    return Table(rows=np.delete(rows, column, 1), target=[line[column].strip() for line in cells], name=names[column])


def _number(cell: str, place: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise ValueError(f"{place} holds {cell!r}, which is no finite number")
    return value
