"""Where the hosts of an environment train: in this process, or in workers on one machine or many."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from esper.measure.costs import Meter
from esper.options import Option
from esper.pool.base import HostPool, PoolParts
from esper.pool.devices import DeviceConfig
from esper.pool.local import ShardPool


class ClusterError(RuntimeError):
    """Workers cannot be started, or were lost more often than they are replaced. The message is one sentence for the user."""


@dataclass(kw_only=True, slots=True)
class ClusterConfig(Option):
    """Base of cluster configs."""

    is_remote: ClassVar[bool] = False
    """True if hosts train in other processes, whose devices are not checked by this one."""

    @property
    def num_workers(self) -> int:
        """Processes to which hosts are dealt."""
        return 1

    @property
    def processes(self) -> int:
        """Further processes on this machine that hold data and hosts."""
        return 0

    def check_run(self, *, hosts: int, devices: Mapping[str, DeviceConfig]) -> None:
        """Raise ValueError if hosts cannot be dealt to workers and devices."""
        places = self.num_workers * len(devices)
        if hosts < places:
            each = f"{self.num_workers} workers with {len(devices)}" if self.num_workers > 1 else f"{len(devices)}"
            remedies = [f"raise hosts to at least {places}"]
            remedies += ["lower cluster.workers"] * (self.num_workers > 1) + ["name fewer devices"] * (len(devices) > 1)
            raise ValueError(
                f"hosts={hosts} cannot be distributed over {each} device{'s' * (len(devices) > 1)} "
                f"({', '.join(devices)}): {', or '.join(remedies)}"
            )
        for name in (name for name, device in devices.items() if device.tune and self.is_remote):
            raise ValueError(
                f"devices.{name}.tune=true times shards in this process, but with a cluster the workers train the hosts: set "
                f"devices.{name}.members_per_shard, or leave out cluster"
            )

    def ready(self) -> None:
        """Raise ClusterError if a library is missing."""

    def build(self, parts: PoolParts, meter: Meter | None = None) -> HostPool:
        """Return a pool of hosts.

        Raises:
            ClusterError: workers cannot be started.
        """
        raise TypeError(f"{type(self).__name__} does not define build(parts, meter)")


@dataclass(kw_only=True, slots=True)
class LocalConfig(ClusterConfig):
    """All hosts train in the process of the run."""

    def build(self, parts: PoolParts, meter: Meter | None = None) -> HostPool:
        return ShardPool(parts, meter)
