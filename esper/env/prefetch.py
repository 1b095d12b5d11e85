"""Batches that a background thread reads ahead of their use, from memory or from memory-mapped files."""

import queue
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import Generic, TypeVar
from weakref import WeakMethod

import torch

from esper.task.data import TaskError

Key = TypeVar("Key")
Batch = TypeVar("Batch")
AHEAD = 2
"""Batches that are read ahead. More: evens out slower reads, and takes more memory."""
PATIENCE = 0.05
"""Interval at which a waiting thread checks whether the other one has ended [s]."""


class Prefetch(Generic[Key, Batch]):
    """Reads the batches of some keys in order, in a thread that starts at once and ends with the last batch or with `close`.

    A thread that fails or dies is replaced once per batch.
    """

    def __init__(self, read: Callable[[Key], Batch], keys: Sequence[Key]) -> None:
        self._read, self._keys, self._place = read, keys, 0
        self._start(0)

    def _start(self, first: int) -> None:
        self._queue: queue.Queue[tuple[int, list[Batch]]] = queue.Queue(AHEAD)
        self._stopped, self._error = Event(), "its thread died"
        self._thread = Thread(target=self._work, args=(first, self._queue, self._stopped), name="prefetch", daemon=True)
        self._thread.start()

    def _work(self, first: int, batches: "queue.Queue[tuple[int, list[Batch]]]", stopped: Event) -> None:
        torch.set_num_threads(1)
        for place in range(first, len(self._keys)):
            try:
                # A list, which `take` empties: pinned memory must not be freed in this thread while a CUDA graph is captured.
                batch = [self._read(self._keys[place])]
            except Exception as error:
                self._error = f"{type(error).__name__}: {error}"
                return
            while not stopped.is_set():
                try:
                    batches.put((place, batch), timeout=PATIENCE)
                    break
                except queue.Full:
                    continue
            if stopped.is_set():
                return

    def take(self, key: Key) -> Batch:
        """Return the batch of a key, and drop those of earlier keys.

        Raises:
            TaskError: reading the batch failed twice in a row.
        """
        while self._keys[self._place] is not key:
            self._place += 1
        for attempt in range(2):
            while (found := self._next()) is not None:
                if found[0] == self._place:
                    self._place += 1
                    return found[1].pop()
            if not attempt:
                self._start(self._place)
        raise TaskError(
            f"the data could not be read, even on a second attempt ({self._error}): check the disk and the memory of this "
            "machine, and continue with resume="
        )

    def _next(self) -> tuple[int, list[Batch]] | None:
        """Return the next batch that the thread has read; None if it ended without one."""
        while True:
            alive = self._thread.is_alive()
            try:
                return self._queue.get(timeout=PATIENCE) if alive else self._queue.get_nowait()
            except queue.Empty:
                if not alive:
                    return None

    def close(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()


class Reader(Generic[Key, Batch]):
    """Reads batches where they are needed, or ahead of their use.

    Args:
        read: a bound method of an object that outlives the reader. It is held by a weak reference: the object owns its readers,
            and in a cycle its data, which may fill a GPU, would stay until garbage collection.
        ahead: if true, announced batches are read ahead.
    """

    def __init__(self, read: Callable[[Key], Batch], *, ahead: bool) -> None:
        self._method, self._ahead = WeakMethod(read), ahead
        self._prefetch: Prefetch[Key, Batch] | None = None

    def _read(self, key: Key) -> Batch:
        read = self._method()
        assert read is not None
        return read(key)

    @contextmanager
    def announced(self, keys: Sequence[Key]) -> Generator[None]:
        """Read the batches of these keys ahead, in this order; no others can be read within the context."""
        if not self._ahead:
            yield
            return
        self._prefetch = Prefetch(self._read, keys)
        try:
            yield
        finally:
            self._prefetch.close()
            self._prefetch = None

    def read(self, key: Key) -> Batch:
        """Return the batch of a key."""
        return self._read(key) if self._prefetch is None else self._prefetch.take(key)
