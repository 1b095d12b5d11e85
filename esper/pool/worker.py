"""A worker trains some of the hosts in a process of its own, and carries out the calls that it receives."""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import nn

from esper.pool.base import PoolParts
from esper.pool.host_sampler import HostSampler
from esper.pool.local import ShardPool, limit_cores


class Call(NamedTuple):
    """A call of a method of `HostPool`."""

    method: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}


class Message(NamedTuple):
    """A pickled `Call`."""

    method: str
    body: bytes


class Reply(NamedTuple):
    """What the last of several messages returned."""

    result: Any
    seconds: dict[str, float]
    """Wall time of all of them by phase [s]."""


class Worker:
    """Holds a part of the hosts of every pool of the process that controls it.

    Its state is determined by its calls: hosts, samples and seeds are made from the names of their random streams. Another worker
    that receives the same calls has the same hosts.
    """

    def __init__(self, cores: int | None = None) -> None:
        limit_cores(cores)
        self._pools: dict[int, ShardPool] = {}

    def open(self, key: int, parts: PoolParts, num_hosts: int) -> None:
        """Create a pool of `num_hosts` hosts, in place of any earlier pool with this key.

        Args:
            key: number of the pool.
        """
        self.close(key)
        self._pools[key] = ShardPool(replace(parts, num_hosts=num_hosts))

    def run(self, key: int, messages: Sequence[Message]) -> Reply:
        """Carry out calls of a pool, one after the other, and return the result of the last."""
        result, pool = None, self._pools[key]
        for message in messages:
            method, args, kwargs = pickle.loads(message.body)
            result = _start(pool, *args) if method == "start" else getattr(pool, method)(*args, **kwargs)
        return Reply(result, pool.times.take())

    def close(self, key: int) -> None:
        """Release the hosts of a pool, if there are any."""
        if key in self._pools:
            self._pools.pop(key).close()


def named(sampler: HostSampler) -> dict[str, Any]:
    """Return the fields of a sampler that name its hosts: all but the task."""
    return {name: getattr(sampler, name) for name in HostSampler.__dataclass_fields__ if name != "task"}


def _start(pool: ShardPool, names: Mapping[str, Any], hosts: Sequence[nn.Module] | None) -> None:
    """Start hosts by name, as newborn networks unless they are given."""
    sampler = HostSampler(task=pool.task, **names)
    pool.start(sampler, sampler.views(), hosts)
