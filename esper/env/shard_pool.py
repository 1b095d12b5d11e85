"""All hosts of an environment, distributed over shards that run in parallel."""

# N hosts, M members of a shard, S slots, V variants, K blueprints, I samples of an epoch

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from esper.env.devices import DeviceConfig, find_device, find_precision
from esper.env.host_sampler import EpochOrder
from esper.env.member_data import place_data
from esper.env.shard import CPU_MEMBERS, CPU_TRAINED, Shard, TrainReport
from esper.growth.grown import GrownNetwork, KeptSeed
from esper.lifecycle import operations
from esper.lifecycle.roles import Blend, Incubation, Roles
from esper.lifecycle.slots import SlotsConfig
from esper.lifecycle.stages import empty
from esper.measure.costs import Meter
from esper.measure.counterfactuals import Measurement
from esper.measure.potential import PotentialSensor
from esper.optimisers.base import OptimiserConfig
from esper.phases import PhaseTimes
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.slot_gradients import SlotGradients
from esper.task.base import Task
from esper.task.instances import DataView

Result = TypeVar("Result")
Report = TypeVar("Report", TrainReport, Measurement)


class Epoch(NamedTuple):
    """The results of one epoch of all hosts."""

    report: TrainReport
    measured: Measurement
    potential_NSK: npt.NDArray[np.float32]
    """Growth potential of each slot and blueprint [nats per unit of learning rate]; see `measure.potential`."""


