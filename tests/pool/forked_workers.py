"""Workers in forks of the test process, which has imported everything: two seconds faster than new interpreters."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any


class ForkedWorker:
    """A worker in a fork, with what `esper.pool.process_cluster` uses of `subprocess.Popen`."""

    def __init__(self, command: Sequence[str], *, pass_fds: Sequence[int], **_: Any) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._run(command[-1], *pass_fds)

    def _run(self, code: str, handle: int) -> None:
        try:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.closerange(3, handle)  # among them are the sockets of the first process
            os.closerange(handle + 1, os.sysconf("SC_OPEN_MAX"))
            signal.signal(signal.SIGINT, signal.default_int_handler)
            exec(code, {"__name__": "__main__"})
        finally:
            os._exit(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return the exit code."""
        deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
        while self.returncode is None:
            if (status := os.waitpid(self.pid, 0 if timeout is None else os.WNOHANG))[0]:
                self.returncode = os.waitstatus_to_exitcode(status[1])
            elif time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a worker", timeout or 0)
            else:
                time.sleep(0.002)
        return self.returncode

    def kill(self) -> None:
        """Kill it, unless its end is known."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


FORKING = SimpleNamespace(Popen=ForkedWorker, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)
"""In the place of the module `subprocess` of `esper.pool.process_cluster`."""


class Evaluated:
    """Evaluates an expression where it is unpickled."""

    def __init__(self, expression: str) -> None:
        self.expression = expression

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (self.expression,)
