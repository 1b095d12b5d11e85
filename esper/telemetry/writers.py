"""Writers of metrics: JSON lines, which everything else can be made from, and TensorBoard."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, cast

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams as hparam_summaries

from esper.checkpoint import disk
from esper.telemetry.anomalies import Anomaly
from esper.telemetry.tags import STAGES, Value, measured

Hparam = bool | int | float | str


class Writer(Protocol):
    """Where metrics go. What was not measured (None, NaN) stays missing there."""

    def write(self, update: int, metrics: Mapping[str, Value]) -> None:
        """Writes one record, and it is on its way to the disk when this returns.

        Args:
            update: number of the update, 1 or more, rising.
            metrics: values by tag.

        Raises:
            UnknownTagError: a tag is not in the table.
            DiskError: the disk refused.
        """
        ...

    def anomaly(self, update: int, anomaly: Anomaly) -> None:
        """Writes what began to be wrong in an update.

        Raises:
            DiskError: the disk refused.
        """
        ...

    def close(self) -> None:
        """Ends the writing; further calls do nothing."""
        ...


class Lines:
    """A file of one JSON object a line, each with its number under "update"."""

    def __init__(self, path: Path, *, resume_update: int = 0) -> None:
        """
        Args:
            path: the file; made where missing, with its folders.
            resume_update: updates that the resumed state has behind it. Later records, and a last line that a kill cut
                short, are removed, so that no update is in the file twice.

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
        """Writes a record. One that does not fit on the disk leaves no half of it behind.

        JSON has no infinity: a measured one is written as the string "inf" or "-inf", and float() turns it back.
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
        """Ends the writing; further calls do nothing."""
        self._file.close()


class JsonlWriter(Lines):
    """{"update": 3, "host/accuracy": 71.2, ...} a line, and beside it, where there was something to say, `events.jsonl`."""

    def __init__(self, path: Path, *, resume_update: int = 0) -> None:
        """See `Lines`."""
        super().__init__(path, resume_update=resume_update)
        self._resume_update = resume_update
        self._events: Lines | None = None
        if self.events_path.exists():
            try:
                self._open_events()
            except BaseException:
                super().close()
                raise

    @property
    def events_path(self) -> Path:
        """Where anomalies go."""
        return self.path.with_name("events.jsonl")

    def write(self, update: int, metrics: Mapping[str, Value]) -> None:
        """See `Writer`."""
        self.append(update, measured(metrics))

    def anomaly(self, update: int, anomaly: Anomaly) -> None:
        """See `Writer`."""
        self._open_events().append(update, {"event": "anomaly", **asdict(anomaly)})

    def _open_events(self) -> Lines:
        self._events = self._events or Lines(self.events_path, resume_update=self._resume_update)
        return self._events

    def close(self) -> None:
        """See `Writer`."""
        super().close()
        if self._events:
            self._events.close()


def _sizes(path: Path) -> Iterator[tuple[int, int]]:
    """Update and size in bytes of each whole record."""
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
    """The records of `events.jsonl`: what began in which update. Where nothing ever did, there is no file, and no record.

    Raises:
        ValueError: the file holds a line that is no record.
        OSError: the file cannot be read.
    """
    return [record for _, record in _records(path)] if path.exists() else []


def read_records(path: Path) -> list[dict[str, float]]:
    """The records of a file, with their number under "update". A last line that a kill cut short is left out.

    Raises:
        ValueError: the file holds a line that is no record.
        OSError: the file cannot be read.
    """
    return [{tag: float(value) for tag, value in record.items()} for _, record in _records(path)]


class TensorBoardWriter:
    """TensorBoard scalars by tag, the hyperparameters of the run, and one chart of the stages."""

    def __init__(self, folder: Path, *, resume_update: int = 0) -> None:
        """
        Args:
            folder: where the event files go; made where missing.
            resume_update: updates that the resumed state has behind it; TensorBoard drops what was written after it.

        Raises:
            DiskError: the disk refused.
        """
        self.folder = folder
        self._open = True
        with disk(f"write TensorBoard events to {folder}"):
            self._writer = SummaryWriter(str(folder), purge_step=resume_update + 1)
            self._writer.add_custom_scalars({"host": {"slots by stage": ["Multiline", list(STAGES.values())]}})

    def write(self, update: int, metrics: Mapping[str, Value]) -> None:
        """See `Writer`."""
        with disk(f"write TensorBoard events to {self.folder}"):
            for tag, value in measured(metrics).items():
                self._writer.add_scalar(tag, value, update)
            # A resumed run cannot fill in what was lost in memory; an update takes seconds, this far less.
            self._writer.flush()

    def anomaly(self, update: int, anomaly: Anomaly) -> None:
        """See `Writer`. It stands among the texts."""
        with disk(f"write TensorBoard events to {self.folder}"):
            self._writer.add_text(f"anomaly/{anomaly.key}", anomaly.sentence(), update)
            self._writer.flush()

    def hparams(self, values: Mapping[str, Hparam], metrics: Mapping[str, Value]) -> None:
        """Puts the run into TensorBoard's table of hyperparameters; its results there are the last values of `metrics`.

        `SummaryWriter.add_hparams` would write each metric a second time, into a file of its own.
        """
        with disk(f"write TensorBoard events to {self.folder}"):
            for summary in hparam_summaries(dict(values), measured(metrics)):
                cast(Any, self._writer)._get_file_writer().add_summary(summary)
            self._writer.flush()

    def close(self) -> None:
        """See `Writer`."""
        if self._open:
            self._open = False
            with disk(f"write TensorBoard events to {self.folder}"):
                self._writer.close()
