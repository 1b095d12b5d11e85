"""The interface of a pool of hosts: N hosts that train and are measured together, wherever they are."""

# N hosts, S slots, V variants, K blueprints

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from esper.growth.grown import GrownNetwork, KeptSeed
from esper.lifecycle import operations
from esper.lifecycle.roles import Blend, Incubation, Roles
from esper.lifecycle.slots import SlotsConfig
from esper.lifecycle.stages import empty
from esper.measure.costs import Meter, Price
from esper.measure.counterfactuals import Measurement
from esper.optimisers.base import OptimiserConfig
from esper.phases import PhaseTimes
from esper.pool.devices import DeviceConfig
from esper.pool.host_sampler import HostSampler
from esper.pool.shard import TrainReport
from esper.seeds.blueprints.base import BlueprintConfig
from esper.task.base import Task
from esper.task.instances import DataView

Report = TypeVar("Report", TrainReport, Measurement)


class Epoch(NamedTuple):
    """The results of one epoch of all hosts."""

    report: TrainReport
    measured: Measurement
    potential_NSK: npt.NDArray[np.float32]
    """Growth potential of each slot and blueprint [nats per unit of learning rate]; see `measure.potential`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolParts:
    """The arguments of a pool: plain data that can be pickled for another process."""

    task: Task
    blueprints: tuple[BlueprintConfig, ...]
    devices: Mapping[str, DeviceConfig]
    num_hosts: int
    optimiser: OptimiserConfig
    incubation: Incubation = Incubation.straight_through
    frozen: bool = False
    """If true, only seeds learn."""


class HostPool(ABC):
    """N hosts of an environment. Every call takes and returns arrays over all hosts, in order.

    Call `start` first. A `time` is a host epoch of the episode; with the sampler, it determines the samples of each host.
    """

    def __init__(self, parts: PoolParts, meter: Meter | None = None) -> None:
        """
        Args:
            meter: counts the FLOPs of training and measuring, if given.
        """
        self.parts, self.meter, self.times = parts, meter, PhaseTimes()

    def start(self, sampler: HostSampler, views: Sequence[DataView], hosts: Sequence[nn.Module] | None = None) -> None:
        """Replace all hosts by the N hosts of a sampler.

        Args:
            views: their instances' views of the data, as the sampler returns them.
            hosts: their networks; None for the newborn networks of the sampler.
        """
        if self.meter:
            self.meter.start(sampler.num_hosts)
        self._roles: Roles | None = None

    # ---- training and measuring

    @abstractmethod
    def epoch(
        self,
        time: int,
        alpha_VNS: npt.NDArray[np.float32],
        *,
        probe: bool = True,
        retired_N: npt.NDArray[np.bool_] | None = None,
    ) -> Epoch:
        """Train every host for an epoch and validate it; see `Shard.train_epoch` and `Shard.validate`.

        Args:
            probe: measure growth potential on the last batch of training; without it the potential is NaN.
            retired_N: hosts that stay at their snapshot.
        """

    @abstractmethod
    def validate(
        self, alpha_VNS: npt.NDArray[np.float32], *, test: bool = False, wanted_N: npt.NDArray[np.bool_] | None = None
    ) -> Measurement:
        """Measure all hosts; see `Shard.validate`.

        Args:
            wanted_N: hosts whose results are used, for which FLOPs are counted; None for all.
        """

    @abstractmethod
    def potential(self, time: int) -> npt.NDArray[np.float32]:
        """Return growth potential `[N, S, K]` on the first batches of an epoch [nats per unit of learning rate]."""

    @abstractmethod
    def capture(self, time: int) -> None:
        """Capture slot gradients of every host, for informed seeds; see `Shard.capture`."""

    @abstractmethod
    def latency(self, host: nn.Module, used_S: npt.NDArray[np.bool_], samples: Tensor) -> Price:
        """Measure latency on the first device; see `measure_latency`."""

    # ---- seeds and snapshots

    @abstractmethod
    def arrange(self, roles: Roles) -> None:
        """Set the roles of all seeds; see `Shard.arrange`."""

    @abstractmethod
    def plant(self, host: int, slot: int, blueprint: int, stream: tuple[int | str, ...], blend: Blend = Blend.ADD) -> None:
        """Plant a newborn seed; see `Shard.plant`."""

    @abstractmethod
    def clear(self, host: int, slot: int, blueprint: int) -> None:
        """Remove a seed."""

    @abstractmethod
    def save_snapshots(self, healthy_N: npt.NDArray[np.bool_]) -> None:
        """Save snapshots of the marked hosts."""

    @abstractmethod
    def restore(self, failed_N: npt.NDArray[np.bool_]) -> None:
        """Restore the marked hosts from their snapshots."""

    @abstractmethod
    def grown(self, host: int, seeds: Sequence[KeptSeed]) -> GrownNetwork:
        """Return a copy of a host with these seeds; see `Shard.grown`."""

    @abstractmethod
    def machines(self) -> dict[str, str]:
        """Return the processor or GPU behind each device of the config, by the device's name."""

    @abstractmethod
    def close(self) -> None:
        """Release what the pool holds."""

    # ---- for pools that derive from this class

    def _count(
        self,
        alpha_VNS: npt.NDArray[np.float32],
        *,
        trained: int = 0,
        trained_N: npt.NDArray[np.bool_] | None = None,
        wanted_N: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Count training of some hosts on this many samples each, and one measurement of some; None for all."""
        if self.meter is None:
            return
        task, roles = self.parts.task, self._roles or operations.roles(empty(*alpha_VNS.shape[1:]), SlotsConfig())
        batch = min(task.batch_size, max(trained, 1))
        self.meter.train(roles, trained // batch * batch, batch, trained_N)
        self.meter.measure(roles, alpha_VNS, len(task.data.valid_y), wanted_N)


def joined(parts: Sequence[Report], axis: int) -> Report:
    """Join the reports of several parts of the hosts along the axis of their members."""
    names = [entry.name for entry in fields(parts[0])]
    return type(parts[0])(**{name: np.concatenate([getattr(part, name) for part in parts], axis) for name in names})