class ShardPool:
    """N hosts on all devices. Every call takes and returns arrays over all hosts, in order."""

    def __init__(
        self,
        task: Task,
        blueprints: Sequence[BlueprintConfig],
        devices: Mapping[str, DeviceConfig],
        num_hosts: int,
        *,
        optimiser: OptimiserConfig,
        incubation: Incubation = Incubation.straight_through,
        frozen: bool = False,
        meter: Meter | None = None,
    ) -> None:
        """Find the devices and place the data there.

        Args:
            frozen: if true, only seeds learn.
            meter: counts the FLOPs of training and measuring, if given.
        """
        self.meter, self.times = meter, PhaseTimes()
        self.task, self.blueprints, self.incubation, self.frozen = task, tuple(blueprints), incubation, frozen
        self.optimiser = optimiser
        self._num_hosts = num_hosts
        self._precision = {find_device(name): find_precision(name, one.precision) for name, one in devices.items()}
        self.shards: list[Shard] = []
        self._sensors: dict[torch.device, PotentialSensor] = {}
        # At most one thread per shard: kernels this small do not benefit from more threads, which spin while they wait for each
        # other: next to a busy process this took a hundred times as long.
        workers = max(available_cores(), len(devices))
        self._pool = ThreadPoolExecutor(workers, "shard", torch.set_num_threads, (1,))
        self._sensing = ThreadPoolExecutor(1, "sensor", torch.set_num_threads, (1,))
        self.deal(devices)
        resident = {find_device(name): config.resident for name, config in devices.items()}
        self._data = {device: place_data(task.data, device, resident[device]) for device, _ in self.places}

    def deal(self, devices: Mapping[str, DeviceConfig]) -> None:
        """Deal the hosts to shards from the next `start` on; the devices stay the same."""
        self.places = deal(self._num_hosts, devices, self.task.batch_size * self.task.widest)

    def start(self, hosts: Sequence[nn.Module], views: Sequence[DataView] = ()) -> None:
        """Replace all hosts by N new ones, with their instances' views of the data."""
        self.shards = []
        if self.meter:
            self.meter.start(len(hosts))
        return_memory()
        self.shards = [
            Shard(
                hosts[rows],
                self.blueprints,
                self._data[device],
                self.task,
                device,
                views[rows],
                optimiser=self.optimiser,
                incubation=self.incubation,
                frozen=self.frozen,
                precision=self._precision[device],
            )
            for device, rows in self.places
        ]
        slots = self.shards[0].slots
        self._roles = operations.roles(empty(len(hosts), len(slots)), SlotsConfig())
        if not self._sensors:  # all hosts of a task have the same slots
            self._sensors = {device: PotentialSensor(self.blueprints, slots, device) for device in self._data}

    # ---- training and measuring

    def epoch(
        self,
        order: EpochOrder,
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
        retired_N = np.zeros(len(order.samples_NI), np.bool_) if retired_N is None else retired_N
        with self.times.waiting():
            trained = self._submit(
                "train", lambda shard, rows: shard.train_epoch(order.of(rows), probe=probe, retired_M=retired_N[rows])
            )
            measured = self._submit("validate", lambda shard, rows: shard.validate(alpha_VNS[:, rows]), after=trained)
            report = _joined([one.result() for one in trained], 0)
            self._count(alpha_VNS, trained=order.samples_NI.shape[1])
            potential_NSK = np.full((*report.seed_norm_MS.shape, len(self.blueprints)), np.nan, dtype=np.float32)
            if probe:  # while the shards validate
                potential_NSK = self._potential()
            return Epoch(report, _joined([one.result() for one in measured], -1), potential_NSK)

    def train(self, order: EpochOrder) -> npt.NDArray[np.bool_]:
        """Train every host for an epoch, without validation, and return which are finite `[N]`."""
        report = _joined(self._each("train", lambda shard, rows: shard.train_epoch(order.of(rows))), 0)
        return np.isfinite(report.loss_M) & report.finite_M

    def host_states(self) -> list[dict[str, Tensor]]:
        """Return the parameters and buffers of every host by name, on the CPU."""
        return [state for states in self._each("copy", lambda shard, _: shard.host_states()) for state in states]

    def potential(self, order: EpochOrder) -> npt.NDArray[np.float32]:
        """Return growth potential `[N, S, K]` on the first batches of an epoch [nats per unit of learning rate]."""
        self.capture(order)
        with self.times.waiting():
            return self._potential()

    def _potential(self) -> npt.NDArray[np.float32]:
        """Return growth potential `[N, S, K]` from the slot gradients that each shard captured.

        All shards of a device are measured at once: many kernels this small cost more than few large ones.
        """

        def measure(device: torch.device) -> npt.NDArray[np.float32]:
            with self.times.working("potential"):
                parts = [shard.take_gradients() for shard in self.shards if shard.device == device]
                whole = [SlotGradients.joined(slot) for slot in zip(*parts, strict=True)]
                return self._sensors[device].measure(whole).cpu().numpy()

        return np.concatenate(list(self._sensing.map(measure, self._sensors)))

    def validate(self, alpha_VNS: npt.NDArray[np.float32], *, test: bool = False) -> Measurement:
        """See `Shard.validate`."""
        if not test:  # scores are no part of growing a host
            self._count(alpha_VNS)
        return _joined(self._each("validate", lambda shard, rows: shard.validate(alpha_VNS[:, rows], test=test)), -1)

    def _count(self, alpha_VNS: npt.NDArray[np.float32], *, trained: int = 0) -> None:
        """Count training on this many samples per host, and one measurement."""
        if self.meter is None:
            return
        batch = min(self.task.batch_size, max(trained, 1))
        self.meter.train(self._roles, trained // batch * batch, batch)
        self.meter.measure(self._roles, alpha_VNS, len(self.task.data.valid_y))

    # ---- seeds and snapshots

    def capture(self, order: EpochOrder) -> None:
        """Capture slot gradients in every shard, for informed seeds; see `Shard.capture`."""
        self._each("potential", lambda shard, rows: shard.capture(order.of(rows)))

    def arrange(self, roles: Roles) -> None:
        """Set the roles of all seeds; see `Shard.arrange`."""
        self._roles = roles
        for shard, (_, rows) in zip(self.shards, self.places, strict=True):
            shard.arrange(roles.of(rows))

    def plant(self, host: int, slot: int, blueprint: int, stream: tuple[int | str, ...], blend: Blend = Blend.ADD) -> None:
        """Plant a newborn seed; see `Shard.plant`."""
        shard, member = self._of(host)
        shard.plant(member, slot, blueprint, stream, blend)

    def clear(self, host: int, slot: int, blueprint: int) -> None:
        """Remove a seed."""
        shard, member = self._of(host)
        shard.clear(member, slot, blueprint)

    def grown(self, host: int, seeds: Sequence[KeptSeed]) -> GrownNetwork:
        """Return a copy of a host with these seeds; see `Shard.grown`."""
        shard, member = self._of(host)
        return shard.grown(member, seeds)

    def remember(self, healthy_N: npt.NDArray[np.bool_]) -> None:
        """Save snapshots of the marked hosts. These copies are so small that threads would cost more."""
        for shard, (_, rows) in zip(self.shards, self.places, strict=True):
            shard.remember(healthy_N[rows])

    def restore(self, failed_N: npt.NDArray[np.bool_]) -> None:
        """Restore the marked hosts from their snapshots."""
        self._each("copy", lambda shard, rows: shard.restore(failed_N[rows]))

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown()
        self._sensing.shutdown()

    def _of(self, host: int) -> tuple[Shard, int]:
        """Return the shard of a host, and its index there."""
        for shard, (_, rows) in zip(self.shards, self.places, strict=True):
            if rows.start <= host < rows.stop:
                return shard, host - rows.start
        raise IndexError(f"there is no host {host}")

    def _each(self, phase: str, work: Callable[[Shard, slice], Result]) -> list[Result]:
        """Call `work` for every shard with its rows of the hosts, in parallel."""
        with self.times.waiting():
            return [one.result() for one in self._submit(phase, work)]

    def _submit(
        self, phase: str, work: Callable[[Shard, slice], Result], after: Sequence[Future[Any]] = ()
    ) -> list[Future[Result]]:
        """Start `work` for every shard with its rows of the hosts, in parallel, once its future in `after` is done."""

        def run(index: int) -> Result:
            if after:
                after[index].result()
            with self.times.working(phase):
                return work(self.shards[index], self.places[index][1])

        return [self._pool.submit(run, index) for index in range(len(self.shards))]


def _joined(parts: Sequence[Report], axis: int) -> Report:
    """Join the reports of all shards along the axis of their members."""
    names = [entry.name for entry in fields(parts[0])]
    return type(parts[0])(**{name: np.concatenate([getattr(part, name) for part in parts], axis) for name in names})


def return_memory() -> None:
    """Return freed memory to the system, if the C library supports it (glibc).

    glibc keeps freed memory for reuse; features of varying sizes fragment it until it takes twice the memory in use.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


_limit: int | None = None


def limit_cores(cores: int | None) -> None:
    """Limit the cores that pools of this process use, its share of the machine; None removes the limit."""
    global _limit
    _limit = cores


def all_cores() -> int:
    """Return the number of cores that this process can run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_cores() -> int:
    """Return the number of cores that pools of this process may use."""
    return min(all_cores(), _limit or all_cores())


def largest_shard(num_hosts: int, devices: Mapping[str, DeviceConfig]) -> int:
    """Return the number of hosts in the largest shard, at most."""
    return max(rows.stop - rows.start for _, rows in deal(num_hosts, devices))


def fitting_members(values: int) -> int:
    """Return the number of hosts per shard on a CPU, for hosts whose widest layer has so many output values per batch."""
    return min(CPU_MEMBERS, CPU_TRAINED // max(1, values) or 1)


def deal(num_hosts: int, devices: Mapping[str, DeviceConfig], values: int = 1) -> list[tuple[torch.device, slice]]:
    """Deal hosts in order: as evenly as possible to devices, then to shards of at most `members_per_shard`.

    Args:
        values: output values of a host's widest layer, per batch, which limit shards on a CPU.

    Raises:
        ValueError: a device is not on this machine, or there are fewer hosts than devices.
    """
    if num_hosts < len(devices):
        raise ValueError(f"hosts={num_hosts} is fewer than the {len(devices)} devices: raise hosts or leave devices out")
    places: list[tuple[torch.device, slice]] = []
    for rank, (name, config) in enumerate(devices.items()):
        first, stop = num_hosts * rank // len(devices), num_hosts * (rank + 1) // len(devices)
        device = find_device(name)
        size = config.members_per_shard or (fitting_members(values) if device.type == "cpu" else stop - first)
        places += [(device, slice(start, min(start + size, stop))) for start in range(first, stop, size)]
    return places
