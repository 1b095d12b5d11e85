"""The console writer: a live display in a terminal, a few plain lines elsewhere."""

import os
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO, cast

from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from esper.telemetry.anomalies import Anomaly
from esper.telemetry.base import Hparam, Rows, RunInfo, Writer, WriterConfig
from esper.telemetry.tags import ROLLBACKS, STAGES, in_terms_of, metric

SHOWN = {
    "sandbox/share_of_optimum": "share of optimum",
    "host/accuracy": "accuracy",
    "host/committed_accuracy": "committed accuracy",
    "host/parameters_grown": "parameters grown",
    "policy/return": "return",
    "policy/explained_variance": "explained variance",
    "search/best_return": "best return",
    "time/host_epochs_per_second": "host epochs/s",
}
"""Tag -> short name, in the order of the display."""
TREND = 16
"""Updates that the sparklines show."""
REFRESH = 4.0
"""Redraws per second."""


@dataclass(kw_only=True, slots=True)
class ConsoleConfig(WriterConfig):
    """Progress on standard output: live in a terminal, about a dozen plain lines elsewhere."""

    def build(self, run: RunInfo) -> Writer:
        """Return a live console if the output is a capable terminal that no other run writes to, else a plain one."""
        file = run.file or cast(TextIO, sys.stdout)
        console = RichConsole(file=file)
        if file.isatty() and os.environ.get("TERM") != "dumb" and not run.shared and not console.options.ascii_only:
            return LiveConsole(console, run)
        return PlainConsole(file, run)


def number(value: float) -> str:
    """Return a number with about four digits and separators between thousands."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def quantity(tag: str, value: float) -> str:
    """Return a metric's value, with its unit if a reader needs it."""
    unit = metric(tag).unit
    return number(value) if unit in ("1", "count", "1/s", "reward") else f"{number(value)} {unit}"


def spark(values: Sequence[float], marks: str = "▁▂▃▄▅▆▇█") -> str:
    """Return a sparkline, one character per value, scaled from the lowest value to the highest."""
    finite = [value for value in values if abs(value) != float("inf")]
    if not finite:
        return ""
    low, span = min(finite), max(finite) - min(finite)
    top = len(marks) - 1
    return "".join(marks[round((value - low) / span * top)] if span else marks[0] for value in finite)


class PlainConsole(Writer):
    """Prints lines without control characters, for files and pipes: at the start, about every tenth of the run, at the end."""

    def __init__(self, file: TextIO, run: RunInfo) -> None:
        self._file = file
        self._lead = f"{run.name}: " if run.name else ""
        self._first, self._size, self._announced = run.resume_update, run.size, run.announced
        self._total, self._names = run.total_updates, _names(run)
        self._tenth = 10 * self._first // self._total
        self._began = time.monotonic()

    def _print_line(self, line: str) -> None:
        encoding = self._file.encoding or "utf-8"  # an ASCII log shows a question mark for other characters
        line = f"{self._lead}{line}\n".encode(encoding, "replace").decode(encoding)
        print(line, end="", file=self._file, flush=True)  # one write per line, so that lines of parallel runs do not mix

    def start(self, title: str, hparams: Mapping[str, Hparam]) -> None:
        self._began = time.monotonic()
        if not self._announced:
            self._print_line(f"{title}, resumed after update {self._first}" if self._first else title)
        if self._size:
            self._print_line(self._size)

    def show(self, update: int, metrics: Mapping[str, float]) -> None:
        """Print the metrics when a tenth of the updates is complete, and the expected time after the first update.

        `finish` prints the last tenth.
        """
        tenth = 10 * update // self._total
        elapsed = time.monotonic() - self._began
        left = elapsed / max(1, update - self._first) * (self._total - update)
        if tenth == self._tenth or update == self._total:
            if update == self._first + 1 < self._total:
                speed = metrics.get("time/host_epochs_per_second")
                at = "" if speed is None else f" at {number(speed)} host epochs/s"
                self._print_line(f"update {update}/{self._total}: about {duration(left)} left{at}")
            return
        self._tenth = tenth
        values = ", ".join(f"{name} {quantity(tag, metrics[tag])}" for tag, name in self._names.items() if tag in metrics)
        self._print_line(f"update {update}/{self._total}, {clock(elapsed)} elapsed, {clock(left)} left: {values}")

    def anomaly(self, update: int, anomaly: Anomaly, *, first: bool) -> None:
        if first:
            self._print_line(f"update {update}/{self._total}: {anomaly.sentence()}")

    def finish(self, rows: Rows, metrics: Mapping[str, float]) -> None:
        summary = ", ".join(f"{name} {value}" for name, value in rows)
        self._print_line(f"done after {clock(time.monotonic() - self._began)}: {summary}")


