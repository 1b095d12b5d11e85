"""Workers as actors of Ray, on this machine or a cluster."""

import logging
import os
import socket
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from esper.notices import UserNotice
from esper.pool.base import PoolParts
from esper.pool.cluster import ClusterError
from esper.pool.remote import WorkerGroup, WorkerLost, WorkersConfig
from esper.pool.worker import Call, Message, Reply, Worker
from esper.ranges import check_ranges

PATIENCE = 30.0
"""Time after which the user is told that a worker has not started [s]."""


@dataclass(kw_only=True, slots=True)
class RayClusterConfig(WorkersConfig):
    """Hosts are distributed over workers, which are processes of a Ray cluster and train them on their own `devices`; needs the
    extra ray.

    One policy learns from all of them. A worker that is lost is replaced, and its hosts repeat the episode.
    """

    gpus: float = 0.0
    """GPUs of each worker, at least 0; 0.5 lets two workers share one. With devices=auto a worker uses its first GPU, with
    devices=[cuda:0,cuda:1] two."""
    address: str | None = None
    """Address of the cluster, as in ray.init, such as auto; null starts one on this machine, which ends with the command."""

    def __post_init__(self) -> None:
        WorkersConfig.__post_init__(self)
        check_ranges("cluster", self, {"[0, inf]": ["gpus"]})

    @property
    def processes(self) -> int:
        return self.workers if self.address is None else 0

    def ready(self) -> None:
        if find_spec("ray") is None:
            raise ClusterError(
                "cluster=ray needs Ray: install the extra ray, as in pip install -c constraints.txt -e '.[ray]', or leave out "
                "cluster=ray"
            )

    def start_workers(self) -> WorkerGroup:
        return RayWorkerGroup(self)

    def group_key(self) -> tuple[object, ...]:
        return *WorkersConfig.group_key(self), self.gpus, self.address


def _knock(address: str | None) -> None:
    """Raise OSError if nothing listens at an address like 10.0.0.1:6379; Ray would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()


def start_ray(address: str | None, *, key: str, cpus: int = 0) -> bool:
    """Start Ray, or connect to a cluster, unless this process has done so.

    Args:
        address: address of a cluster; None starts one on this machine.
        key: key of the address, for the message of an error.
        cpus: CPUs that a cluster on this machine has at least, even if there are fewer cores.

    Returns:
        Whether this call has started it.

    Raises:
        ClusterError: Ray does not start, or no cluster answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # do not send usage statistics without consent
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)  # else each start warns of the default
    import ray as library  # late: it takes a second

    ray: Any = library  # its stubs do not type actors
    if ray.is_initialized():
        return False
    room = {"num_cpus": max(cpus, os.cpu_count() or 1)} if address is None else {}
    try:
        _knock(address)
        ray.init(address, include_dashboard=False, logging_level=logging.WARNING, **room)
    except Exception as error:  # ConnectionError, ValueError and others
        told = " ".join(str(error).split())
        if address is None:
            raise ClusterError(f"Ray cannot start on this machine: {told}") from error
        raise ClusterError(
            f"no cluster answers at {key}={address} ({told}): start one with ray start --head, or leave {key} out for one "
            "on this machine"
        ) from error
    return True


class RayWorkerGroup(WorkerGroup):
    """Actors, one per worker."""

    config: RayClusterConfig

    def __init__(self, config: RayClusterConfig) -> None:
        """Start Ray if it does not run, and the workers.

        Raises:
            ClusterError: Ray does not start, or this machine has too few GPUs.
        """
        # A cluster of this machine counts as many cores as the workers ask for: two workers may share a core.
        self._owns = start_ray(config.address, key="cluster.address", cpus=config.workers * config.cpus)
        import ray as library

        ray: Any = library
        WorkerGroup.__init__(self, config)
        self._ray, self._parts = ray, dict[int, Any]()
        there = ray.cluster_resources().get("GPU", 0.0)
        if config.address is None and self._owns and config.workers * config.gpus > there:
            ray.shutdown()
            raise ClusterError(
                f"cluster.workers={config.workers} with cluster.gpus={config.gpus:g} need more than the {there:g} GPUs of this "
                "machine: lower one of them, or name a cluster by cluster.address"
            )
        if there and not config.gpus:
            unused = f"cluster.gpus=0: the workers use none of the {there:g} GPUs of the cluster"
            warnings.warn(f"{unused}; set cluster.gpus to use them", UserNotice, stacklevel=2)
        kind = ray.remote(num_cpus=config.cpus, num_gpus=config.gpus, max_restarts=0, max_task_retries=0)(Worker)
        self._actor = lambda: kind.remote(config.cpus)
        self._actors: list[Any] = [self._actor() for _ in range(self.size)]

    def encode(self, call: Call) -> Message:
        """See `WorkerGroup.encode`."""
        return Message(call.method, self._ray.cloudpickle.dumps(tuple(call)))

    def open(self, worker: int, key: int, parts: PoolParts, num_hosts: int) -> None:
        """See `WorkerGroup.open`. The parts go to the object store once, for all workers."""
        if key not in self._parts:
            self._parts[key] = self._ray.put(parts)
        opened = self._actors[worker].open.remote(key, self._parts[key], num_hosts)
        done, _ = self._ray.wait([opened], timeout=PATIENCE)
        if not done:
            config = self.config
            warnings.warn(
                f"worker {worker} of {self.size} has not started after {PATIENCE:.0f} s, and the run waits: run "
                f"ray status to see whether the cluster lacks its {config.cpus} CPUs and {config.gpus:g} GPUs "
                f"(cluster.cpus, cluster.gpus)",
                UserNotice,
                stacklevel=2,
            )
        self.receive(opened)

    def send(self, worker: int, key: int, messages: Sequence[Message]) -> object:
        """See `WorkerGroup.send`."""
        return self._actors[worker].run.remote(key, messages)

    def receive(self, ticket: Any) -> Reply:
        """See `WorkerGroup.receive`."""
        from ray.exceptions import RayError, RayTaskError

        try:
            return self._ray.get(ticket)
        except RayTaskError as error:
            raise error.cause from error  # as if it had happened in this process
        except RayError as error:
            raise WorkerLost(f"{type(error).__name__}: {str(error).splitlines()[0]}") from error

    def replace(self, worker: int) -> None:
        """See `WorkerGroup.replace`."""
        self._ray.kill(self._actors[worker])
        self._actors[worker] = self._actor()
        self._born[worker] += 1

    def release(self, worker: int, key: int) -> None:
        """See `WorkerGroup.release`."""
        self._parts.pop(key, None)
        self._actors[worker].close.remote(key)

    def end(self) -> None:
        """See `WorkerGroup.end`. Ray ends, too, if this group started it."""
        self._parts.clear()
        for actor in self._actors:
            self._ray.kill(actor)
        if self._owns:
            self._ray.shutdown()
