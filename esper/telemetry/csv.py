"""Writer of one CSV file, for spreadsheets and pandas."""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from esper.files import FileError, disk, write_whole
from esper.telemetry.base import RunInfo, Writer, WriterConfig
from esper.telemetry.jsonl import append_whole, recorded_updates

FILE = "metrics.csv"


@dataclass(kw_only=True, slots=True)
class CsvConfig(WriterConfig):
    """A table in `metrics.csv`: one row per written update, one column per metric, times included."""

    delimiter: str = ","
    """Character between columns. Spreadsheets in locales with a decimal comma expect ';'."""

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n' or self.delimiter.isalnum():
            raise ValueError(
                f"telemetry.writers=csv needs a delimiter of one character, such as ',' or ';', got {self.delimiter!r}"
            )

    def build(self, run: RunInfo) -> "CsvWriter":
        return CsvWriter(run.folder / FILE, resume_update=run.resume_update, delimiter=self.delimiter)

    def is_complete(self, folder: Path, update: int) -> bool:
        return (folder / FILE).exists() or not (folder / "metrics.jsonl").exists()


class CsvWriter(Writer):
    """Appends a row per update. The first measurement of a metric adds its column to the file, empty in earlier rows."""

    def __init__(self, path: Path, *, resume_update: int = 0, delimiter: str = ",") -> None:
        """
        Args:
            path: the file, created with the first record.
            resume_update: number of updates in the resumed state. Later rows, and a last one that a kill cut short, are removed;
                missing ones are taken from `metrics.jsonl`, if there is one.
            delimiter: character between columns; a file with another one is rewritten.

        Raises:
            FileError: a row of the file does not fit its columns.
            DiskError: writing failed.
        """
        self.path, self._delimiter = path, delimiter
        self._columns = ["update"]
        with disk(f"write metrics to {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
        kept = list[list[str]]()
        if path.exists():
            self._columns, rows = read_table(path)
            kept = [row for row in rows if int(row[0]) <= resume_update]
            write_whole(path, self._text([self._columns, *kept]))
        for update, metrics in recorded_updates(path.parent, int(kept[-1][0]) if kept else 0, resume_update):
            self.write(update, metrics)

    def write(self, update: int, metrics: Mapping[str, float]) -> None:
        values: dict[str, float] = {"update": update, **metrics}
        new = [tag for tag in metrics if tag not in self._columns]
        if new or not self.path.exists():
            rows = read_table(self.path)[1] if self.path.exists() else []
            columns = [*self._columns, *new]
            write_whole(self.path, self._text([columns, *([*row, *[""] * len(new)] for row in rows)]))
            self._columns = columns
        append_whole(self.path, self._text([[str(values.get(column, "")) for column in self._columns]]).encode())

    def _text(self, rows: Iterable[list[str]]) -> str:
        text = io.StringIO()
        csv.writer(text, delimiter=self._delimiter, lineterminator="\n").writerows(rows)
        return text.getvalue()


def read_table(path: Path) -> tuple[list[str], list[list[str]]]:
    """Return the columns of a file and its rows, as texts. A last row cut short by a kill is left out.

    Raises:
        FileError: a row does not fit the columns.
        DiskError: the file cannot be read.
    """
    with disk(f"read {path}"):
        text = path.read_text(encoding="utf-8")
    delimiter = text.removeprefix("update")[:1] if text.startswith("update") else ""
    whole = text[: text.rfind("\n") + 1]
    if not delimiter.strip("\n") or not whole:
        head, rows = whole.split(), list[list[str]]()
    else:
        head, *rows = csv.reader(io.StringIO(whole), delimiter=delimiter)
    if head[:1] != ["update"]:
        raise FileError(f"{path} is not a table of updates: move it away")
    for number, row in enumerate(rows, 2):
        if len(row) != len(head) or not row[0].isdecimal():
            raise FileError(f"line {number} of {path} does not fit its columns: fix the line, or move the file away")
    return head, rows
