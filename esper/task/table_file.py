"""A table of your own: a CSV file with a header, one column of which holds the numbers to predict."""

import csv
import re
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from esper.notices import UserNotice
from esper.seeding import stream
from esper.task.data import Data, TaskError, reading
from esper.task.regression import RegressionConfig, split_table

SEPARATORS = ";\t"
"""Separators that are read if the first line has no comma."""
THOUSANDS = re.compile(r"[+-]?\d{1,3},\d{3}")
"""Numbers whose comma may separate thousands."""
MISSING = ("na", "n/a", "#n/a", "<na>", "nan", "null", "?")
"""Marks of missing values, in lower case."""
ARCHIVES = (".gz", ".zip", ".bz2", ".xz")
"""Endings of packed files."""
FORMATS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0", b"PAR1")
"""First bytes of spreadsheets (new and old) and of Parquet files."""
FEW = 10
"""Maximum number of different whole numbers in a target column that suggests classes."""


@dataclass(kw_only=True, slots=True)
class TableFileConfig(RegressionConfig):
    """Regression on a CSV file of your own, split 60 / 20 / 20 %, with healthy hosts. Standard kinds: [oo,xo,ox]."""

    file: str = "data/table.csv"
    """CSV file of numbers, separated by commas, semicolons or tabs, whose first line names the columns. After semicolons and
    tabs, numbers may have decimal commas."""
    target: str = ""
    """Name of the column to predict from all others; empty: the last one."""

    def load(self, context: int) -> Data:
        table = read_table(self.file, self.target, numbers=True)
        values = np.array([float(cell) for cell in table.target])
        distinct = np.unique(values)
        if 1 < len(distinct) <= FEW < len(values) and not (distinct % 1).any():
            warnings.warn(
                f"column {table.name} of {self.file} holds {len(distinct)} different whole numbers: if they are classes, "
                "use task=table_classes",
                UserNotice,
                stacklevel=2,
            )
        shuffle, where = stream(self.split_seed, "table_split"), f"task.file={self.file}"
        return split_table(table.rows, values, shuffle, where, table.name, table.columns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """The contents of a CSV file: n rows of numbers, and a column to predict."""

    rows: npt.NDArray[np.float64]
    """All columns but the target `[n, C]`."""
    columns: list[str]
    """Their names."""
    target: list[str]
    """The column to predict, as text without blanks around it."""
    name: str
    """Name of that column."""


def read_table(file: str, target: str, *, numbers: bool) -> Table:
    """Read a CSV file, separated by commas; or by semicolons or tabs, with decimal points or commas. Blanks around names and
    values do not count.

    Args:
        file: its path.
        target: name of the column to predict; empty: the last one.
        numbers: if true, that column must hold numbers too.

    Raises:
        TaskError: the file is missing or has no such column, a value is missing or not a finite number.
    """
    names, lines, separator = _cells(Path(file), "of numbers whose" if numbers else "whose")
    if target and target not in names:
        raise TaskError(f"{file} has no column {target!r}: set task.target to one of {', '.join(names)}")
    column = names.index(target) if target else len(names) - 1
    if separator in SEPARATORS:
        lines = _with_points(lines, {*range(len(names))} if numbers else {*range(len(names))} - {column}, file)
    rows = np.empty((len(lines), len(names)))
    for row, (at, line) in zip(rows, lines, strict=True):
        where = f"line {at} of {file}"
        if len(line) != len(names):
            values = "1 value" if len(line) == 1 else f"{len(line)} values"
            raise TaskError(f"{where} has {values}, and the first line names {len(names)} columns: correct it")
        for place, cell in enumerate(line):
            number = numbers or place != column
            if not cell or (number and cell.lower() in MISSING):
                mark = f" ({cell})" if cell else ""
                raise TaskError(f"{where} has no value in column {names[place]!r}{mark}: fill it in, or remove the line")
            if number:
                row[place] = _number(cell, where, names[place], names[column])
    others = [name for name in names if name != names[column]]
    return Table(rows=np.delete(rows, column, 1), columns=others, target=[line[column] for _, line in lines], name=names[column])


def _with_points(lines: Sequence[tuple[int, list[str]]], columns: Collection[int], file: str) -> list[tuple[int, list[str]]]:
    """Return lines with decimal points instead of commas in these columns, or as they are if any number has a point already."""
    cells = [cell for _, line in lines for place, cell in enumerate(line) if place in columns]
    commas = [cell for cell in cells if _has_decimal_comma(cell)]
    if not commas or any("." in cell and _is_number(cell) for cell in cells):
        return [*lines]
    if all(THOUSANDS.fullmatch(cell) for cell in commas):
        warnings.warn(
            f"{file}: commas are read as decimal, as in {commas[0]}: if they separate thousands, remove them",
            UserNotice,
            stacklevel=2,
        )
    changed = [
        [cell.replace(",", ".") if place in columns and _has_decimal_comma(cell) else cell for place, cell in enumerate(line)]
        for _, line in lines
    ]
    return [(at, line) for (at, _), line in zip(lines, changed, strict=True)]


def _has_decimal_comma(cell: str) -> bool:
    return "," in cell and _is_number(cell.replace(",", "."))


def _cells(path: Path, kind: str) -> tuple[list[str], list[tuple[int, list[str]]], str]:
    """Return the names of the columns; number and cells of every line that is not empty, without blanks around them; and the
    separator."""
    remedy = f"set task.file to a CSV file {kind} first line names the columns"
    if path.is_dir():
        raise TaskError(f"{path} is a folder: {remedy}")
    with reading(path, remedy), path.open(encoding="utf-8-sig", newline="") as opened:
        found, separator = list[tuple[int, list[str]]](), ","
        try:
            first = opened.readline()
            separator = next((mark for mark in SEPARATORS if mark in first and "," not in first), separator)
            opened.seek(0)
            reader = csv.reader(opened, delimiter=separator)
            found.extend((reader.line_num, [cell.strip() for cell in line]) for line in reader if line)
        except UnicodeDecodeError:
            raise TaskError(f"{path} is not text in UTF-8: {_as_text(path)}") from None
        except csv.Error as error:
            begun = found[-1][0] + 1 if found else 1
            raise TaskError(f"{path} cannot be read from line {begun} on ({error}): close its quotes") from None
    names = found[0][1] if found else []
    if len(names) < 2:
        raise TaskError(f"the first line of {path} does not name two columns: {remedy}")
    if "" in names:
        raise TaskError(
            f"column {names.index('') + 1} of {path} has no name: name it, or leave it out if it only numbers the rows, as "
            "to_csv(..., index=False) of pandas does"
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise TaskError(f"two columns of {path} have the name {twice[0]!r}: rename one of them")
    numbers = [name for name in names if _is_number(name)]
    if len(numbers) > len(names) / 2:
        if not all(name.isdecimal() for name in numbers):
            raise TaskError(f"the first line of {path} holds numbers: add a line above it that names the columns")
        warnings.warn(  # it may name years
            f"the first line of {path} holds numbers, which are taken as names of columns: if they are values, add names above",
            UserNotice,
            stacklevel=2,
        )
    if len(found) == 1:
        raise TaskError(f"{path} has no rows below the names of its columns: add some")
    return names, found[1:], separator


def _as_text(path: Path) -> str:
    """Return how to turn a file into text."""
    if path.suffix in ARCHIVES:
        return "unpack it"
    with path.open("rb") as opened:
        return "export it as CSV" if opened.read(4) in FORMATS else "save it in that encoding"


def _is_number(text: str) -> bool:
    return not np.isnan(_value(text))


def _value(text: str) -> float:
    """Return a number as it is written in tables; NaN for other texts, also for 1_000, which Python reads as a number."""
    try:
        return float(text) if text.isascii() and "_" not in text else np.nan
    except ValueError:
        return np.nan


def _number(cell: str, where: str, name: str, target: str) -> float:
    value = _value(cell)
    if not np.isfinite(value):
        if _has_decimal_comma(cell):
            raise TaskError(f"{where} has {cell!r} in column {name!r}: write numbers with a decimal point")
        hint = (
            "correct it, or use task=table_classes if it names a class"
            if name == target
            else f"encode the column as numbers; or, if it is the column to predict (now {target!r}), set task.target={name}"
        )
        raise TaskError(f"{where} has {cell!r} in column {name!r}, which is not a finite number: {hint}")
    return value
