"""Phases of an update: the wall time of each, and its mark in a profile."""

from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock
from time import perf_counter

from torch.profiler import record_function

MARK = "esper/"
"""Start of the names that phases have in a profile."""


@contextmanager
def marked(phase: str) -> Generator[None]:
    """Mark a phase in a profile, if there is one; the marks of a thread are not nested."""
    with record_function(MARK + phase):
        yield


class PhaseTimes:
    """Wall time by phase. Time in which threads work side by side is divided in proportion to what they spend in each phase."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._busy: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def working(self, phase: str) -> Generator[None]:
        """Time and mark the work of a thread."""
        begun = perf_counter()
        with marked(phase):
            yield
        self.add(phase, perf_counter() - begun)

    def add(self, phase: str, seconds: float) -> None:
        """Add the time [s] that a thread or a process measured for its own work."""
        with self._lock:
            self._busy[phase] += seconds

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Divide the wall time of the body, which waits for working threads or processes, among their phases."""
        self._busy.clear()
        begun = perf_counter()
        yield
        wall, total = perf_counter() - begun, sum(self._busy.values())
        for phase, busy in self._busy.items():
            self._seconds[phase] += wall * busy / total

    def take(self) -> dict[str, float]:
        """Return the times since the last call [s]."""
        seconds = dict(self._seconds)
        self._seconds.clear()
        return seconds
