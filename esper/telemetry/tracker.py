"""Base of the writers to experiment trackers: one run of a tracker per run of ours, whatever happens to either of them.

A tracker is somebody else's library, and often somebody else's server. So its failures never end a run: they are a warning, and
the records wait until it works again. A small file in the folder of the run says which run of the tracker is its own, and how
many updates that has.
"""

import json
import shlex
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from esper.files import FileError, write_whole
from esper.notices import UserNotice
from esper.telemetry.base import Hparam, Rows, RunInfo, Writer, WriterConfig
from esper.telemetry.jsonl import recorded_updates
from esper.text import counted

PATIENCE = 10.0
"""Pause after a failure until the next attempt, in multiples of the time that the failed one took, so that an unreachable server
costs a run at most a tenth of its time."""


class TrackerError(ValueError):
    """A tracker cannot be used. The message is one sentence with the remedy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackerRecord:
    """What the folder of a run knows about its run in a tracker."""

    id: str
    """ID of the run in the tracker."""
    place: dict[str, str]
    """Where the tracker keeps the run, such as its server and project."""
    cell: str = ""
    """Name of the run among those of its sweep; empty if it is alone."""
    update: int = 0
    """Number of updates that the tracker has."""
    finished: bool = False
    """If true, the run is complete, and so are its records in the tracker."""
    settings: dict[str, Any] = field(default_factory=lambda: dict[str, Any]())
    """Settings of the writer, with which files made later find the run, even if its checkpoint names other writers."""

    @classmethod
    def read(cls, path: Path) -> "TrackerRecord | None":
        """Return the record in a file; None if there is no file.

        Raises:
            FileError: the file is damaged.
        """
        if not path.exists():
            return None
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            found = cls(**values)
            kinds = [type(one) for one in (found.id, found.update, found.place, found.settings)]
            if kinds != [str, int, dict, dict]:
                raise ValueError
        except (OSError, ValueError, TypeError) as error:
            raise FileError(f"{path} is damaged: move it away, and the run goes on as a new one in the tracker") from error
        return found

    def write(self, path: Path) -> None:
        """Write the record.

        Raises:
            DiskError: writing failed.
        """
        write_whole(path, json.dumps(asdict(self)) + "\n")


@dataclass(kw_only=True, slots=True)
class TrackerConfig(WriterConfig):
    """A writer to a tracker."""

    library: ClassVar[str]
    """Module of the tracker, and its name as a writer."""

    name: str = ""
    """Name of the run in the tracker. If empty, the name of its folder; in a sweep, its path relative to the folder of the
    sweep."""

    def ready(self) -> None:
        if find_spec(self.library) is None:
            raise TrackerError(
                f"telemetry.writers={self.library} needs its library: install the extra trackers, as in "
                "pip install -c constraints.txt -e '.[trackers]'"
            )

    def connect(self, run: RunInfo) -> "Tracker":
        """Return the writer, which is not open yet."""
        raise TypeError(f"{type(self).__name__} does not define connect(run)")

    def build(self, run: RunInfo) -> "Tracker":
        """Open a run in the tracker, or the one that this run had before.

        Raises:
            TrackerError: the tracker cannot be used.
            FileError: the file on the tracker's run is damaged.
            DiskError: writing failed.
        """
        self.ready()
        tracker = self.connect(run)
        tracker.settings = asdict(self)
        tracker.open()
        return tracker

    def is_complete(self, folder: Path, update: int) -> bool:
        record = TrackerRecord.read(file_of(folder, self.library))
        if record is None or not record.finished or record.update < update:
            return False
        place = self.connect(RunInfo(folder=folder)).place
        return all(value in ("", record.place.get(key)) for key, value in place.items())

    def attach(self, folder: Path, files: Sequence[Path]) -> None:
        path = file_of(folder, self.library)
        try:
            record = TrackerRecord.read(path)
            if record is None or not record.finished:
                return
            self.ready()
            about = RunInfo(folder=folder, resume_update=record.update, name=record.cell)
            place = {name: value for name, value in record.place.items() if hasattr(self, name)}
            tracker = replace(self, **(record.settings | place)).connect(about)  # runs of earlier versions have no settings
            tracker.open(anew=False)
            try:
                for file in files:
                    tracker.keep(file, str(file.relative_to(folder)))
            finally:
                tracker.end(finished=True)
        except Exception as error:  # of the library: any
            warnings.warn(f"{self.library} did not accept {_names(files)}: {sentence(error)}", UserNotice, stacklevel=2)


def file_of(folder: Path, library: str) -> Path:
    """Return the file on a tracker's run in the folder of a run."""
    return folder / f"{library}.json"


