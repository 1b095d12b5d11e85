"""Deterministic faults: something goes wrong at the k-th operation of a class.

    line    a line of code of the modules that write or decide what is written; see `WATCHED`
    disk    a call that changes the disk: open for writing, write, flush, fsync, rename, truncate
    epoch   a training epoch of a shard
    step    an optimiser step of the policy

Counting the operations of an undisturbed process tells how many places there are to disturb.
"""

import builtins
import errno
import io
import os
import signal
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import esper
from esper.pool.shard import Shard

PACKAGE = str(Path(esper.__file__).parent)
NAMES = ("checkpoint.py", "training/", "telemetry/", "evaluation/", "lab/", "cli/", "train.py", "compare.py", "buffer/")
WATCHED = tuple(f"{PACKAGE}/{name}" for name in NAMES)
"""Files whose lines are counted."""


class InjectedError(RuntimeError):
    """A bug that the harness put into the program."""


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def error() -> None:
    raise InjectedError("injected")


def no_space() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_memory() -> None:
    raise MemoryError("injected")


FAULTS: dict[str, tuple[str, Callable[[], None]]] = {
    "kill": ("line", kill),
    "kill_disk": ("disk", kill),
    "interrupt": ("line", interrupt),
    "error": ("line", error),
    "no_space": ("disk", no_space),
    "no_memory": ("epoch", no_memory),
    "error_learning": ("step", error),
}
"""Fault -> the class of operations at which it strikes, and what it does."""


@dataclass
class Injector:
    """Counts the operations of one class in this process, and acts at one of them."""

    operation: str
    at: int = 0
    """Number of the operation at which to act, counted from 1; 0 only counts."""
    act: Callable[[], None] = kill
    count: int = 0
    counted: Callable[[], int] | None = None
    """Returns the count of lines, which has to be fast."""

    def meet(self) -> None:
        """Count one operation."""
        self.count += 1
        if self.count == self.at:
            self.act()

    def install(self) -> None:
        """Watch this process from now on. There is no way back: install it in a fork."""
        {"line": self._lines, "disk": self._disk, "epoch": self._epochs, "step": self._steps}[self.operation]()

    def _lines(self) -> None:
        count, at, watched = 0, self.at, dict[Any, bool]()

        def local(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal count
            if event == "line":
                count += 1
                if count == at:
                    sys.settrace(None)
                    self.act()
            return local

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            code = frame.f_code
            if code not in watched:
                watched[code] = code.co_filename.startswith(WATCHED)
            return local if watched[code] else None

        self.counted = lambda: count
        sys.settrace(trace)

    def _before(self, owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            if name != "write" or not stat.S_ISFIFO(os.fstat(arguments[0]).st_mode):  # no disk: joblib's processes talk by pipes
                self.meet()
            return real(*arguments, **options)

        setattr(owner, name, counted)

    def _disk(self) -> None:
        for name in ("write", "fsync", "replace", "rename", "ftruncate", "mkdir"):
            self._before(os, name)
        real_os_open, real_open = os.open, io.open

        def counted_os_open(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self.meet()
            return real_os_open(path, flags, *arguments, **options)

        def counted_open(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if not set(mode) & set("wax+"):
                return real_open(file, mode, *arguments, **options)
            self.meet()
            return CountedFile(real_open(file, mode, *arguments, **options), self.meet)

        os.open = counted_os_open
        builtins.open = io.open = counted_open  # type: ignore[assignment]

    def _epochs(self) -> None:
        self._before(Shard, "train_epoch")

    def _steps(self) -> None:
        self._before(torch.optim.Adam, "step")


class CountedFile:
    """A file that reports every write, flush and truncation before it happens."""

    def __init__(self, file: Any, meet: Callable[[], None]) -> None:
        self._file, self._meet = file, meet

    def __getattr__(self, name: str) -> Any:
        if name in ("write", "flush", "truncate"):
            self._meet()
        return getattr(self._file, name)

    def __enter__(self) -> "CountedFile":
        self._file.__enter__()
        return self

    def __exit__(self, *arguments: Any) -> Any:
        return self._file.__exit__(*arguments)

    def __iter__(self) -> Any:
        return iter(self._file)
