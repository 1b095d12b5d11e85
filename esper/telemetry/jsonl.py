"""Writer of JSON lines, from which all other records can be made, and their readers."""

import hashlib
import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from esper.files import FileError, disk, write_whole
from esper.notices import UserNotice
from esper.telemetry.anomalies import Anomaly
from esper.telemetry.base import RunInfo, Writer, WriterConfig
from esper.telemetry.traces import Table, trace_of_update, traced_updates, write_trace


@dataclass(kw_only=True, slots=True)
class JsonlConfig(WriterConfig):
    """JSON lines: `metrics.jsonl`, `times.jsonl`, `decisions.jsonl`, anomalies in `events.jsonl`; traces of episodes in
    `trace/`; and costs of hosts and seeds, `costs.json`."""

    def build(self, run: RunInfo) -> "JsonlWriter":
        return JsonlWriter(run.folder, resume_update=run.resume_update)


CHECK = "metrics_check"
"""Key of a record in `times.jsonl`: first 13 hex digits of the SHA-256 of the line in `metrics.jsonl`, as a number."""


def _check(line: bytes) -> int:
    return int(hashlib.sha256(line).hexdigest()[:13], 16)  # 52 bits, which a float holds


def _line(update: int, record: Mapping[str, Any]) -> bytes:
    """Return a record as a line. JSON has no infinity: it is written as the string "inf" or "-inf", which float() reads."""
    values = {key: str(value) if value in (math.inf, -math.inf) else value for key, value in record.items()}
    return (json.dumps({"update": update} | values) + "\n").encode()


def append_whole(path: Path, content: bytes, what: str = "metrics") -> None:
    """Append all of this to a file, or, if the disk is full, nothing.

    Args:
        path: the file.
        content: what is appended.
        what: its name for the error message.

    Raises:
        DiskError: writing failed.
    """
    # Unbuffered, so that closing the file cannot fail again.
    with disk(f"write {what} to {path}"), path.open("ab", buffering=0) as file:
        start, rest = file.tell(), memoryview(content)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            file.truncate(start)
            raise


class Lines:
    """A file with one JSON object per line, each with its update under "update"; it is created with the first. `last` is the
    update of the last record that was there, 0 for none."""

    def __init__(self, path: Path, *, resume_update: int = 0) -> None:
        """
        Args:
            path: the file.
            resume_update: number of updates in the resumed state. Later records, and a last line that a kill cut short, are
                removed, so that no update is in the file twice.

        Raises:
            FileError: a line of the file is not a record.
            DiskError: writing failed.
        """
        self.path, self.last = path, 0
        with disk(f"write metrics to {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                kept = [(len(line), record["update"]) for line, record in records_of(path) if record["update"] <= resume_update]
                os.truncate(path, sum(size for size, _ in kept))
                self.last = kept[-1][1] if kept else 0

    def append(self, update: int, *records: Mapping[str, Any]) -> None:
        """Write records, either all of them or, if the disk is full, none."""
        append_whole(self.path, b"".join(_line(update, record) for record in records))


class JsonlWriter(Writer):
    """Writes {"update": 3, "host/accuracy": 71.2, ...} per line; decisions and anomalies have the same form. Times are kept
    apart, so that the other files depend on the config alone. The file of times also holds a checksum of each line of
    metrics."""

    def __init__(self, folder: Path, *, resume_update: int = 0) -> None:
        """See `Lines`."""
        self._folder, self._costs = folder, folder / "costs.json"
        for update, path in traced_updates(folder).items():
            if update > resume_update:
                with disk(f"remove {path}"):
                    path.unlink()
        names = ("metrics", "times", "decisions", "events")
        self._metrics, self._times, self._decisions, self._events = (
            Lines(folder / f"{name}.jsonl", resume_update=resume_update) for name in names
        )
        if self._metrics.last < self._times.last:
            warnings.warn(
                f"{self._metrics.path} ends with update {self._metrics.last}, but {self._times.path.name} with update "
                f"{self._times.last}: records were lost, and esper.compare will refuse this run",
                UserNotice,
                stacklevel=2,
            )

    def costs(self, table: Mapping[str, Any]) -> None:
        write_whole(self._costs, json.dumps(table, indent=1, allow_nan=False) + "\n")

    def write(self, update: int, metrics: Mapping[str, float]) -> None:
        times = {tag: value for tag, value in metrics.items() if tag.startswith("time/")}
        others = {tag: value for tag, value in metrics.items() if tag not in times}
        self._times.append(update, {**times, CHECK: _check(_line(update, others))})
        self._metrics.append(update, others)

    def decisions(self, update: int, records: Sequence[Mapping[str, Any]]) -> None:
        self._decisions.append(update, *records)

    def trace(self, update: int, table: Table) -> None:
        write_trace(trace_of_update(self._folder, update), table)

    def anomaly(self, update: int, anomaly: Anomaly, *, first: bool) -> None:
        self._events.append(update, {"event": "anomaly", **asdict(anomaly)})


def records_of(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield the lines of a file of records with what they hold. A last line cut short by a kill is left out.

    Raises:
        FileError: a line of the file is not a record.
    """
    before = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):  # only the last line can lack it: a kill cut it short
                return
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            update = cast(dict[str, Any], record).get("update") if isinstance(record, dict) else None
            if type(update) is not int or update < before:
                raise FileError(f"line {number} of {path} is not a record: fix the line, or move the file away")
            before = update
            yield line, cast(dict[str, Any], record)


def read_records(path: Path) -> list[dict[str, float]]:
    """Return the records of a file, each with its update under "update". A last line cut short by a kill is left out.

    Raises:
        FileError: a line of the file is not a record.
        OSError: the file cannot be read.
    """
    try:
        return [{tag: float(value) for tag, value in record.items()} for _, record in records_of(path)]
    except FileError:
        raise
    except (TypeError, ValueError) as error:
        raise FileError(f"a record of {path} holds a value that is not a number: fix it, or move the file away") from error


def recorded_updates(folder: Path, after: int, until: int) -> list[tuple[int, dict[str, float]]]:
    """Return updates and their metrics, times included, from the files of a run; none if there are no files.

    Args:
        folder: folder of the run.
        after: number of the last update to leave out.
        until: number of the last update to return.

    Raises:
        FileError: a line of a file is not a record.
        OSError: a file cannot be read.
    """
    if after >= until:
        return []
    found: dict[int, dict[str, float]] = {}
    for path in (folder / "metrics.jsonl", folder / "times.jsonl"):
        for record in read_records(path) if path.exists() else ():
            update = int(record["update"])
            if after < update <= until:
                found.setdefault(update, {}).update({tag: record[tag] for tag in record if tag not in ("update", CHECK)})
    return sorted(found.items())


def changed_update(path: Path, records: Sequence[Mapping[str, float]], updates: int) -> int | None:
    """Return the first of these updates whose metrics are not those that were written; None if there is none.

    Args:
        path: file of the metrics.
        records: records with the checksums in `times.jsonl`. Those of earlier versions have none, and are not checked.
        updates: number of updates to check; later ones may not have been written.

    Raises:
        FileError: a line of the file is not a record.
        OSError: the file cannot be read.
    """
    found = {record["update"]: _check(line) for line, record in records_of(path)}
    checks = {record["update"]: record[CHECK] for record in records if CHECK in record and record["update"] <= updates}
    return next((int(update) for update, check in checks.items() if found.get(update) != check), None)