def sentence(error: Exception) -> str:
    """Return an error of a library in one line of at most 200 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return (text if len(text) <= 200 else f"{text[:197]}...").rstrip(".")


def _names(files: Sequence[Path]) -> str:
    return ", ".join(path.name for path in files[:3]) + (f" and {len(files) - 3} more files" if len(files) > 3 else "")


class Tracker(Writer):
    """A writer whose records wait while the tracker does not work. A tracker defines the methods from `resume` to `end`, each of
    which may raise anything."""

    library: ClassVar[str]

    def __init__(self, run: RunInfo, place: dict[str, str], name: str) -> None:
        """
        Args:
            run: the run.
            place: where the tracker keeps it. A place that is empty is chosen by `resume`, or is that of the run before.
            name: name of the run in the tracker; if empty, it follows from the run.
        """
        self.run, self.place = run, place
        self.name = name or run.name or run.folder.absolute().name
        self.settings: dict[str, Any] = {}
        """Settings of the writer."""
        self.title = ""
        """Title of the run, once it has started."""
        self._file = file_of(run.folder, self.library)
        self._record = TrackerRecord(id="", place={})
        self._jobs = deque[tuple[Callable[[], None], int]]()
        """Pending jobs in order, each with the update that the tracker has once it is done; 0 if the job records no update."""
        self._failure, self._retry_at, self._finished, self._open = "", 0.0, False, False

    # ---- what a tracker defines

    def resume(self, id: str | None) -> str:
        """Open the run with this ID in the tracker, or create one if it is None, and return its ID."""
        raise NotImplementedError

    def describe(self, title: str, hparams: Mapping[str, Hparam]) -> None:
        """Record the title of the run and its hyperparameters."""
        raise NotImplementedError

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of an update."""
        raise NotImplementedError

    def summarise(self, rows: Rows, metrics: Mapping[str, float]) -> None:
        """Record the summary of the run."""
        raise NotImplementedError

    def keep(self, path: Path, name: str) -> None:
        """Store a file under a name, which may have folders in it."""
        raise NotImplementedError

    def end(self, *, finished: bool) -> None:
        """Close the tracker's run."""
        raise NotImplementedError

    def last_update(self) -> int | None:
        """Return the last update that a resumed run of the tracker has, 0 if none; None if it cannot tell. A kill can make that
        less than it was given."""
        return None

    # ---- what all trackers share

    def open(self, *, anew: bool = True) -> None:
        """Open the tracker's run.

        Args:
            anew: if true, training continues, so the run is marked as running again.

        Raises:
            TrackerError: the tracker cannot be used.
            FileError: the file on the tracker's run is damaged.
            DiskError: writing failed.
        """
        before = TrackerRecord.read(self._file)
        if before is not None:
            self.place = {key: value or before.place.get(key, "") for key, value in self.place.items()}
        same = before is not None and before.place == self.place
        try:
            found = self.resume(before.id if before is not None and same else None)
            known = self.last_update() if same else None
        except Exception as error:  # of the library: any
            new = f", or remove {self._file} to start a new one" if before is not None and same else ""
            remedy = f"correct its settings{new}, or leave {self.library} out of telemetry.writers"
            raise TrackerError(f"{self.library} cannot open a run: {sentence(error)}; {remedy}") from error
        self._open = True
        if before is not None and same:
            update = before.update if known is None else known
            self._record = replace(before, update=update, finished=before.finished and not anew)
        else:
            self._record = TrackerRecord(id=found, place=self.place, cell=self.run.name)
        self._record = replace(self._record, settings=self.settings or self._record.settings)
        self._record.write(self._file)

    def start(self, title: str, hparams: Mapping[str, Hparam]) -> None:
        """Describe the run, and hand over the updates before a resume that the tracker lacks."""
        self.title = title
        self._do(partial(self.describe, title, dict(hparams)))
        if (config := self.run.folder / ".hydra" / "config.yaml").exists():
            self._do(partial(self.keep, config, "config.yaml"))
        have, until = self._record.update, self.run.resume_update
        lost = recorded_updates(self.run.folder, have, until)
        for update, metrics in lost:
            self._do(partial(self.log, update, metrics), update)
        if have < until and not (self.run.folder / "metrics.jsonl").exists():
            warnings.warn(f"{self.library} lacks {_range(have + 1, until)}: there is no metrics.jsonl", UserNotice, stacklevel=2)

    def write(self, update: int, metrics: Mapping[str, float]) -> None:
        """Record an update, unless the tracker has it already: a resumed run repeats the updates after its checkpoint."""
        if update > self._record.update:
            self._do(partial(self.log, update, dict(metrics)), update)

    def finish(self, rows: Rows, metrics: Mapping[str, float]) -> None:
        self._retry_at = 0.0
        self._do(partial(self.summarise, rows, dict(metrics)))
        self._finished = not self._jobs

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        lacking = [update for _, update in self._jobs if update]
        if self._jobs:
            what = _range(lacking[0], lacking[-1]) if lacking else "the summary of the run"
            remedy = f"{shlex.quote(f'resume={self.run.folder}')} sends it when {self.library} works"
            warnings.warn(f"{self.library} lacks {what}, which the files of the run have: {remedy}", UserNotice, stacklevel=2)
        try:
            self.end(finished=self._finished)
        except Exception as error:  # of the library: any
            if not self._jobs:  # else there was a warning
                warnings.warn(f"{self.library} could not close its run: {sentence(error)}", UserNotice, stacklevel=2)
            return
        if self._finished:
            self._record = replace(self._record, finished=True)
            self._record.write(self._file)

    def _do(self, job: Callable[[], None], update: int = 0) -> None:
        """Let the tracker do a job, after those that wait; if that fails, they wait for a later attempt.

        Raises:
            DiskError: the file on the tracker's run cannot be written.
        """
        self._jobs.append((job, update))
        if time.monotonic() < self._retry_at:
            return
        while self._jobs:
            job, update = self._jobs[0]
            begun = time.monotonic()
            try:
                job()
            except Exception as error:  # of the library: any
                self._failed(error, time.monotonic() - begun)
                return
            self._jobs.popleft()
            if update:
                self._record = replace(self._record, update=update)
                self._record.write(self._file)

    def _failed(self, error: Exception, seconds: float) -> None:
        self._retry_at = time.monotonic() + PATIENCE * seconds
        if not self._failure:
            goes_on = f"the run goes on, and what {self.library} lacks is sent when it works again"
            warnings.warn(f"{self.library} failed: {sentence(error)}; {goes_on}", UserNotice, stacklevel=2)
        self._failure = sentence(error)


def _range(first: int, last: int) -> str:
    return f"update {first}" if first == last else f"{counted(last - first + 1, 'update')}, {first} to {last}"


def markdown(title: str, rows: Rows = ()) -> str:
    """Return a title and a summary as Markdown."""
    table = "".join(f"| {name} | {text} |\n" for name, text in rows)
    return f"**{title}**\n\n| result | value |\n|---|---|\n{table}" if rows else title
