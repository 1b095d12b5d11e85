"""What a person sees while a run is under way: a live picture in a terminal, a few plain lines anywhere else."""

import os
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol, TextIO, cast

from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from esper.telemetry.tags import METRICS, ROLLBACKS, STAGES

Rows = Sequence[tuple[str, str]]
"""Name and text of each line of the summary."""

SHOWN = {row.tag: row for row in METRICS if row.label}
TREND = 16
"""How many of the last updates the little curves show."""
REFRESH = 4.0
"""Redraws per second."""


class Console(Protocol):
    """Where a person looks. `metrics` are the measured values by tag."""

    def start(self, title: str) -> None: ...
    def step(self, t: int, steps: int) -> None: ...
    def update(self, update: int, metrics: Mapping[str, float]) -> None: ...
    def say(self, update: int, sentence: str) -> None: ...
    def finish(self, rows: Rows) -> None: ...
    def close(self) -> None: ...


def build_console(
    *, resume_update: int, total_updates: int, name: str = "", shared: bool = False, file: TextIO | None = None
) -> Console:
    """A live console where `file` is a capable terminal that nobody else writes to, else a plain one.

    Args:
        name: of the run, where it is one of several; it goes before what is said.
        shared: do other runs write to the same terminal at the same time?
        file: standard output unless given.
    """
    file = file or cast(TextIO, sys.stdout)
    if file.isatty() and os.environ.get("TERM") != "dumb" and not shared:
        return LiveConsole(RichConsole(file=file), resume_update=resume_update, total_updates=total_updates, name=name)
    return PlainConsole(file, resume_update=resume_update, total_updates=total_updates, name=name)


def number(value: float) -> str:
    """A number in about four digits, thousands set apart."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def quantity(tag: str, value: float) -> str:
    """A metric's number with its unit, where the unit is one that a reader needs."""
    unit = SHOWN[tag].unit
    return number(value) if unit in ("1", "count", "1/s", "reward") else f"{number(value)} {unit}"


def spark(values: Sequence[float], marks: str = "▁▂▃▄▅▆▇█") -> str:
    """A curve of one character a value, from the lowest value to the highest."""
    finite = [value for value in values if abs(value) != float("inf")]
    if not finite:
        return ""
    low, span = min(finite), max(finite) - min(finite)
    top = len(marks) - 1
    return "".join(marks[round((value - low) / span * top)] if span else marks[0] for value in finite)


class PlainConsole:
    """Lines without control characters, for files and pipes: at the start, at about each tenth, and at the end."""

    def __init__(self, file: TextIO, *, resume_update: int, total_updates: int, name: str = "") -> None:
        self._file = file
        self._lead = f"{name}: " if name else ""
        self._first = resume_update
        self._total = total_updates
        self._tenth = 10 * resume_update // total_updates
        self._began = time.monotonic()

    def _say(self, line: str) -> None:
        encoding = self._file.encoding or "utf-8"  # a log in ASCII shows a question mark for a letter that it lacks
        line = f"{self._lead}{line}\n".encode(encoding, "replace").decode(encoding)
        print(line, end="", file=self._file, flush=True)  # its end with it: beside other runs nothing may come between

    def start(self, title: str) -> None:
        """Says what runs, before the first update has begun."""
        self._began = time.monotonic()
        after = f", after {self._first} before" if self._first else ""
        self._say(f"{title}: {self._total - self._first} updates{after}")

    def step(self, t: int, steps: int) -> None:
        """Says nothing: a plain log has no use for it."""

    def update(self, update: int, metrics: Mapping[str, float]) -> None:
        """Says how things stand, where a tenth of the updates is complete; the last tenth is `finish`'s."""
        tenth = 10 * update // self._total
        if tenth == self._tenth or update == self._total:
            return
        self._tenth = tenth
        elapsed = time.monotonic() - self._began
        left = elapsed / max(1, update - self._first) * (self._total - update)
        values = ", ".join(f"{SHOWN[tag].label} {quantity(tag, metrics[tag])}" for tag in SHOWN if tag in metrics)
        self._say(f"update {update}/{self._total}, {clock(elapsed)} elapsed, {clock(left)} left: {values}")

    def say(self, update: int, sentence: str) -> None:
        """Says what cannot wait for the next tenth."""
        self._say(f"update {update}/{self._total}: {sentence}")

    def finish(self, rows: Rows) -> None:
        """Says what came out."""
        summary = ", ".join(f"{name} {value}" for name, value in rows)
        self._say(f"done after {clock(time.monotonic() - self._began)}: {summary}")

    def close(self) -> None:
        """Does nothing: a plain log needs no end."""


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{second:02d}"


