"""Clean interruption of a run between two steps."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


class Stopped(Exception):
    """The run was asked to stop; everything up to the last update is saved."""


@contextmanager
def stop_signals() -> Generator[threading.Event]:
    """Yield an event that the first SIGINT or SIGTERM sets; a second SIGINT interrupts at once.

    Python delivers signals to the main thread only: in another thread the event is never set.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
