"""A lane: where the work of a shard is issued on its device.

On a GPU each shard has a stream of its own, so that shards of one device overlap, and CUDA graphs can be captured on it. Work on
a lane waits for what is already queued on the caller's stream, and the caller's stream then waits for that work. On a CPU, a lane
does nothing.
"""

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import wraps
from threading import Lock
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import torch

_capturing = Lock()
"""Held while a lane captures: torch allows one capture at a time in a process, and shards run in threads. It also asks that no
thread launches other work meanwhile; that is not ensured here, and the other shards' steps go on beside a capture."""


class HasLane(Protocol):
    """An object whose methods are issued on its lane."""

    lane: "Lane"


Owner = TypeVar("Owner", bound=HasLane)
Given = ParamSpec("Given")
Result = TypeVar("Result")


class Lane:
    """The stream of a shard, and the memory of its CUDA graphs, which outlive the hosts of an episode."""

    def __init__(self, device: torch.device, *, graphs: bool = True) -> None:
        """Create a stream on a GPU; `graphs` says whether the lane captures CUDA graphs there."""
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.graphs = graphs and self._stream is not None
        self._graph: Any = None

    def disable_graphs(self) -> None:
        """Capture no more graphs, and free the memory of the last one, which nobody replays."""
        self.graphs, self._graph = False, None

    @contextmanager
    def issued(self) -> Generator[None]:
        """Issue the work within the context on the lane."""
        current = None if self._stream is None else torch.cuda.current_stream(self._stream.device)
        if self._stream is None or current is None or current == self._stream:
            yield
            return
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            current.wait_stream(self._stream)

    def captured(self, work: Callable[[], object]) -> Callable[[], None]:
        """Capture the kernels that `work` launches, and return a function that replays them. `work` must not synchronise.

        Lanes capture one after another. Replayed kernels read and write the tensors that `work` used. Do not replay the lane's
        previous graph afterwards.

        Raises:
            RuntimeError: the work cannot be captured; none of it was done.
        """
        graph = torch.cuda.CUDAGraph()
        with _capturing, _uncollected():
            # Graphs of a lane share their memory, which lives as long as one of them: so the last one is kept until now.
            graph.capture_begin(self._graph.pool() if self._graph else None, capture_error_mode="thread_local")
            try:
                work()
            except BaseException:
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
        self._graph = graph
        return graph.replay


@contextmanager
def _uncollected() -> Generator[None]:
    """Keep Python from collecting garbage: in a capture, it could free a graph or pinned memory, which must not happen there."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def on_lane(method: Callable[Concatenate[Owner, Given], Result]) -> Callable[Concatenate[Owner, Given], Result]:
    """Issue the work of a method on the lane of its object."""

    @wraps(method)
    def issued(self: Owner, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        with self.lane.issued():
            return method(self, *args, **kwargs)

    return issued
