"""The console writer: a live display in a terminal, a few plain lines elsewhere."""

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console as RichConsole

from esper.telemetry.anomalies import Anomaly
from esper.telemetry.base import Hparam, Rows, RunInfo, Writer, WriterConfig
from esper.telemetry.live import LiveConsole, shown_names
from esper.telemetry.summary import summary_line, summary_lines
from esper.telemetry.tags import quantity
from esper.telemetry.trend import History
from esper.text import clock, duration, number


@dataclass(kw_only=True, slots=True)
class ConsoleConfig(WriterConfig):
    """Progress on standard output: live in a terminal, about a dozen plain lines elsewhere."""

    def build(self, run: RunInfo) -> Writer:
        """Return a live console if the output is a capable terminal that no other run writes to, else a plain one."""
        console = RichConsole(file=sys.stdout)
        if sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not run.shared and not console.options.ascii_only:
            return LiveConsole(console, run)
        return PlainConsole(sys.stdout, run)


class PlainConsole(Writer):
    """Prints lines without control characters, for files and pipes: at the start, about every tenth of the run, at the end."""

    def __init__(self, file: TextIO, run: RunInfo) -> None:
        self._file = file
        self._run, self._lead = run, f"{run.name}: " if run.name else ""
        self._first, self._total, self._names = run.resume_update, run.total_updates, shown_names(run)
        self._history = History(run.folder, run.resume_update)
        self._tenth = 10 * self._first // self._total
        self._began = time.monotonic()
        self._step = ""

    def _print_line(self, line: str) -> None:
        encoding = self._file.encoding or "utf-8"  # an ASCII log shows a question mark for other characters
        line = f"{self._lead}{line}\n".encode(encoding, "replace").decode(encoding)
        print(line, end="", file=self._file, flush=True)  # one write per line, so that lines of parallel runs do not mix

    def start(self, title: str, hparams: Mapping[str, Hparam]) -> None:
        self._began = time.monotonic()
        if not self._run.announced:
            self._print_line(f"{title}, resumed after update {self._first}" if self._first else title)
        for line in self._run.size.splitlines():
            self._print_line(line)

    def note(self, step: str, progress: str = "") -> None:
        """Print a step when it begins."""
        if step and step != self._step:
            self._print_line(step)
        self._step = step

    def write(self, update: int, metrics: Mapping[str, float]) -> None:
        """Keep what the summary needs: only written updates, since a resumed run knows no others."""
        self._history.add(update, metrics)

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
        times = f"{clock(self._run.spent + elapsed)} elapsed, {clock(left)} left"
        self._print_line(f"update {update}/{self._total}, {times}: {values}")

    def anomaly(self, update: int, anomaly: Anomaly, *, first: bool) -> None:
        if first:
            self._print_line(f"warning: update {update}/{self._total}: {anomaly.sentence()}")

    def finish(self, rows: Rows, metrics: Mapping[str, float]) -> None:
        done = f"trained for {clock(self._run.spent + time.monotonic() - self._began)}"
        if self._lead:
            self._print_line(f"{done}: {summary_line(rows, self._history, self._run.score)}")
            return
        self._print_line(done)
        for line in summary_lines(rows, self._history, self._run.score):
            self._print_line(line.text)
