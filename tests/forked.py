"""Commands in forks of the test process, which has imported everything: a second faster than a new interpreter.

Tests that are about a process of its own, its imports or its installation start an interpreter instead.
"""

import os
import pickle
import runpy
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import torch._dynamo  # noqa: F401  (PyTorch imports it with the first optimizer or counted FLOP, a second in every fork)

from esper import plugins

LIMIT = 180.0
"""Time after which a command counts as hung [s]."""


class Forked:
    """A command `python -m MODULE ...` in a fork, with the interface of `subprocess.Popen` as far as tests need it."""

    def __init__(self, module: str, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> None:
        """
        Args:
            module: module to run, such as esper.train.
            arguments: its arguments.
            cwd: working directory.
            env: changes of the environment. A changed PYTHONPATH comes first on the child's own search path.
        """
        folder = Path(tempfile.mkdtemp())
        self._out, self._err = folder / "out", folder / "err"
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._run(module, arguments, cwd, env or {})

    def _run(self, module: str, arguments: tuple[str, ...], cwd: Path, env: Mapping[str, str]) -> None:
        code = 1
        try:
            os.chdir(cwd)
            os.environ.update(env)
            sys.path[:0] = [place for place in env.get("PYTHONPATH", "").split(os.pathsep) if place]
            for number, path, mode in ((0, os.devnull, "r"), (1, self._out, "w"), (2, self._err, "w")):
                os.dup2(os.open(path, os.O_RDONLY if mode == "r" else os.O_WRONLY | os.O_CREAT), number)
            sys.stdin, sys.stdout, sys.stderr = (open(n, m, closefd=False) for n, m in ((0, "r"), (1, "w"), (2, "w")))  # noqa: SIM115
            sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
            signal.signal(signal.SIGINT, signal.default_int_handler)
            warnings.showwarning = warnings._showwarning_orig  # pyright: ignore[reportAttributeAccessIssue]
            sys.argv = [module, *arguments]
            for name in (module, *(name for name in sys.modules if name == "__main__")):
                sys.modules.pop(name, None)
            plugins._load_installed.cache_clear()  # the search path may hold others
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the command runs."""
        if self.returncode is None and (status := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(status[1])
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the command has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the command."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float = LIMIT) -> int:
        """Wait for the end, and return the exit code."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                self.kill()
                raise TimeoutError(f"still running after {timeout} s: {self._err.read_text()}")
            time.sleep(0.01)
        return code

    def communicate(self, timeout: float = LIMIT) -> tuple[str, str]:
        """Wait for the end, and return stdout and stderr."""
        self.wait(timeout)
        return self._out.read_text(), self._err.read_text()


def run_forked(module: str, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> CompletedProcess[str]:
    """Run a command in a fork to its end, as `subprocess.run` does."""
    process = Forked(module, *arguments, cwd=cwd, env=env)
    out, err = process.communicate()
    return CompletedProcess([module, *arguments], process.wait(), out, err)


def in_fork(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what a function returns in a fork of this process."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            found = pickle.dumps(look())
        except BaseException as error:
            found = pickle.dumps(error)
        with os.fdopen(writer, "wb") as file:
            file.write(found)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        found = pickle.load(file)
    os.waitpid(child, 0)
    if isinstance(found, BaseException):
        raise found
    return found
