"""Notices of long steps, to display while a command has nothing else to show; one listener receives them; and
the category of warnings for the user."""

import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TextIO

Listener = Callable[[str, str], None]
"""Receives a step, such as `pretraining 32 hosts`, and how far it has come, such as `epoch 3/20`; empty texts end the step."""

_listener: Listener | None = None


class UserNotice(UserWarning):
    """A warning for the user, shown without its place in the code. The message is one sentence."""


def notice(step: str = "", progress: str = "") -> None:
    """Announce a step that takes longer than a moment, or its progress; without arguments, that the last step is over."""
    if _listener is not None:
        _listener(step, progress)


def listen(listener: Listener | None) -> None:
    """Let this function receive all notices from now on, or nothing."""
    global _listener
    _listener = listener


@contextmanager
def heard_by(listener: Listener | None) -> Generator[None]:
    """Let this function receive the notices of the body."""
    before = _listener
    listen(listener)
    try:
        yield
    finally:
        listen(before)


class StatusLine:
    """Shows the current notice on one line of a terminal, in place of the last one; elsewhere, prints one line per step."""

    def __init__(self, file: TextIO, lead: str = "") -> None:
        """
        Args:
            file: output.
            lead: start of each line, such as the name of one of several runs.
        """
        self._file, self._lead, self._step, self._shown = file, lead, "", False
        self._live = file.isatty() and os.environ.get("TERM") != "dumb"

    def __call__(self, step: str, progress: str = "") -> None:
        if self._live:
            text = " ".join(filter(None, [step, progress]))
            if text or self._shown:
                width = shutil.get_terminal_size().columns - 1
                shown = f"{self._lead}{text} ..."[:width] if text else ""
                print(f"\r\x1b[K{shown}", end="", file=self._file, flush=True)
            self._shown = bool(text)
        elif step and step != self._step:
            print(f"{self._lead}{step}", file=self._file, flush=True)
        self._step = step
