"""Workers as processes of this machine, which receive their calls through sockets."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import cloudpickle

from esper.notices import UserNotice, listen, notice
from esper.pool.base import PoolParts
from esper.pool.cluster import ClusterError
from esper.pool.devices import current_turn, take_turn
from esper.pool.remote import WorkerGroup, WorkerLost, WorkersConfig
from esper.pool.worker import Call, Message, Reply, Worker

GRACE = 5.0
"""Time in which a worker must end when its socket closes [s]."""


@dataclass(kw_only=True, slots=True)
class ProcessesConfig(WorkersConfig):
    """Hosts are distributed over worker processes on this machine, which train them on their own `devices`.

    On a CPU, the shards of one process take turns where they run Python; those of several processes do not. A worker that is lost
    is replaced, and its hosts repeat the episode.
    """

    def start_workers(self) -> WorkerGroup:
        return ProcessWorkerGroup(self)


class WorkerTraceback(Exception):
    """Where a worker raised an error: the cause of that error in this process."""

    def __init__(self, text: str, places: list[tuple[str, int | None]]) -> None:
        """
        Args:
            text: the traceback.
            places: file and line of each of its calls, the last one last.
        """
        super().__init__(text)
        self.places = places

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class ProcessWorkerGroup(WorkerGroup):
    """Processes, one per worker."""

    def __init__(self, config: ProcessesConfig) -> None:
        WorkerGroup.__init__(self, config)
        try:
            self._processes = [_Process(config.cpus) for _ in range(config.workers)]
        except OSError as error:
            raise ClusterError(f"cluster.workers={config.workers} cannot start on this machine ({error}): lower it") from error

    def encode(self, call: Call) -> Message:
        """See `WorkerGroup.encode`."""
        return Message(call.method, cloudpickle.dumps(tuple(call)))

    def open(self, worker: int, key: int, parts: PoolParts, num_hosts: int) -> None:
        """See `WorkerGroup.open`."""
        self.receive(self._ask(worker, "open", key, parts, num_hosts))

    def send(self, worker: int, key: int, messages: Sequence[Message]) -> object:
        """See `WorkerGroup.send`."""
        return self._ask(worker, "run", key, messages)

    def _ask(self, worker: int, method: str, *args: Any) -> "_Process":
        """Send a worker a call of a method of `Worker`, and return its process as a ticket.

        If the answer to the last request is still due, since an interrupt came first, it is waited for and dropped: while the
        worker sends, it does not read.
        """
        process = self._processes[worker]
        if process.is_busy:
            self._answer(process)
        while process.unreleased:
            process.send(_request("close", process.unreleased.pop()))
            self._answer(process)
        process.send(_request(method, *args))
        return process

    def receive(self, ticket: "_Process") -> Reply:
        """See `WorkerGroup.receive`."""
        kind, content = self._answer(ticket)
        if kind == "error":
            error, *where = content
            raise error from WorkerTraceback(*where)
        return content

    def _answer(self, process: "_Process") -> tuple[str, Any]:
        """Wait for the answer to the last request: a result or an error. Notices and warnings are passed on."""
        while True:
            kind, content = process.receive()
            if kind == "notice":
                notice(*content)
            elif kind == "warning":
                warnings.warn(content, UserNotice, stacklevel=2)
            else:
                return kind, content

    def replace(self, worker: int) -> None:
        """See `WorkerGroup.replace`."""
        self._processes[worker].end()
        self._processes[worker] = _Process(self.config.cpus)
        self._born[worker] += 1

    def release(self, worker: int, key: int) -> None:
        """See `WorkerGroup.release`. A worker that is busy hears of it with its next request."""
        process = self._processes[worker]
        if process.is_busy:
            process.unreleased.append(key)
            return
        with suppress(WorkerLost):
            self._ask(worker, "close", key)

    def end(self) -> None:
        """See `WorkerGroup.end`."""
        for process in self._processes:
            process.hang_up()
        deadline = time.monotonic() + GRACE
        for process in self._processes:
            process.end(max(0.0, deadline - time.monotonic()))


class _Process:
    """A worker process and the socket to it."""

    def __init__(self, cores: int) -> None:
        here, there = socket.socketpair()
        with there:
            code = f"from esper.pool.process_cluster import serve; serve({there.fileno()}, {cores}, {current_turn()})"
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                pass_fds=[there.fileno()],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path if _is_text(path))},
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C ends this process, which ends the workers
            )
        self._pipe = Connection(here.detach())
        self.is_busy = False
        """Whether the answer to a request is due."""
        self.unreleased: list[int] = []
        """Keys of closed pools whose hosts it still holds."""

    def send(self, message: bytes) -> None:
        """Send a request."""
        try:
            self._pipe.send_bytes(message)
            self.is_busy = True
        except OSError as error:
            self._lost(error)
        except BaseException:  # an interrupt may have left half of a message
            self._popen.kill()
            raise

    def receive(self) -> tuple[str, Any]:
        """Wait for a message, and return its kind and content."""
        self._pipe.poll(None)  # an interrupt while it waits loses nothing
        try:
            kind, content = pickle.loads(self._pipe.recv_bytes())
            self.is_busy = kind in ("notice", "warning")
        except (EOFError, OSError) as error:
            self._lost(error)
        except BaseException:
            self._popen.kill()
            raise
        return kind, content

    def _lost(self, error: Exception) -> NoReturn:
        self.is_busy = False
        self._wait()
        code = self._popen.returncode
        names = {one.value: one.name for one in signal.Signals}
        how = f"signal {names.get(-code, -code)}" if code < 0 else f"exit code {code}"
        raise WorkerLost(f"its process ended with {how}") from error

    def hang_up(self) -> None:
        """Close the socket, upon which the process ends."""
        self.is_busy = False
        self._pipe.close()

    def end(self, grace: float = GRACE) -> None:
        """End the process, which may have ended; kill it after this time [s]."""
        self.hang_up()
        self._wait(grace)

    def _wait(self, grace: float = GRACE) -> None:
        try:
            self._popen.wait(grace)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()


def _request(method: str, *args: Any) -> bytes:
    return pickle.dumps((method, cloudpickle.dumps(args)))


def _is_text(path: object) -> bool:
    return isinstance(path, str)  # Python ignores other entries of sys.path


def serve(handle: int, cores: int, turn: int = 0) -> None:
    """Carry out the calls that arrive at a socket, until it closes.

    Args:
        handle: file descriptor of the socket.
        cores: cores of this worker.
        turn: see `take_turn`.
    """
    take_turn(turn)
    worker, pipe, lock = Worker(cores), Connection(handle), threading.Lock()

    def answer(kind: str, content: Any) -> None:
        message = cloudpickle.dumps((kind, content))
        with lock:
            pipe.send_bytes(message)

    def warned(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if issubclass(category, UserNotice):
            answer("warning", str(message))

    warnings.showwarning = warned
    listen(lambda step, progress: answer("notice", (step, progress)))
    with suppress(EOFError, OSError):  # the socket is closed
        while True:
            method, args = pickle.loads(pipe.recv_bytes())
            try:
                answer("result", getattr(worker, method)(*pickle.loads(args)))
            except Exception as error:
                places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
                answer("error", (_portable(error), "".join(traceback.format_exception(error)), places))


def _portable(error: Exception) -> Exception:
    """Return an error that can be sent to another process."""
    try:
        pickle.loads(cloudpickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
