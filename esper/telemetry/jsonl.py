"""Writer of JSON lines, from which all other records can be made, and their readers."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from esper.checkpoint import disk
from esper.telemetry.anomalies import Anomaly
from esper.telemetry.base import RunInfo, Writer, WriterConfig
from esper.telemetry.tags import Value, measured


@dataclass(kw_only=True, slots=True)
class JsonlConfig(WriterConfig):
    """One JSON object per line in `metrics.jsonl`, anomalies in `events.jsonl`, and costs of hosts and seeds in `costs.json`."""

    def build(self, run: RunInfo) -> "JsonlWriter":
        return JsonlWriter(run.folder / "metrics.jsonl", resume_update=run.resume_update)


class Lines:
    """A file with one JSON object per line, each with its update under "update"."""

    def __init__(self, path: Path, *, resume_update: int = 0) -> None:
        """
        Args:
            path: the file; created with its folders if missing.
            resume_update: updates behind the resumed state. Later records, and a last line that a kill cut short, are removed,
                so that no update is in the file twice.

        Raises:
            ValueError: the file holds a line that is no record.
            DiskError: the disk refused.
        """
        self.path = path
        with disk(f"write metrics to {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: a record is one write, so nothing is left over to be lost or to fail again at the end.
            self._file = path.open("ab", buffering=0)
            try:
                self._file.truncate(sum(size for update, size in _sizes(path) if update <= resume_update))
            except BaseException:
                self._file.close()
                raise

    def append(self, update: int, record: Mapping[str, Any]) -> None:
        """Write a record; one that does not fit on the disk leaves no half of it behind.

        JSON has no infinity: it is written as the string "inf" or "-inf", which float() reads.
        """
        record = {key: str(value) if value in (math.inf, -math.inf) else value for key, value in record.items()}
        line = json.dumps({"update": update, **record}).encode() + b"\n"
        with disk(f"write metrics to {self.path}"):
            start = os.fstat(self._file.fileno()).st_size
            try:
                rest = memoryview(line)
                while rest:
                    rest = rest[self._file.write(rest) :]
            except OSError:
                self._file.truncate(start)
                raise

    def close(self) -> None:
        """Close the file; further calls do nothing."""
        self._file.close()


class JsonlWriter(Writer):
    """Writes {"update": 3, "host/accuracy": 71.2, ...} per line, and next to it `events.jsonl`, if an anomaly occurs."""

    def __init__(self, path: Path, *, resume_update: int = 0) -> None:
        """See `Lines`."""
        self.path, self._resume_update = path, resume_update
        self._lines = Lines(path, resume_update=resume_update)
        self._events: Lines | None = None
        if self.events_path.exists():
            try:
                self._open_events()
            except BaseException:
                self._lines.close()
                raise

    @property
    def events_path(self) -> Path:
        """File of the anomalies."""
        return self.path.with_name("events.jsonl")

    def costs(self, table: Mapping[str, Any]) -> None:
        path = self.path.with_name("costs.json")
        with disk(f"write costs to {path}"):
            path.write_text(json.dumps(table, indent=1, allow_nan=False) + "\n")

    def write(self, update: int, metrics: Mapping[str, Value]) -> None:
        self._lines.append(update, measured(metrics))

    def anomaly(self, update: int, anomaly: Anomaly, *, first: bool = False) -> None:
        self._open_events().append(update, {"event": "anomaly", **asdict(anomaly)})

    def _open_events(self) -> Lines:
        self._events = self._events or Lines(self.events_path, resume_update=self._resume_update)
        return self._events

    def close(self) -> None:
        self._lines.close()
        if self._events:
            self._events.close()


def _sizes(path: Path) -> Iterator[tuple[int, int]]:
    """Yield update and size in bytes of each complete record."""
    for line, record in _records(path):
        yield int(record["update"]), len(line)


def _records(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):  # only the last line can lack it: a kill cut it short
                return
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not isinstance(record, dict) or not isinstance(cast(dict[str, Any], record).get("update"), int):
                raise ValueError(f"line {number} of {path} is not a record of metrics: mend or move the file")
            yield line, cast(dict[str, Any], record)


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the records of `events.jsonl`; none if there is no file, since it is created with the first anomaly.

    Raises:
        ValueError: the file holds a line that is no record.
        OSError: the file cannot be read.
    """
    return [record for _, record in _records(path)] if path.exists() else []


def read_records(path: Path) -> list[dict[str, float]]:
    """Return the records of a file, each with its update under "update". A last line that a kill cut short is left out.

    Raises:
        ValueError: the file holds a line that is no record.
        OSError: the file cannot be read.
    """
    return [{tag: float(value) for tag, value in record.items()} for _, record in _records(path)]
