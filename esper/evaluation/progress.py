"""Progress of a command that grows the same hosts several times, one controller after another, with the time left."""

import time
from typing import TextIO

from esper.notices import StatusLine
from esper.text import duration


class Progress:
    """Shows the controller that grows the hosts, the host epoch and the time left on one line of a terminal; elsewhere it prints
    a line after each controller."""

    def __init__(self, total: int, file: TextIO) -> None:
        """
        Args:
            total: how many times hosts will be grown, at least 1.
            file: output.
        """
        self.total, self.done = total, 0
        self._file, self._line = file, StatusLine(file) if file.isatty() else None
        self._name, self._begun = "", time.monotonic()

    def begin(self, name: str) -> None:
        """Set the name of the controller that grows the hosts next."""
        self._name = name

    def expect(self, more: int) -> None:
        """Add to the number of times that hosts will be grown; `more` may be negative."""
        self.total += more

    def step(self, t: int, steps: int) -> None:
        """Receive that `t` of `steps` host epochs are done."""
        self.done += t == steps
        share = (self.done + (t / steps) % 1) / max(self.total, self.done)
        elapsed = time.monotonic() - self._begun
        left = f", about {duration(elapsed * (1 / share - 1))} left" if share > 0 and elapsed > 0.5 and share < 1 else ""
        if self._line is not None:
            if t < steps:
                self._line(f"{self.done + 1} of {self.total}: {self._name}", f"host epoch {t + 1}/{steps}{left}")
        elif t == steps:
            print(f"grown {self.done} of {self.total}: {self._name}{left}", file=self._file, flush=True)

    def close(self) -> None:
        """Remove the line from the terminal."""
        if self._line is not None:
            self._line("")
