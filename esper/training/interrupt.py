"""Clean interruption of a run between two steps."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


class Stopped(BaseException):
    """The run was asked to stop; everything up to the last update is saved. Like KeyboardInterrupt, it arrives anywhere, and code
    that handles the errors of a file or a library must not take it for one."""


class StopRequest(threading.Event):
    """Set when the run is asked to stop."""

    at_once = False
    """If true, a signal raises `Stopped` where it arrives."""

    @contextmanager
    def without_delay(self) -> Generator[None]:
        """Let a signal end the run at once, in work that may take long and changes nothing that is saved."""
        self.at_once = True
        try:
            yield
        finally:
            self.at_once = False


@contextmanager
def stop_signals() -> Generator[StopRequest]:
    """Yield a request that the first SIGINT or SIGTERM sets; a second SIGINT interrupts at once.

    Python delivers signals to the main thread only: in another thread the request is never set.
    """
    asked = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()
        if asked.at_once:
            raise Stopped("stopped between two updates")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
