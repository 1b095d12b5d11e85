"""Progress of the runs of a sweep, read from their folders, so that it is right for any launcher and after a resume."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from esper.config import ConfigError
from esper.text import duration
from esper.training.provenance import FILE, read

POLL = 0.5
"""Time between two looks at the folders [s]."""


class SweepProgress:
    """Prints a line whenever a run has finished: its number, the number of all runs, and the time left for the others.

    A run that failed after its start is no longer counted as left.
    """

    def __init__(self, folders: Sequence[Path], *, done: int, later: int = 0) -> None:
        """
        Args:
            folders: folders of the runs that this command starts or resumes.
            done: number of runs that were finished before.
            later: number of runs that will follow these.
        """
        self._waiting = {folder: len(self._records(folder)) for folder in folders}
        """Number of processes that had worked on each run before."""
        self._done, self._later, self._total = done, later, done + len(folders) + later
        self._over_here, self._begun = 0, time.monotonic()
        self._over, self._thread = threading.Event(), threading.Thread(target=self._watch, daemon=True, name="sweep_progress")

    def __enter__(self) -> "SweepProgress":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        self.look()

    def look(self) -> None:
        """Print a line for each run that has finished since the last look."""
        for folder, before in list(self._waiting.items()):
            records = self._records(folder)
            status = records[-1].get("status") if len(records) > before else "running"
            if status == "running":
                continue
            del self._waiting[folder]
            self._over_here += 1
            if status == "finished":
                self._done += 1
                each = (time.monotonic() - self._begun) / self._over_here  # of runs side by side, each takes its share
                others = len(self._waiting) + self._later
                left = f", about {duration(each * others)} left" if others else ""
                print(f"run {self._done} of {self._total} done{left}", flush=True)

    def _watch(self) -> None:
        while not self._over.wait(POLL):
            self.look()

    @staticmethod
    def _records(folder: Path) -> list[dict[str, object]]:
        try:
            return read(folder / FILE)
        except ConfigError:  # its run says so
            return []
