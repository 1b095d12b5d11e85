"""Telemetry: which records a run writes and how often, and the object that hands them to the writers."""

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from esper.options import Option
from esper.ranges import check_ranges
from esper.telemetry.anomalies import AnomaliesConfig, Findings
from esper.telemetry.base import Hparam, Rows, RunInfo, Writer
from esper.telemetry.jsonl import recorded_updates
from esper.telemetry.profile import EPOCHS, UpdateProfile
from esper.telemetry.tags import PHASES, Value, measured, metric, phase_shares
from esper.telemetry.traces import Table
from esper.telemetry.tracker import TrackerConfig, file_of
from esper.telemetry.writers import WRITERS, check_writers


@dataclass(kw_only=True, slots=True)
class TelemetryConfig(Option):
    """All records, and progress on the console. These choices affect neither training nor measurements."""

    writers: list[Any] = field(default_factory=lambda: ["jsonl", "tensorboard", "console"])
    """Writers of records: jsonl, tensorboard, console, csv, mlflow, wandb, aim, and any that plugins register, with settings as
    in {csv:{delimiter:";"}}. Without jsonl, esper.compare cannot read the run."""
    every: int = 1
    """Interval between written updates, at least 1; the last is always written [updates]. Higher: smaller files, fewer points."""
    detail_every: int = 10
    """Interval between written updates with all details (by head, by part), at least 1 [written updates]. Higher: smaller files.
    For telemetry.anomalies.hold updates after an anomaly, every update is written with all details."""
    decisions: bool = True
    """If true, write the controller's decisions, by host and seed, to `decisions.jsonl`, as often as details."""
    trace: bool = True
    """If true, write a trace of the first update, of every telemetry.detail_every-th written update, and of the last: state,
    decision, measurements and reward of each host after each host epoch, in `trace/`. `run.html` draws them."""
    page_hosts: int = 24
    """Held-out hosts in `run.html`, which is written at the end of the run: at least 2, and at least one per device of each
    worker; values above `hosts` are lowered to it; 0: no page. Higher: narrower intervals, but the page takes longer, up to three
    episodes of these hosts."""
    profile: bool = False
    """If true, profile the second update (the first if there is only one): its last two host epochs, learning and saving.
    `profile/` then holds a trace, which Perfetto and TensorBoard's profile plugin show, and a table of the ten most expensive
    operations of each phase."""
    anomalies: AnomaliesConfig = field(default_factory=AnomaliesConfig)
    """Thresholds of anomalies in learning, as in telemetry.anomalies.entropy_share=0.05."""

    def __post_init__(self) -> None:
        check_ranges("telemetry", self, {"[1, inf]": ["every", "detail_every"], "[0, inf]": ["page_hosts"]})
        if self.page_hosts == 1:
            raise ValueError("telemetry.page_hosts=1 gives no interval: use at least 2, or 0 for no page")
        if "jsonl" not in check_writers(self.writers):
            warnings.warn(
                "telemetry.writers leaves jsonl out, so there will be no metrics.jsonl, which esper.compare and sweep=tune need: "
                "add jsonl unless this run is never compared",
                stacklevel=2,
            )

    def build(self, run: RunInfo, only: Collection[str] | None = None) -> "Telemetry":
        """Open all writers, or those whose names are in `only`.

        Raises:
            DiskError: writing failed.
        """
        return Telemetry(self, run, only)

    def lacking(self, folder: Path, update: int) -> list[str]:
        """Return the names of the writers that lack something of a finished run, whose last update was `update`: trackers that
        were added later, or that did not work.

        Raises:
            FileError: the file on a tracker's run is damaged.
        """
        return [name for name, one in check_writers(self.writers).items() if not one.is_complete(folder, update)]

    def ready(self) -> None:
        """Check that this machine can run all writers.

        Raises:
            ValueError: one lacks something, such as a library.
        """
        for one in check_writers(self.writers).values():
            one.ready()

    def attach(self, folder: Path, files: Sequence[Path]) -> None:
        """Hand files that were made from a finished run to its writers, and to all trackers that have it; see
        `WriterConfig.attach`."""
        kinds = {name: kind for name, kind in WRITERS.items() if issubclass(kind, TrackerConfig)}
        trackers = {name: kind() for name, kind in kinds.items() if file_of(folder, kind.library).exists()}
        for one in (trackers | check_writers(self.writers)).values() if files else ():
            one.attach(folder, files)


@dataclass(kw_only=True, slots=True)
class QuietConfig(TelemetryConfig):
    """Only metrics, times and checkpoints, and nothing on the console: for sweeps and tests."""

    writers: list[Any] = field(default_factory=lambda: ["jsonl"])
    decisions: bool = False
    trace: bool = False
    page_hosts: int = 0


