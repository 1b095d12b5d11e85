"""A lane: where the work of a shard is issued on its device.

On a GPU each shard has a stream of its own, so that shards of one device overlap, and CUDA graphs can be captured on it. Work on
a lane waits for what is already queued on the caller's stream, and the caller's stream then waits for that work. On a CPU, a lane
does nothing.

While one lane of a device captures, the others pause between two batches: during a capture, torch gives no cached memory back to
the device, so that another thread could run out of it, and a compiler that waits for the whole device would break the capture.
"""

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import wraps
from threading import Condition, Lock
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import torch

_capturing = Lock()
"""Held while a lane captures, or frees a graph: torch allows one of these at a time in a process, and shards run in threads."""


class HasLane(Protocol):
    """An object whose methods are issued on its lane."""

    lane: "Lane"


Owner = TypeVar("Owner", bound=HasLane)
Given = ParamSpec("Given")
Result = TypeVar("Result")


class Turns:
    """Who issues work on a device: any number of lanes, or one that captures."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._issuing = set[Any]()
        self._captures = 0  # those that wait included

    def enter(self, lane: object) -> None:
        """Begin to issue work, once no lane captures or waits for its capture."""
        with self._changed:
            self._changed.wait_for(lambda: not self._captures)
            self._issuing.add(lane)

    def leave(self, lane: object) -> None:
        """Stop issuing work."""
        with self._changed:
            self._issuing.discard(lane)
            self._changed.notify_all()

    def give_way(self, lane: object) -> None:
        """Let waiting captures go first."""
        if self._captures:
            self.leave(lane)
            self.enter(lane)

    @contextmanager
    def alone(self, lane: object) -> Generator[None]:
        """Wait until no other lane issues work, and keep it so within the context."""
        issuing = lane in self._issuing
        with self._changed:
            self._captures += 1
            self._issuing.discard(lane)
            self._changed.notify_all()
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._issuing)
            with _capturing:
                yield
        finally:
            with self._changed:
                self._captures -= 1
                self._changed.notify_all()
            if issuing:
                self.enter(lane)


_turns: dict[torch.device, Turns] = {}
"""The turns of the lanes of each device."""


class Lane:
    """The stream of a shard, and the memory of its CUDA graphs, which outlive the hosts of an episode."""

    def __init__(self, device: torch.device, *, graphs: bool = True) -> None:
        """Create a stream on a GPU; `graphs` says whether the lane captures CUDA graphs there."""
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._turns = _turns.setdefault(device if self._stream is None else self._stream.device, Turns())
        self._memory: Any = None if self._stream is None else torch.cuda.graph_pool_handle()
        self.graphs = graphs and self._stream is not None
        self._graph: Any = None

    def disable_graphs(self) -> None:
        """Capture no more graphs, and free the memory of the last one, which nobody replays."""
        with _capturing:
            self.graphs, self._graph = False, None

    def give_way(self) -> None:
        """Pause while other lanes of the device capture. Call it between two batches."""
        if self._stream is not None:
            self._turns.give_way(self)

    @contextmanager
    def issued(self) -> Generator[None]:
        """Issue the work within the context on the lane."""
        current = None if self._stream is None else torch.cuda.current_stream(self._stream.device)
        if self._stream is None or current is None or current == self._stream:
            yield
            return
        self._turns.enter(self)
        try:
            self._stream.wait_stream(current)
            try:
                with torch.cuda.stream(self._stream):
                    yield
            finally:
                current.wait_stream(self._stream)
        finally:
            self._turns.leave(self)

    def captured(self, work: Callable[[], object]) -> Callable[[], None]:
        """Capture the kernels that `work` launches, and return a function that replays them. `work` must not synchronise.

        Lanes capture one after another, and the others of the device wait. Replayed kernels read and write the tensors that
        `work` used. Do not replay the lane's previous graph afterwards.

        Raises:
            RuntimeError: the work cannot be captured; none of it was done.
        """
        graph = torch.cuda.CUDAGraph()
        with self._turns.alone(self), _uncollected():
            # Graphs of a lane share their memory, which lives as long as one of them: so the last one is kept until now.
            graph.capture_begin(self._memory, capture_error_mode="thread_local")
            try:
                work()
                graph.capture_end()
            except BaseException:
                self._graph = graph  # torch's allocator may still ask it whether it captures
                self._end(graph)
                raise
            self._graph = graph
        return graph.replay

    def _end(self, graph: Any) -> None:
        """End a capture that failed. In torch 2.11, `capture_end` leaves the allocator as if the capture went on, so that cached
        memory would never be given back."""
        with suppress(RuntimeError):
            graph.capture_end()
        if self._stream is not None:
            with suppress(RuntimeError):  # where torch has ended it
                torch._C._cuda_endAllocateToPool(self._stream.device.index, self._memory)  # pyright: ignore[reportPrivateUsage]


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