class LiveConsole:
    """A progress bar and a table that are redrawn in place, 4 times a second at most, by a thread of rich."""

    def __init__(self, console: RichConsole, *, resume_update: int, total_updates: int, name: str = "") -> None:
        self._console = console
        self._lead = f"{name}: " if name else ""
        self._done = resume_update
        self._ascii = console.options.ascii_only
        self._latest: dict[str, float] = {}
        self._trends: dict[str, deque[float]] = {tag: deque(maxlen=TREND) for tag in SHOWN}
        self._rollbacks = 0.0
        self._title = ""
        # A long look back: updates are uneven, as hosts train first and the controller learns after.
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[phase]}"),
            TimeElapsedColumn(),
            TextColumn("·" if not self._ascii else "-"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            speed_estimate_period=600,
            expand=True,
        )
        self._task = self._progress.add_task(
            f"update {min(resume_update + 1, total_updates)}/{total_updates}",
            total=total_updates,
            completed=resume_update,
            phase="starting",
        )
        self._total = total_updates
        self._live = Live(self._picture(), console=console, refresh_per_second=REFRESH, vertical_overflow="crop", transient=False)

    def start(self, title: str) -> None:
        """Takes the terminal's last lines, until `close`."""
        self._title = self._lead + title
        self._live.update(self._picture())
        self._live.start(refresh=True)

    def step(self, t: int, steps: int) -> None:
        """Moves the bar within an update."""
        phase = f"host epoch {t}/{steps}" if t < steps else "learning"
        self._progress.update(self._task, completed=self._done + t / steps, phase=phase)

    def update(self, update: int, metrics: Mapping[str, float]) -> None:
        """Takes in the metrics of an update; they are drawn at the next redraw."""
        self._done = update
        self._latest.update(metrics)
        for tag in SHOWN:
            if tag in metrics:
                self._trends[tag].append(metrics[tag])
        self._rollbacks += sum(metrics.get(tag, 0.0) for tag in ROLLBACKS)
        coming = min(update + 1, self._total)
        self._progress.update(self._task, completed=update, description=f"update {coming}/{self._total}")
        self._live.update(self._picture())

    def say(self, update: int, sentence: str) -> None:
        """Writes a line that stays, above the picture."""
        self._console.print(Text(f"{self._lead}update {update}/{self._total}: {sentence}", style="yellow"))

    def finish(self, rows: Rows) -> None:
        """Shows what came out below the last picture."""
        self._progress.update(self._task, phase="done")
        self.close()
        table = Table.grid(padding=(0, 2))
        for name, value in rows:
            table.add_row(Text(name, style="bold"), Text(value))
        self._console.print(table)

    def close(self) -> None:
        """Gives the terminal back as it was, with the last picture in it."""
        self._live.stop()

    def _picture(self) -> Group:
        both = Table.grid(padding=(0, 3), expand=False)
        both.add_row(self._numbers(), self._stages())
        return Group(Text(self._title, style="bold", no_wrap=True, overflow="ellipsis"), self._progress, both)

    def _numbers(self) -> Table:
        table = Table.grid(padding=(0, 1))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(style="cyan", no_wrap=True)
        for tag, row in SHOWN.items():
            value = quantity(tag, self._latest[tag]) if tag in self._latest else "-"
            table.add_row(row.label, value, "" if self._ascii else spark(self._trends[tag]))
        table.add_row("rollbacks", number(self._rollbacks), "")
        return table

    def _stages(self) -> Table:
        table = Table.grid(padding=(0, 1))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(style="green", no_wrap=True)
        slots = sum(self._latest.get(tag, 0.0) for tag in STAGES.values()) or 1.0
        for stage, tag in STAGES.items():
            value = self._latest.get(tag)
            bar = "" if value is None else ("#" if self._ascii else "■") * round(10 * value / slots)
            table.add_row(stage, "-" if value is None else number(value), bar)
        return table
