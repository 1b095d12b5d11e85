"""The interface of telemetry writers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esper.options import Option
from esper.telemetry.anomalies import Anomaly
from esper.telemetry.traces import Table

Hparam = bool | int | float | str
Rows = Sequence[tuple[str, str]]
"""Name and text of each line of a summary."""


class Command(str):
    """A text of a summary that is a command for a shell: the console prints it on a line of its own, unbroken."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunInfo:
    """Properties of a run for its writers."""

    folder: Path
    """The run's folder."""
    resume_update: int = 0
    """Number of updates in the resumed state, 0 in a new run. Records of later updates must be removed, so that none appears
    twice."""
    total_updates: int = 1
    """Number of the last update."""
    name: str = ""
    """Name of the run among several, empty if it is alone."""
    shared: bool = False
    """If true, other runs write to the same terminal at the same time."""
    announced: bool = False
    """If true, the console shows the title of the run already."""
    spent: float = 0.0
    """Time that earlier processes spent on the run, 0 in a new run [s]."""
    score: str = "accuracy"
    """Name of the hosts' score: accuracy, or R2 where they predict numbers."""
    size: str = ""
    """Size of the run in one line: hosts, parameters, memory, host epochs; and a line for each device whose shards were timed."""

    @property
    def sweep(self) -> str:
        """Name of the sweep that the run belongs to, the last two parts of its folder, as in ab/2026-11-22_12-00-00; empty if the
        run is alone."""
        if not self.name:
            return ""
        folder = self.folder.absolute().parents[len(Path(self.name).parts) - 1]
        return "/".join(folder.parts[-2:])


class Writer:
    """Base of writers, which receive the records of a run. A writer defines the methods that it needs.

    Metrics are measured values by tag. Each method may raise DiskError.
    """

    def start(self, title: str, hparams: Mapping[str, Hparam]) -> None:
        """Receive the title of the run, one line, and the hyperparameters by which runs are compared."""

    def expect(self, tags: Sequence[str]) -> None:
        """Receive the tags of the first recorded update, once, before its metrics: also of those that were not measured yet, or
        are written less often."""

    def costs(self, table: Mapping[str, Any]) -> None:
        """Receive the costs of hosts and seeds in this run, once."""

    def note(self, step: str, progress: str = "") -> None:
        """Receive a step that takes longer than a moment, such as the pretraining of hosts, and how far it has come; empty texts
        end it."""

    def step(self, t: int, steps: int) -> None:
        """Receive the progress of the current rollout: `t` of `steps` host epochs are done."""

    def show(self, update: int, metrics: Mapping[str, float]) -> None:
        """Receive the measured metrics of every update, for display."""

    def write(self, update: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of an update that telemetry.every or telemetry.detail_every selects; updates rise from 1."""

    def decisions(self, update: int, records: Sequence[Mapping[str, Any]]) -> None:
        """Write the controller's decisions in an update that is written with all details."""

    def trace(self, update: int, table: Table) -> None:
        """Write the trace of an update: the columns of `telemetry.traces`, one row per host and host epoch."""

    def anomaly(self, update: int, anomaly: Anomaly, *, first: bool) -> None:
        """Receive an anomaly that starts in this update; `first` is true for its first occurrence in the run."""

    def finish(self, rows: Rows, metrics: Mapping[str, float]) -> None:
        """Receive the summary of a completed run, and the last value of every metric."""

    def close(self) -> None:
        """Close files and restore the terminal; further calls do nothing."""


@dataclass(kw_only=True, slots=True)
class WriterConfig(Option):
    """A telemetry writer. Its fields are settings, as in 'telemetry.writers=[jsonl,{csv:{delimiter:";"}}]'."""

    def build(self, run: RunInfo) -> Writer:
        """Open the writer.

        Raises:
            DiskError: writing failed.
        """
        raise TypeError(f"{type(self).__name__} does not define build(run)")

    def ready(self) -> None:
        """Check that this machine can run the writer.

        Raises:
            ValueError: it lacks something, such as a library.
        """

    def is_complete(self, folder: Path, update: int) -> bool:
        """Return whether it holds all of a finished run, whose last update was `update`."""
        return True

    def attach(self, folder: Path, files: Sequence[Path]) -> None:
        """Receive files that commands made from a finished run, after its writer has closed: its page, and exported networks.

        What cannot be stored is a warning, since the run is complete.

        Args:
            folder: folder of the run.
            files: files in it, which replace those of the same names.
        """
