"""All hosts of an environment, distributed over worker processes; a lost worker is replaced, and its hosts repeat the episode.

Each step sends one message per worker: calls without a result wait for the next call that has a result. A lost worker is restored
by replaying the log of the episode's calls, which determine its state.
"""

# N hosts, S slots, V variants

import itertools
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from esper.growth.grown import GrownNetwork, KeptSeed
from esper.lifecycle.roles import Blend, Roles
from esper.measure.costs import Meter, Price
from esper.measure.counterfactuals import Measurement
from esper.notices import UserNotice
from esper.pool.base import Epoch, HostPool, PoolParts, joined
from esper.pool.cluster import ClusterConfig, ClusterError
from esper.pool.host_sampler import HostSampler
from esper.pool.worker import Call, Message, Reply, named
from esper.ranges import check_ranges
from esper.task.instances import DataView
from esper.text import counted

READING = ("latency", "grown", "machines")
"""Read-only methods, which need not be replayed. `validate` is not among them: what was measured before decides which members are
measured together, and with that the rounding."""


class WorkerLost(Exception):
    """A worker, or the machine that it was on, is gone."""


class WorkerGroup:
    """Base of the workers of this process, which all pools with the same config share."""

    def __init__(self, config: "WorkersConfig") -> None:
        self.config, self.size = config, config.workers
        self._process = os.getpid()
        self._keys, self._open, self._born = itertools.count(), set[int](), [0] * config.workers
        self._abandoned: list[int] = []
        self.lock = threading.RLock()
        """Held while a pool sends messages and waits for the replies: pools may be used in several threads."""

    def join(self) -> int:
        """Return the key of a new pool, and release the hosts of pools that were abandoned."""
        self._open.add(key := next(self._keys))
        if self._abandoned:
            self.close(self._abandoned[0])
        return key

    @property
    def is_inherited(self) -> bool:
        """Whether the workers belong to the process from which this one was forked."""
        return self._process != os.getpid()

    def abandon(self, key: int) -> None:
        """Note that a pool was collected as garbage, at any time and in any thread."""
        self._abandoned.append(key)

    def encode(self, call: Call) -> Message:
        """Return a call as a message, which later changes of its arguments do not affect."""
        raise NotImplementedError

    def born(self, worker: int) -> int:
        """Return how many times this worker has been replaced."""
        return self._born[worker]

    def open(self, worker: int, key: int, parts: PoolParts, num_hosts: int) -> None:
        """Send `Worker.open` to a worker. A worker carries out messages in the order sent."""
        raise NotImplementedError

    def send(self, worker: int, key: int, messages: Sequence[Message]) -> object:
        """Send `Worker.run` to a worker, and return a ticket for its reply."""
        raise NotImplementedError

    def receive(self, ticket: Any) -> Reply:
        """Wait for a reply.

        Raises:
            WorkerLost: there will be none.
            Exception: what a call has raised.
        """
        raise NotImplementedError

    def replace(self, worker: int) -> None:
        """Start another worker in the place of this one."""
        raise NotImplementedError

    def close(self, key: int) -> None:
        """Release the hosts of a pool, and of abandoned ones, in every worker; after the last pool, end all workers."""
        with _building, self.lock:
            abandoned, self._abandoned = self._abandoned, []
            left = {key, *abandoned} & self._open
            self._open -= left
            if self._open:
                for one, worker in itertools.product(sorted(left), range(self.size)):
                    self.release(worker, one)
            elif left:
                if _groups.get(self.config.group_key()) is self:
                    del _groups[self.config.group_key()]
                self.end()

    def release(self, worker: int, key: int) -> None:
        """Send `Worker.close` to a worker, which may be lost."""
        raise NotImplementedError

    def end(self) -> None:
        """End all workers."""
        raise NotImplementedError


_groups: dict[tuple[object, ...], WorkerGroup] = {}
"""The workers of this process, by `group_key`."""
_building = threading.RLock()
if hasattr(os, "register_at_fork"):  # the workers belong to the first process
    os.register_at_fork(before=_building.acquire, after_in_parent=_building.release, after_in_child=_building.release)
    os.register_at_fork(after_in_child=_groups.clear)


@dataclass(kw_only=True, slots=True)
class WorkersConfig(ClusterConfig):
    """Base of configs that distribute hosts over workers."""

    is_remote: ClassVar[bool] = True

    workers: int = 2
    """Number of workers, at least 1; each trains about an equal share of the hosts. Higher: faster with as many cores or GPUs."""
    cpus: int = 1
    """Cores of each worker, at least 1."""
    replacements: int = 3
    """Maximum number of lost workers replaced within one episode, at least 0; the next loss ends the command."""

    def __post_init__(self) -> None:
        check_ranges("cluster", self, {"[1, inf]": ["workers", "cpus"], "[0, inf]": ["replacements"]})

    @property
    def num_workers(self) -> int:
        return self.workers

    @property
    def processes(self) -> int:
        return self.workers

    def build(self, parts: PoolParts, meter: Meter | None = None) -> HostPool:
        self.ready()
        with _building:
            group = _groups.get(self.group_key()) or self.start_workers()
            _groups[self.group_key()] = group
            with group.lock:
                return RemotePool(parts, meter, group, key=group.join(), replacements=self.replacements)

    def start_workers(self) -> WorkerGroup:
        """Start the workers.

        Raises:
            ClusterError: they do not start.
        """
        raise NotImplementedError

    def group_key(self) -> tuple[object, ...]:
        """Return the settings that must be equal for two pools to share workers."""
        return type(self), self.workers, self.cpus


