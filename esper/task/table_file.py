"""A table of your own: a CSV file with a header, one column of which is the target."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from esper.seeding import stream
from esper.task.data import Data, TaskError, reading
from esper.task.regression import RegressionConfig, divided


@dataclass(kw_only=True, slots=True)
class TableFileConfig(RegressionConfig):
    """Regression on a CSV file of your own, split 60 / 20 / 20 %, with healthy hosts. Standard kinds: [oo,xo,ox]."""

    file: str = "data/table.csv"
    """CSV file of numbers, separated by commas, whose first line names the columns."""
    target: str = ""
    """Name of the column to predict from all others; empty: the last one."""

    def load(self, context: int) -> Data:
        names, rows = self._read(Path(self.file))
        if self.target and self.target not in names:
            raise TaskError(f"task.target={self.target} is no column of {self.file}: choose from {', '.join(names)}")
        column = names.index(self.target) if self.target else len(names) - 1
        shuffle = stream(self.split_seed, "table_split")
        return divided(np.delete(rows, column, 1), rows[:, column], shuffle, f"task.file={self.file}")

    def _read(self, path: Path) -> tuple[list[str], npt.NDArray[np.float64]]:
        """Return the names of the columns and the rows.

        Raises:
            TaskError: the file is missing, or is no table of finite numbers with at least two columns.
        """
        with reading(path, "set task.file to a CSV file of numbers whose first line names the columns"):
            with path.open(encoding="utf-8-sig", newline="") as file:
                lines = [line for line in csv.reader(file) if line]
            names, cells = (lines[0], lines[1:]) if lines else ([], [])
            if len(names) < 2:
                raise ValueError("its first line does not name two columns, separated by commas")
            if twice := [name for name in names if names.count(name) > 1]:
                raise ValueError(f"two of its columns have the name {twice[0]}")
            rows = np.empty((len(cells), len(names)))
            for number, (line, row) in enumerate(zip(cells, rows, strict=True), 2):
                if len(line) != len(names):
                    raise ValueError(f"line {number} has {len(line)} values and the first line {len(names)}")
                for place, cell in enumerate(line):
                    row[place] = _number(cell, f"line {number}, column {names[place]}")
        return names, rows


def _number(cell: str, place: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise ValueError(f"{place} holds {cell!r}, which is no finite number")
    return value