def _names(run: RunInfo) -> dict[str, str]:
    """Return the names of the metrics that are displayed."""
    return {tag: in_terms_of(run.score, name) for tag, name in SHOWN.items()}


def clock(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds."""
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{second:02d}"


def duration(seconds: float) -> str:
    """Return an expected duration with two digits, as in 12 min."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{float(f'{seconds / size:.2g}'):g} {unit}"
    return f"{seconds:.0f} s"


class LiveConsole(Writer):
    """A progress bar and a table, redrawn in place at most 4 times per second by a thread of rich."""

    def __init__(self, console: RichConsole, run: RunInfo) -> None:
        self._console = console
        self._lead = f"{run.name}: " if run.name else ""
        self._done, self._total, self._names = run.resume_update, run.total_updates, _names(run)
        self._latest: dict[str, float] = {}
        self._trends: dict[str, deque[float]] = {tag: deque(maxlen=TREND) for tag in SHOWN}
        self._rollbacks = 0.0
        self._title, self._size, self._announced = "", run.size, run.announced
        # A long estimate period: progress is uneven, since hosts train first and the controller learns after.
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[phase]}"),
            TimeElapsedColumn(),
            TextColumn("·"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            speed_estimate_period=600,
            expand=True,
        )
        self._task = self._progress.add_task(
            f"update {min(self._done + 1, self._total)}/{self._total}", total=self._total, completed=self._done, phase="starting"
        )
        self._live = Live(self._picture(), console=console, refresh_per_second=REFRESH, vertical_overflow="crop", transient=False)

    def start(self, title: str, hparams: Mapping[str, Hparam]) -> None:
        """Start the display on the last lines of the terminal, until `close`."""
        self._title = "" if self._announced else self._lead + title
        if self._size:
            self._console.print(Text(self._lead + self._size))
        self._live.update(self._picture())
        self._live.start(refresh=True)

    def step(self, t: int, steps: int) -> None:
        """Move the bar within an update."""
        phase = f"host epoch {t}/{steps}" if t < steps else "learning"
        self._progress.update(self._task, completed=self._done + t / steps, phase=phase)

    def show(self, update: int, metrics: Mapping[str, float]) -> None:
        """Store the metrics of an update for the next redraw."""
        self._done = update
        self._latest.update(metrics)
        for tag in SHOWN:
            if tag in metrics:
                self._trends[tag].append(metrics[tag])
        self._rollbacks += sum(metrics.get(tag, 0.0) for tag in ROLLBACKS)
        coming = min(update + 1, self._total)
        self._progress.update(self._task, completed=update, description=f"update {coming}/{self._total}")
        self._live.update(self._picture())

    def anomaly(self, update: int, anomaly: Anomaly, *, first: bool) -> None:
        """Print a line that stays, above the display."""
        if first:
            self._console.print(Text(f"{self._lead}update {update}/{self._total}: {anomaly.sentence()}", style="yellow"))

    def finish(self, rows: Rows, metrics: Mapping[str, float]) -> None:
        """Print the summary below the last display."""
        self._progress.update(self._task, phase="done")
        self.close()
        table = Table.grid(padding=(0, 2))
        for name, value in rows:
            table.add_row(Text(name, style="bold"), Text(value))
        self._console.print(table)

    def close(self) -> None:
        """Restore the terminal, with the last display in it."""
        self._live.stop()

    def _picture(self) -> Group:
        both = Table.grid(padding=(0, 3), expand=False)
        both.add_row(self._numbers(), self._stages())
        return Group(Text(self._title, style="bold", no_wrap=True, overflow="ellipsis"), self._progress, both)

    def _numbers(self) -> Table:
        table = _grid("cyan")
        for tag, label in self._names.items():
            value = quantity(tag, self._latest[tag]) if tag in self._latest else "-"
            table.add_row(label, value, spark(self._trends[tag]))
        table.add_row("rollbacks", number(self._rollbacks), "")
        return table

    def _stages(self) -> Table:
        table = _grid("green")
        slots = sum(self._latest.get(tag, 0.0) for tag in STAGES.values()) or 1.0
        for stage, tag in STAGES.items():
            value = self._latest.get(tag)
            table.add_row(stage, "-" if value is None else number(value), "■" * round(10 * (value or 0.0) / slots))
        return table


def _grid(style: str) -> Table:
    """Return a table with columns for names, numbers and graphics."""
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style=style, no_wrap=True)
    return table
