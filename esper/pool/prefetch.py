"""Batches that a background thread reads ahead of their use, from memory or from memory-mapped files."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Generic, TypeVar
from weakref import WeakMethod

import torch

from esper.task.data import TaskError

Key = TypeVar("Key")
Batch = TypeVar("Batch")
AHEAD = 2
"""Batches that are read ahead. More: evens out slower reads, and takes more memory."""


class Prefetch(Generic[Key, Batch]):
    """Reads the batches of some keys in order, in a thread that starts at once and ends with `close`."""

    def __init__(self, read: Callable[[Key], Batch], keys: Sequence[Key]) -> None:
        self._read, self._left = read, iter(keys)
        self._coming: deque[tuple[Key, Future[list[Batch]]]] = deque()
        self._thread = ThreadPoolExecutor(1, "prefetch", torch.set_num_threads, (1,))
        self._submit(1 + AHEAD)

    def _submit(self, count: int) -> None:
        """Start to read the next batches."""
        self._coming += [(key, self._thread.submit(self._one, key)) for key in islice(self._left, count)]

    def _one(self, key: Key) -> list[Batch]:
        # A list, which `take` empties: pinned memory must not be freed in this thread while a CUDA graph is captured.
        return [self._read(key)]

    def take(self, key: Key) -> Batch:
        """Return the batch of a key, and drop those of earlier keys.

        Raises:
            TaskError: reading the batch failed twice.
        """
        while (first := self._coming.popleft())[0] is not key:
            self._submit(1)
            if first[1].exception() is None:
                first[1].result().pop()
        self._submit(1)
        coming = first[1]
        if coming.exception() is not None:
            coming = self._thread.submit(self._one, key)
        if (error := coming.exception()) is not None:
            raise TaskError(
                f"the data could not be read, even on a second attempt ({type(error).__name__}: {error}): check the disk and the "
                "memory of this machine, and continue with resume=FOLDER"
            ) from error
        return coming.result().pop()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)


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
