"""All hosts of an environment, dealt out to shards that run side by side."""

# N hosts, M members of a shard, S slots, V variants, I samples of an epoch

import ctypes
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from esper.env.shard import CPU_MEMBERS, DeviceConfig, Shard, TrainReport, find_device
from esper.lifecycle.roles import Blend, Fossils, Incubation, Roles, no_seeds
from esper.measure.costs import Meter
from esper.measure.counterfactuals import Measurement
from esper.measure.sensor import SAMPLES, SPOTS, PotentialSensor
from esper.seeding import torch_stream
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.errors import SeedError
from esper.seeds.slot_gradients import GradientHooks, SlotGradients
from esper.task.base import Task
from esper.task.data import Data
from esper.task.instances import DataView

Result = TypeVar("Result")


class Epoch(NamedTuple):
    """What one epoch of all hosts showed."""

    report: TrainReport
    measured: Measurement
    potential_NSK: npt.NDArray[np.float32]
    """Growth potential of each slot and blueprint [nats per unit of learning rate]; see `population.potential`."""


class ShardPool:
    """N hosts on all devices. Every call takes and returns arrays over all hosts, in order."""

    def __init__(
        self,
        task: Task,
        blueprints: Sequence[BlueprintConfig],
        devices: Mapping[str, DeviceConfig],
        num_hosts: int,
        *,
        incubation: Incubation = Incubation.straight_through,
        fossils: Fossils = Fossils.learning,
        meter: Meter | None = None,
    ) -> None:
        """Finds the devices and takes the data there.

        Args:
            meter: counts what training and measuring take, if given.
        """
        self.meter = meter
        self.task, self.blueprints, self._growth = task, tuple(blueprints), (incubation, fossils)
        self.places = _deal(num_hosts, devices)
        self._data: dict[torch.device, Data] = {device: task.data.to(device) for device, _ in self.places}
        self.shards: list[Shard] = []
        self._roles: Roles | None = None
        self._sensors: dict[torch.device, PotentialSensor] = {}
        # One thread a shard: kernels this small gain nothing from more, and their threads spin for each other, which beside a
        # busy neighbour has taken a hundred times as long.
        workers = min(len(self.places), max(available_cores(), len(devices)))
        self._pool = ThreadPoolExecutor(workers, "shard", torch.set_num_threads, (1,))
        self._sensing = ThreadPoolExecutor(1, "sensor", torch.set_num_threads, (1,))

    def start(self, hosts: Sequence[nn.Module], views: Sequence[DataView] = ()) -> None:
        """Takes N new hosts and what their instances make of the data; what was there is dropped."""
        incubation, fossils = self._growth
        self.shards, self._roles = [], None
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
                incubation=incubation,
                fossils=fossils,
            )
            for device, rows in self.places
        ]
        if not self._sensors:  # all hosts of a task have the same slots
            slots = self.shards[0].network.slots
            self._sensors = {device: PotentialSensor(self.blueprints, slots, device) for device in self._data}

    def epoch(
        self,
        order_NI: npt.NDArray[np.int64],
        alpha_VNS: npt.NDArray[np.float32],
        *,
        draws_NI3: npt.NDArray[np.uint8] | None = None,
        probe: bool = True,
        retired_N: npt.NDArray[np.bool_] | None = None,
    ) -> Epoch:
        """Trains every host for an epoch and validates it; see `Shard.train_epoch` and `Shard.validate`.

        Args:
            probe: measure growth potential on the last batch of training; without it the potential is NaN.
            retired_N: hosts that stay as they are.
        """
        hooks = [GradientHooks(shard.members, SAMPLES, SPOTS) if probe else None for shard in self.shards]

        def train(index: int) -> TrainReport:
            rows = self.places[index][1]
            with _by_host(rows):
                return self.shards[index].train_epoch(
                    order_NI[rows],
                    draws_MI3=_part(draws_NI3, rows),
                    hooks=hooks[index],
                    retired_M=None if retired_N is None else retired_N[rows],
                )

        trained = [self._pool.submit(train, index) for index in range(len(self.shards))]

        def validate(index: int) -> Measurement:
            trained[index].result()
            rows = self.places[index][1]
            with _by_host(rows):
                return self.shards[index].validate(alpha_VNS[:, rows])

        measured = [self._pool.submit(validate, index) for index in range(len(self.shards))]
        reports = [one.result() for one in trained]
        report = TrainReport(
            loss_M=np.concatenate([report.loss_M for report in reports]),
            host_norm_M=np.concatenate([report.host_norm_M for report in reports]),
            seed_norm_MS=np.concatenate([report.seed_norm_MS for report in reports]),
        )
        self._count(alpha_VNS, trained=order_NI.shape[1])
        potential_NSK = np.full((*report.seed_norm_MS.shape, len(self.blueprints)), np.nan, dtype=np.float32)
        if probe:  # while the shards validate
            felt = {shard: one.gradients() for shard, one in zip(self.shards, hooks, strict=True) if one is not None}
            potential_NSK = self.potential(felt)
        return Epoch(report, _joined([one.result() for one in measured]), potential_NSK)

    def potential(self, felt: Mapping[Shard, Sequence[SlotGradients]]) -> npt.NDArray[np.float32]:
        """Growth potential `[N, S, K]` from what each shard's slots felt [nats per unit of learning rate].

        All shards of a device at once: of kernels this small many cost more than large ones.
        """

        def measure(device: torch.device) -> npt.NDArray[np.float32]:
            parts = [felt[shard] for shard in self.shards if shard.device == device]
            whole = [SlotGradients.joined(slot) for slot in zip(*parts, strict=True)]
            return self._sensors[device].measure(whole).cpu().numpy()

        return np.concatenate(list(self._sensing.map(measure, self._sensors)))

    def validate(self, alpha_VNS: npt.NDArray[np.float32], *, test: bool = False) -> Measurement:
        """See `Shard.validate`."""
        self._count(alpha_VNS, test=test)
        return _joined(self._each(lambda shard, rows: shard.validate(alpha_VNS[:, rows], test=test)))

    def feel(
        self, order_NI: npt.NDArray[np.int64], *, draws_NI3: npt.NDArray[np.uint8] | None = None
    ) -> dict[Shard, list[SlotGradients]]:
        """See `Shard.feel`; what is felt, by shard."""
        felt = self._each(lambda shard, rows: shard.feel(order_NI[rows], draws_MI3=_part(draws_NI3, rows)))
        return dict(zip(self.shards, felt, strict=True))

    def arrange(self, roles: Roles) -> None:
        """See `GrowingNetwork.arrange`."""
        self._roles = roles
        for shard, (_, rows) in zip(self.shards, self.places, strict=True):
            shard.network.arrange(roles.of(rows))

    def plant(
        self,
        host: int,
        slot: int,
        blueprint: int,
        name: tuple[int | str, ...],
        blend: Blend = Blend.ADD,
        felt: Mapping[Shard, Sequence[SlotGradients]] | None = None,
    ) -> None:
        """A newborn seed for this host, with first weights from the stream of this name: root, purpose, keys.

        Args:
            felt: what the slots feel, from `feel`; for blueprints that are informed by it.
        """
        shard, member = self._of(host)
        root, purpose, *keys = name
        generator = torch_stream(int(root), str(purpose), *keys)
        shard.network.plant(member, slot, blueprint, generator, blend, None if felt is None else felt[shard])

    def clear(self, host: int, slot: int, blueprint: int) -> None:
        """Removes a seed."""
        shard, member = self._of(host)
        shard.network.clear(member, slot, blueprint)

    def remember(self, healthy_N: npt.NDArray[np.bool_]) -> None:
        """See `GrowingNetwork.remember`. Copies of so little are made sooner than threads are woken."""
        for shard, (_, rows) in zip(self.shards, self.places, strict=True):
            shard.network.remember(healthy_N[rows])

    def restore(self, sick_N: npt.NDArray[np.bool_]) -> None:
        """See `GrowingNetwork.restore`."""
        self._each(lambda shard, rows: shard.network.restore(torch.from_numpy(sick_N[rows]).to(shard.device)))

    def _count(self, alpha_VNS: npt.NDArray[np.float32], *, trained: int = 0, test: bool = False) -> None:
        """Tells the meter of training on so many samples a host, and of one measurement."""
        if self.meter is None:
            return
        roles, batch = self._roles or no_seeds(*alpha_VNS.shape[1:]), min(self.task.batch_size, max(trained, 1))
        self.meter.train(roles, trained // batch * batch)
        self.meter.measure(roles, alpha_VNS, len(self.task.data.test_y if test else self.task.data.valid_y))

    def close(self) -> None:
        """Stops the threads."""
        self._pool.shutdown()
        self._sensing.shutdown()

    def _of(self, host: int) -> tuple[Shard, int]:
        """The shard of a host, and its place there."""
        for shard, (_, rows) in zip(self.shards, self.places, strict=True):
            if rows.start <= host < rows.stop:
                return shard, host - rows.start
        raise IndexError(f"there is no host {host}")

    def _each(self, work: Callable[[Shard, slice], Result]) -> list[Result]:
        """Does the work for every shard with its rows of the hosts, side by side."""

        def named(shard: Shard, rows: slice) -> Result:
            with _by_host(rows):
                return work(shard, rows)

        rows = [rows for _, rows in self.places]
        return list(self._pool.map(named, self.shards, rows))


@contextmanager
def _by_host(rows: slice) -> Generator[None]:
    """An error in a seed of a shard names its members; this says which hosts they are."""
    try:
        yield
    except SeedError as error:
        raise error.among(rows.start) from error.error


def _joined(parts: Sequence[Measurement]) -> Measurement:
    """The measurements of all shards."""
    return Measurement(
        accuracy_VM=np.concatenate([part.accuracy_VM for part in parts], axis=1),
        loss_VM=np.concatenate([part.loss_VM for part in parts], axis=1),
        error_VM=np.concatenate([part.error_VM for part in parts], axis=1),
        covariance_VVM=np.concatenate([part.covariance_VVM for part in parts], axis=2),
    )


def _part(array: npt.NDArray[np.uint8] | None, rows: slice) -> npt.NDArray[np.uint8] | None:
    """These rows, where there is an array."""
    return None if array is None else array[rows]


def return_memory() -> None:
    """Hands freed memory back to the system, where the C library can (glibc).

    It keeps what is freed for later; features of ever other sizes leave holes in it, which add up to twice what is in use.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


_limit: int | None = None


def limit_cores(cores: int | None) -> None:
    """From now on crews of this process use so many cores at most, its share of the machine; None is no limit."""
    global _limit
    _limit = cores


def all_cores() -> int:
    """Cores that this process can run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_cores() -> int:
    """Those of them that it may use."""
    return min(all_cores(), _limit or all_cores())


def largest_shard(num_hosts: int, devices: Mapping[str, DeviceConfig]) -> int:
    """Hosts in the largest shard."""
    return max(rows.stop - rows.start for _, rows in _deal(num_hosts, devices))


def _deal(num_hosts: int, devices: Mapping[str, DeviceConfig]) -> list[tuple[torch.device, slice]]:
    """Deals hosts out in order: as evenly as can be over the devices, then into shards of at most `members_per_shard`.

    Raises:
        ValueError: a device is not on this machine, or there are fewer hosts than devices.
    """
    if num_hosts < len(devices):
        raise ValueError(f"hosts={num_hosts} is fewer than the {len(devices)} devices: raise hosts or leave devices out")
    places: list[tuple[torch.device, slice]] = []
    for rank, (name, config) in enumerate(devices.items()):
        first, stop = num_hosts * rank // len(devices), num_hosts * (rank + 1) // len(devices)
        device = find_device(name)
        size = config.members_per_shard or (CPU_MEMBERS if device.type == "cpu" else stop - first)
        places += [(device, slice(start, min(start + size, stop))) for start in range(first, stop, size)]
    return places
