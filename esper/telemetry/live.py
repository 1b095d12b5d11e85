"""The live display of a run in a terminal."""

import textwrap
import time
from collections.abc import Mapping

from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from esper.telemetry.anomalies import Anomaly
from esper.telemetry.base import Hparam, Rows, RunInfo, Writer
from esper.telemetry.summary import BAD, COMMAND, GOOD, HEADING, Line, summary_lines
from esper.telemetry.tags import ROLLBACKS, STAGES, in_terms_of, quantity
from esper.telemetry.trend import History
from esper.text import bins, clock, number, short, spark

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
REFRESH = 4.0
"""Redraws per second."""
WIDE = 100
"""Columns from which numbers and stages stand side by side."""
STYLES = {GOOD: "green", BAD: "red", HEADING: "bold", COMMAND: "cyan"}


def shown_names(run: RunInfo) -> dict[str, str]:
    """Return the names of the metrics that are displayed, by tag."""
    return {tag: in_terms_of(run.score, name) for tag, name in SHOWN.items()}


class LiveConsole(Writer):
    """A progress bar and a table, redrawn in place at most 4 times per second by a thread of rich."""

    def __init__(self, console: RichConsole, run: RunInfo) -> None:
        self._console, self._run = console, run
        self._lead = f"{run.name}: " if run.name else ""
        self._done, self._total, self._names = run.resume_update, run.total_updates, shown_names(run)
        self._latest: dict[str, float] = {}
        self._history = History(run.folder, run.resume_update)
        self._title, self._phase, self._note = "", "starting", ""
        self._began, self._stopped = time.monotonic(), False
        # A long estimate period: progress is uneven, since hosts train first and the controller learns after.
        self._progress = Progress(
            BarColumn(bar_width=None),
            TextColumn("{task.fields[clock]} ·"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            speed_estimate_period=600,
            expand=True,
        )
        self._task = self._progress.add_task("", total=self._total, completed=self._done, clock=clock(run.spent))
        self._live = Live(
            get_renderable=self._picture, console=console, refresh_per_second=REFRESH, vertical_overflow="crop", transient=False
        )

    def start(self, title: str, hparams: Mapping[str, Hparam]) -> None:
        """Start the display on the last lines of the terminal, until `close`."""
        self._title = "" if self._run.announced else self._lead + title
        for line in self._run.size.splitlines():
            self._console.print(Text(self._lead + line))
        self._began = time.monotonic()
        self._live.start(refresh=True)

    def note(self, step: str, progress: str = "") -> None:
        """Show a step beside the number of the update until it is over."""
        self._note = " ".join(filter(None, [step, progress]))

    def step(self, t: int, steps: int) -> None:
        """Move the bar within an update."""
        self._phase, self._note = f"host epoch {t}/{steps}" if t < steps else "learning", ""
        self._progress.update(self._task, completed=self._done + t / steps)

    def write(self, update: int, metrics: Mapping[str, float]) -> None:
        """Keep what the curves and the summary need: only written updates, since a resumed run knows no others."""
        self._history.add(update, metrics)

    def show(self, update: int, metrics: Mapping[str, float]) -> None:
        """Store the metrics of an update for the next redraw."""
        self._done = update
        self._latest.update(metrics)
        self._progress.update(self._task, completed=update)

    def anomaly(self, update: int, anomaly: Anomaly, *, first: bool) -> None:
        """Print a line that stays, above the display."""
        if first:
            text = f"{self._lead}warning: update {update}/{self._total}: {anomaly.sentence()}"
            self._console.print(Text(text, style="yellow"))

    def finish(self, rows: Rows, metrics: Mapping[str, float]) -> None:
        """Print the summary below the last display."""
        self._phase = "done"
        self.close()
        for line in summary_lines(rows, self._history, self._run.score):
            # rich would break a command or a path anywhere, so that it could not be copied.
            self._console.print(Text(self._broken(line), style=STYLES.get(line.kind, "")), soft_wrap=True)

    def _broken(self, line: Line) -> str:
        """Return a line broken between words; a command as it is."""
        if line.kind == COMMAND:
            return line.text
        width, indent = max(self._console.width, line.indent + 20), " " * line.indent
        return textwrap.fill(line.text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)

    def close(self) -> None:
        """Restore the terminal, with the last display in it."""
        self._stopped = True
        self._progress.update(self._task, clock=clock(self._elapsed()))
        self._live.stop()

    def _elapsed(self) -> float:
        """Return the time spent on the run, by earlier processes too [s]."""
        return self._run.spent + time.monotonic() - self._began

    def _picture(self) -> Group:
        """Return the display for the present width of the terminal."""
        if not self._stopped:
            self._progress.update(self._task, clock=clock(self._elapsed()))
        where = Text(f"update {min(self._done + 1, self._total)}/{self._total} · {self._note or self._phase}")
        where.no_wrap, where.overflow = True, "ellipsis"
        title = [Text(self._title, style="bold", no_wrap=True, overflow="ellipsis")] if self._title else []
        if not self._latest:
            return Group(*title, where, self._progress)
        if self._console.width < WIDE:
            return Group(*title, where, self._progress, self._numbers(), self._stages_in_words())
        both = Table.grid(padding=(0, 3), expand=False)
        both.add_row(self._numbers(), self._stages())
        return Group(*title, where, self._progress, both)

    def _numbers(self) -> Table:
        """Return the newest value of every metric, and its curve over the whole run with its range."""
        table, room = _grid("cyan"), self._console.width
        table.add_column(style="dim", no_wrap=True)
        marks = 8 if room < 70 else 16
        for tag, label in self._names.items():
            if tag in self._latest:
                values = self._history.series.get(tag, [])
                curve = bins(values, marks)
                ends = f"{short(min(values))} to {short(max(values))}" if len(curve) > 1 else ""
                table.add_row(label, quantity(tag, self._latest[tag]), spark(curve), ends)
        rollbacks = sum(sum(self._history.series.get(tag, ())) for tag in ROLLBACKS)
        table.add_row("rollbacks", number(rollbacks), "", f"in {self._history.counted(self._history.updates)}")
        return table

    def _stages(self) -> Table:
        table = _grid("green")
        slots = sum(self._latest.get(tag, 0.0) for tag in STAGES.values()) or 1.0
        for stage, tag in STAGES.items():
            value = self._latest.get(tag)
            if value is not None:
                table.add_row(stage, number(value), "■" * round(10 * value / slots))
        return table

    def _stages_in_words(self) -> Text:
        """Return the stages of the slots at the end of the last episode, without those that have none."""
        found = {stage: self._latest.get(tag, 0.0) for stage, tag in STAGES.items()}
        words = ", ".join(f"{value:.2g} {stage}" for stage, value in found.items() if value)
        return Text(f"slots: {words}" if words else "", style="green")


def _grid(style: str) -> Table:
    """Return a table with columns for names, numbers and graphics."""
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style=style, no_wrap=True)
    return table
