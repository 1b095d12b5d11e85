"""What a run writes down, where, and how often; and the one object that the trainer tells everything."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from esper.checkpoint import disk
from esper.telemetry.anomalies import AnomaliesConfig, Findings
from esper.telemetry.console import Console, Rows, build_console
from esper.telemetry.tags import Value, is_detail, measured
from esper.telemetry.writers import Hparam, JsonlWriter, Lines, TensorBoardWriter, Writer


@dataclass(kw_only=True, slots=True)
class TelemetryConfig:
    """Everything is shown and written. What is measured, and the training itself, do not depend on these choices."""

    console: bool = True
    """Show progress on standard output: live in a terminal, about a dozen plain lines elsewhere."""
    tensorboard: bool = True
    """Write TensorBoard events to `tensorboard/` in the run's folder."""
    jsonl: bool = True
    """Write one JSON object per line to `metrics.jsonl` in the run's folder, and what hosts and seeds cost to `costs.json`."""
    every: int = 1
    """Write each `every`-th update, and the last; 1 or more [updates]. More: smaller files, and coarser curves."""
    detail_every: int = 10
    """Write all details (head by head, part by part) with each so-manieth of these, 1 or more. More: smaller files. After an
    anomaly every update is written, with all details, for telemetry.anomalies.hold updates."""
    decisions: bool = True
    """Write what the controller did, host by host and seed by seed, to `decisions.jsonl` beside these details?"""
    anomalies: AnomaliesConfig = field(default_factory=AnomaliesConfig)
    """When learning is called anomalous, as in telemetry.anomalies.entropy_share=0.05."""

    def __post_init__(self) -> None:
        for name in ("every", "detail_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"telemetry.{name} must be >= 1, got {getattr(self, name)}")

    def build(
        self,
        folder: Path | str,
        *,
        resume_update: int,
        total_updates: int,
        name: str = "",
        shared: bool = False,
        file: TextIO | None = None,
    ) -> "Telemetry":
        """
        Args:
            folder: the run's folder.
            resume_update: updates that the resumed state has behind it, 0 in a new run. What was written after it goes.
            total_updates: number of the last update.
            name: of the run, where it is one of several.
            shared: do other runs write to the same terminal at the same time?
            file: where the console shows; standard output unless given.

        Raises:
            DiskError: the disk refused.
        """
        show = partial(build_console, name=name, shared=shared, file=file) if self.console else None
        return Telemetry(self, Path(folder), resume_update=resume_update, total_updates=total_updates, show=show)


@dataclass(kw_only=True, slots=True)
class QuietConfig(TelemetryConfig):
    """Nothing is shown, and only `metrics.jsonl` is written: for sweeps and tests."""

    console: bool = False
    """Show progress on standard output: live in a terminal, about a dozen plain lines elsewhere."""
    tensorboard: bool = False
    """Write TensorBoard events to `tensorboard/` in the run's folder."""
    decisions: bool = False
    """Write what the controller did, host by host and seed by seed, to `decisions.jsonl` beside these details?"""


class Telemetry:
    """Tells the console and the writers. A context manager: it ends with files closed and the terminal as it was."""

    def __init__(
        self,
        config: TelemetryConfig,
        folder: Path,
        *,
        resume_update: int,
        total_updates: int,
        show: Callable[..., Console] | None,
    ) -> None:
        """See `TelemetryConfig.build`; `show` opens the console."""
        self._every, self._detail_every = config.every, config.every * config.detail_every
        self._total, self._costs = total_updates, folder / "costs.json" if config.jsonl else None
        self._hparams: dict[str, Hparam] = {}
        self._latest: dict[str, float] = {}
        self._writers: list[Writer] = []
        self._tensorboard: TensorBoardWriter | None = None
        self._console: Console | None = None
        self._decisions: Lines | None = None
        with ExitStack() as closing:  # of what was opened, should opening the next fail
            if config.jsonl:
                self._writers.append(JsonlWriter(folder / "metrics.jsonl", resume_update=resume_update))
                closing.callback(self._writers[-1].close)
            if config.tensorboard:
                self._tensorboard = TensorBoardWriter(folder / "tensorboard", resume_update=resume_update)
                self._writers.append(self._tensorboard)
                closing.callback(self._tensorboard.close)
            if config.decisions:
                self._decisions = Lines(folder / "decisions.jsonl", resume_update=resume_update)
                closing.callback(self._decisions.close)
            if show:
                self._console = show(resume_update=resume_update, total_updates=total_updates)
                closing.callback(self._console.close)
            self._closing = closing.pop_all()

    def start(self, title: str, hparams: Mapping[str, Hparam] | None = None) -> None:
        """
        Args:
            title: one line on what runs.
            hparams: what this run is to be compared by with others; written with its results by `finish`.
        """
        self._hparams = dict(hparams or {})
        if self._console:
            self._console.start(title)

    def costs(self, table: Mapping[str, Any]) -> None:
        """Writes down what hosts and seeds cost in this run, in `costs.json` beside `metrics.jsonl`, where that is written.

        Raises:
            DiskError: the disk refused.
        """
        if self._costs:
            with disk(f"write costs to {self._costs}"):
                self._costs.write_text(json.dumps(table, indent=1, allow_nan=False) + "\n")

    def step(self, t: int, steps: int) -> None:
        """Says that `t` of `steps` host epochs of the present rollout are over."""
        if self._console:
            self._console.step(t, steps)

    def update(
        self,
        update: int,
        metrics: Mapping[str, Value],
        findings: Findings | None = None,
        decisions: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Takes the metrics of an update, values by tag; None and NaN are not measured.

        Args:
            findings: what looked wrong in it, if somebody looked.
            decisions: records of what the controller did.

        Raises:
            UnknownTagError: a tag is not in the table, whatever is switched on.
            DiskError: the disk refused.
        """
        values = measured(metrics)
        self._latest.update(values)
        findings, last = findings or Findings(), update == self._total
        detailed = findings.detailed or last or update % self._detail_every == 0
        if detailed or update % self._every == 0:
            written = {tag: value for tag, value in values.items() if detailed or not is_detail(tag)}
            for writer in self._writers:
                writer.write(update, written)
        if detailed and self._decisions:
            for decision in decisions:
                self._decisions.append(update, decision)
        for anomaly in findings.new:
            for writer in self._writers:
                writer.anomaly(update, anomaly)
        if self._console:
            self._console.update(update, values)
            for anomaly in findings.first:
                self._console.say(update, anomaly.sentence())

    def finish(self, rows: Rows = ()) -> None:
        """Says what came out of a run that reached its end: name and text of each line of a summary."""
        if self._tensorboard:
            self._tensorboard.hparams(self._hparams, self._latest)
        if self._console:
            self._console.finish(rows)

    def close(self) -> None:
        """Closes everything, the terminal first; each is closed whatever happens to the others."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