class RemotePool(HostPool):
    """N hosts, distributed over the workers in consecutive blocks."""

    def __init__(self, parts: PoolParts, meter: Meter | None, group: WorkerGroup, *, key: int, replacements: int) -> None:
        """
        Args:
            group: the workers.
            key: number of this pool, which no other pool of the group has.
            replacements: how many times workers are replaced within one episode.
        """
        HostPool.__init__(self, parts, meter)
        self._group, self._key, self._replacements, self._left = group, key, replacements, replacements
        hosts, size = parts.num_hosts, group.size
        self.places = [slice(hosts * rank // size, hosts * (rank + 1) // size) for rank in range(size)]
        self._log, self._waiting = ([list[Message]() for _ in range(size)] for _ in range(2))
        self._born = [-1] * size
        self._uncollected = weakref.finalize(self, group.abandon, key)
        self._uncollected.atexit = False

    # ---- messages

    def _ask(self, of: Callable[[slice], Call]) -> list[Any]:
        """Send every worker the call for its rows of the hosts, and return the results."""
        self._check()
        with self.times.waiting(), self._group.lock:
            tickets = [self._send(worker, self._group.encode(of(rows))) for worker, rows in enumerate(self.places)]
            return [self._receive(worker, ticket) for worker, ticket in enumerate(tickets)]

    def _ask_one(self, worker: int, method: str, *args: Any) -> Any:
        """Send one worker a call, and return the result."""
        self._check()
        with self.times.waiting(), self._group.lock:
            return self._receive(worker, self._send(worker, self._group.encode(Call(method, args))))

    def _check(self) -> None:
        """Raise RuntimeError if there are no workers. In a forked process another thread may have held the lock for ever."""
        if self._group.is_inherited:
            raise RuntimeError("this environment belongs to the process that built it: build another here")
        if not self._uncollected.alive:
            raise RuntimeError("this environment is closed: build another")

    def _tell(self, of: Callable[[slice], Call]) -> None:
        """Queue a call without a result for every worker, to be sent with its next message."""
        for worker, rows in enumerate(self.places):
            self._waiting[worker].append(self._group.encode(of(rows)))

    def _send(self, worker: int, last: Message) -> object:
        """Send a worker its queued calls and one more; a new worker first gets all calls since the start of the episode.

        Returns:
            A ticket for the reply, or `WorkerLost`.
        """
        messages = [*self._waiting[worker], last]
        self._log[worker] += messages
        self._waiting[worker].clear()
        try:
            if self._born[worker] != (born := self._group.born(worker)):
                messages, rows = self._log[worker], self.places[worker]
                self._group.open(worker, self._key, self.parts, rows.stop - rows.start)
                self._born[worker] = born
            return self._group.send(worker, self._key, [*messages])
        except WorkerLost as lost:
            return lost

    def _receive(self, worker: int, ticket: object) -> Any:
        """Return the result of the last message; if the worker is lost, replace it and repeat its hosts first.

        Raises:
            ClusterError: the worker is lost, and is not replaced any more.
        """
        log = self._log[worker]
        while True:
            try:
                if isinstance(ticket, WorkerLost):
                    raise ticket
                reply = self._group.receive(ticket)
                break
            except WorkerLost as lost:
                self._replace(worker, lost)
                ticket = self._send(worker, log.pop())
            except Exception:
                self._forget(log)
                raise
        self._forget(log)
        for phase, seconds in reply.seconds.items():
            self.times.add(phase, seconds)
        return reply.result

    @staticmethod
    def _forget(log: list[Message]) -> None:
        """Remove the last message if it only reads: nobody need repeat it."""
        if log[-1].method in READING:
            log.pop()

    def _replace(self, worker: int, lost: WorkerLost) -> None:
        """Replace a lost worker, and say so."""
        rows = self.places[worker]
        which = f"worker {worker} of {self._group.size} was lost ({' '.join(str(lost).split())})"
        if self._left == 0:
            raise ClusterError(
                f"{which}, and the {self._replacements} replacements of an episode are used up: find the cause, or "
                "raise cluster.replacements; what was saved before is intact"
            )
        self._left -= 1
        epochs = sum(message.method == "epoch" for message in self._log[worker])
        one = rows.stop - rows.start == 1
        hosts = f"host {rows.start} repeats" if one else f"hosts {rows.start} to {rows.stop - 1} repeat"
        again = f"{hosts} {counted(epochs, 'epoch')} of this episode"
        number = self._replacements - self._left  # tells one warning from the next
        warnings.warn(f"{which}: {again}; no other host is affected (replacement {number})", UserNotice, stacklevel=2)
        self._group.replace(worker)

    def _of(self, host: int) -> tuple[int, int]:
        """Return the worker of a host, and its index there."""
        for worker, rows in enumerate(self.places):
            if rows.start <= host < rows.stop:
                return worker, host - rows.start
        raise IndexError(f"there is no host {host}")

    # ---- the interface of HostPool

    def start(self, sampler: HostSampler, views: Sequence[DataView], hosts: Sequence[nn.Module] | None = None) -> None:
        """See `HostPool.start`. The workers make the newborn networks and all views themselves, from their names."""
        HostPool.start(self, sampler, views, hosts)
        self._samples, self._left = sampler.samples_per_epoch, self._replacements
        for messages in (*self._log, *self._waiting):
            messages.clear()
        self._tell(lambda rows: Call("start", (named(sampler.of(rows)), None if hosts is None else hosts[rows])))

    def epoch(
        self,
        time: int,
        alpha_VNS: npt.NDArray[np.float32],
        *,
        probe: bool = True,
        retired_N: npt.NDArray[np.bool_] | None = None,
    ) -> Epoch:
        """See `HostPool.epoch`."""
        retired_N = np.zeros(alpha_VNS.shape[1], np.bool_) if retired_N is None else retired_N
        parts: list[Epoch] = self._ask(
            lambda rows: Call("epoch", (time, alpha_VNS[:, rows]), {"probe": probe, "retired_N": retired_N[rows]})
        )
        self._count(alpha_VNS, trained=self._samples, trained_N=~retired_N)
        return Epoch(
            joined([part.report for part in parts], 0),
            joined([part.measured for part in parts], -1),
            np.concatenate([part.potential_NSK for part in parts]),
        )

    def validate(
        self, alpha_VNS: npt.NDArray[np.float32], *, test: bool = False, wanted_N: npt.NDArray[np.bool_] | None = None
    ) -> Measurement:
        """See `HostPool.validate`."""
        if not test:
            self._count(alpha_VNS, wanted_N=wanted_N)
        return joined(self._ask(lambda rows: Call("validate", (alpha_VNS[:, rows],), {"test": test})), -1)

    def potential(self, time: int) -> npt.NDArray[np.float32]:
        """See `HostPool.potential`."""
        return np.concatenate(self._ask(lambda _: Call("potential", (time,))))

    def capture(self, time: int) -> None:
        """See `HostPool.capture`."""
        self._tell(lambda _: Call("capture", (time,)))

    def latency(self, host: nn.Module, used_S: npt.NDArray[np.bool_], samples: Tensor) -> Price:
        """See `HostPool.latency`; the first worker measures."""
        return self._ask_one(0, "latency", host, used_S, samples)

    def arrange(self, roles: Roles) -> None:
        """See `HostPool.arrange`."""
        self._roles = roles
        self._tell(lambda rows: Call("arrange", (roles.of(rows),)))

    def plant(self, host: int, slot: int, blueprint: int, stream: tuple[int | str, ...], blend: Blend = Blend.ADD) -> None:
        """See `HostPool.plant`."""
        worker, member = self._of(host)
        self._waiting[worker].append(self._group.encode(Call("plant", (member, slot, blueprint, stream, blend))))

    def clear(self, host: int, slot: int, blueprint: int) -> None:
        """See `HostPool.clear`."""
        worker, member = self._of(host)
        self._waiting[worker].append(self._group.encode(Call("clear", (member, slot, blueprint))))

    def save_snapshots(self, healthy_N: npt.NDArray[np.bool_]) -> None:
        """See `HostPool.save_snapshots`."""
        self._tell(lambda rows: Call("save_snapshots", (healthy_N[rows],)))

    def restore(self, failed_N: npt.NDArray[np.bool_]) -> None:
        """See `HostPool.restore`."""
        self._tell(lambda rows: Call("restore", (failed_N[rows],)))

    def grown(self, host: int, seeds: Sequence[KeptSeed]) -> GrownNetwork:
        """See `HostPool.grown`."""
        worker, member = self._of(host)
        return self._ask_one(worker, "grown", member, seeds)

    def machines(self) -> dict[str, str]:
        """See `HostPool.machines`."""
        found: dict[str, list[str]] = {}
        for one in self._ask(lambda _: Call("machines")):
            for name, text in one.items():
                found.setdefault(name, []).append(text)
        return {
            name: ", ".join(f"{texts.count(text)} x {text}" for text in dict.fromkeys(texts)) for name, texts in found.items()
        }

    def close(self) -> None:
        """See `HostPool.close`."""
        if self._uncollected.alive and not self._group.is_inherited:
            self._group.close(self._key)
        self._uncollected.detach()