class Telemetry:
    """Hands the records of a run to its writers."""

    def __init__(self, config: TelemetryConfig, run: RunInfo, only: Collection[str] | None = None) -> None:
        """See `TelemetryConfig.build`."""
        self._every, self._detail_every, self._decisions = config.every, config.every * config.detail_every, config.decisions
        self._trace, self._update, self._total = config.trace, run.resume_update, run.total_updates
        self._seconds, self._latest = Counter[str](), dict[str, float]()
        for _, earlier in recorded_updates(run.folder, 0, run.resume_update):
            self._count(earlier)
            self._latest.update(earlier)
        self._profile = UpdateProfile(run.folder / "profile") if config.profile else None
        self._profiled = min(self._update + 2, self._total)
        self._expected = False
        self._writers: list[Writer] = []
        with ExitStack() as closing:  # closes the open writers if opening the next one fails
            for name, one in check_writers(config.writers).items():
                if only is not None and name not in only:
                    continue
                self._writers.append(one.build(run))
                closing.callback(self._writers[-1].close)
            self._closing = closing.pop_all()

    def _count(self, values: Mapping[str, float]) -> None:
        """Add the seconds that each phase of an update took."""
        self._seconds.update({tag: values[tag] for tag in PHASES if tag in values})

    def start(self, title: str, hparams: Mapping[str, Hparam]) -> None:
        """Announce the run.

        Args:
            title: one line.
            hparams: hyperparameters by which runs are compared; `finish` writes them with the results.
        """
        for writer in self._writers:
            writer.start(title, hparams)

    def costs(self, table: Mapping[str, Any]) -> None:
        """Record the costs of hosts and seeds in this run.

        Raises:
            DiskError: writing failed.
        """
        for writer in self._writers:
            writer.costs(table)

    def note(self, step: str, progress: str = "") -> None:
        """Report a step that takes longer than a moment, and how far it has come; empty texts end it."""
        for writer in self._writers:
            writer.note(step, progress)

    def step(self, t: int, steps: int) -> None:
        """Report that `t` of `steps` host epochs of the current rollout are done."""
        if self._profile and self._update + 1 == self._profiled and t == max(0, steps - EPOCHS):
            self._profile.start()
            self._closing.callback(self._profile.stop)
        for writer in self._writers:
            writer.step(t, steps)

    def saved(self) -> None:
        """Write the profile if the last update was the profiled one. Call it once that update is recorded and saved.

        Raises:
            DiskError: writing failed.
        """
        if self._profile and self._update == self._profiled:
            self._profile.write(self._update)
            self._profile = None

    def update(
        self,
        update: int,
        metrics: Mapping[str, Value],
        findings: Findings | None = None,
        decisions: Callable[[], Sequence[Mapping[str, Any]]] | None = None,
        trace: Callable[[], Table] | None = None,
    ) -> None:
        """Record an update.

        Args:
            update: its number.
            metrics: values by tag; None and NaN are not measured.
            findings: anomalies, if there was a check.
            decisions: function that returns the records of the controller's decisions, called if they are written.
            trace: function that returns the trace of the episode, called if it is written.

        Raises:
            UnknownTagError: a tag is not in the table, whichever writers there are.
            DiskError: writing failed.
        """
        values, self._update = measured(metrics), update
        self._latest.update(values)
        self._count(values)
        findings, last = findings or Findings(), update == self._total
        regular = last or update % self._detail_every == 0
        detailed = findings.detailed or regular
        selected = detailed or update % self._every == 0
        written = {tag: value for tag, value in values.items() if detailed or not metric(tag).detail}
        if not self._expected:
            self._expected = True
            for writer in self._writers:
                writer.expect(list(metrics))
        records = decisions() if decisions and self._decisions and detailed else ()
        table = trace() if trace and self._trace and (regular or update == 1) else None
        for writer in self._writers:
            if selected:
                writer.write(update, written)
            if table:
                writer.trace(update, table)
            if records:
                writer.decisions(update, records)
            writer.show(update, values)
            for anomaly in findings.new:
                writer.anomaly(update, anomaly, first=anomaly in findings.first)

    def finish(self, rows: Rows = ()) -> None:
        """Write the summary of a completed run: name and text of each line, and the shares of the phases in its time."""
        shares = phase_shares(self._seconds)
        for writer in self._writers:
            writer.finish([*rows, ("time", shares)] if shares else rows, self._latest)

    def close(self) -> None:
        """Close all writers, the last one first; each is closed even if others fail."""
        self._closing.close()
