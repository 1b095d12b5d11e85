"""All hosts of an environment in this process, distributed over shards that run in parallel."""

# N hosts, M members of a shard, S slots, V variants, K blueprints

import ctypes
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from esper.fusion import batch_last_layers
from esper.fusion.precision import computed_in
from esper.growth.grown import GrownNetwork, KeptSeed
from esper.lifecycle.roles import Blend, Roles
from esper.measure.costs import Meter, Price
from esper.measure.counterfactuals import Measurement
from esper.measure.latency import measure_latency
from esper.measure.potential import PotentialSensor
from esper.pool.base import Epoch, HostPool, PoolParts, joined
from esper.pool.devices import DeviceConfig, compute_exactly, device_name, find_device, find_precision
from esper.pool.host_sampler import EpochOrder, HostSampler
from esper.pool.lane import Lane
from esper.pool.member_data import place_data
from esper.pool.shard import Shard
from esper.seeds.slot_gradients import SlotGradients
from esper.task.instances import DataView

Result = TypeVar("Result")
CPU_MEMBERS = 16
"""Maximum number of hosts per shard on a CPU. On 2 cores, two shards of 16 with one thread each train as fast as one of 32 with
two threads, and many times as fast under load from other processes, since they synchronise once per epoch and not in every
operation."""
CPU_TRAINED = 2**21
"""Maximum number of output values of one layer that a shard of several hosts trains at once on a CPU: 8 MB; twice as many for
Esper's own kernels, which compute hosts one by one. Higher: fewer, larger kernels, whose features leave the cache; see
benchmarks/README.md."""
SMALL_MEMBERS = 32
"""Maximum number of hosts per shard if Esper's own kernels compute them, or if they consist of few, narrow linear layers. Most of
their time is Python's, of which one thread runs at a time: one shard of 32 hosts of `digits` trains about as fast as two of 16 in
two threads, and uses one core."""
CPU_SHARD = 2**18
"""Number of output values of one layer from which half of the hosts are worth a thread of their own on a CPU, where all of them
would fit into one shard; twice as many for Esper's own kernels. Lower: a second core for smaller hosts, at more time in total."""
STREAMS = 32
"""Number of streams per GPU, which torch hands out in rotation. With more shards, two would share a stream, and one's
capture would include the other's work."""


class ShardPool(HostPool):
    """N hosts on the devices of this process."""

    def __init__(self, parts: PoolParts, meter: Meter | None = None) -> None:
        """Find the devices and place the data there."""
        HostPool.__init__(self, parts, meter)
        self.task, devices = parts.task, parts.devices
        self._precision = {find_device(name): find_precision(name, one.precision) for name, one in devices.items()}
        if len(self._precision) < len(devices):
            raise ValueError(f"devices={list(devices)} name one device of this machine twice: name it once")
        self._own_kernels = {find_device(name): one.uses_own_kernels for name, one in devices.items()}
        compute_exactly(self._precision)
        self.shards: list[Shard] = []
        self._sensors: dict[torch.device, PotentialSensor] = {}
        # One intra-op thread per shard: kernels this small do not benefit from more threads, which spin while they wait for each
        # other. Next to a busy process, that took a hundred times as long.
        self._workers = max(available_cores(), len(devices))
        self._pool = ThreadPoolExecutor(self._workers, "shard", torch.set_num_threads, (1,))
        self._threads: list[ThreadPoolExecutor] = []  # of a shard on a GPU always the same
        self._sensing = ThreadPoolExecutor(1, "sensor", torch.set_num_threads, (1,))
        self._underway: list[Future[Any]] = []
        self.deal(devices)
        if parts.task.sizes.narrow and any(own and device.type == "cpu" for device, own in self._own_kernels.items()):
            batch_last_layers.prepare()
        resident = {find_device(name): config.resident for name, config in devices.items()}
        self._data = {device: place_data(self.task.data, device, kept) for device, kept in resident.items()}

    def deal(self, devices: Mapping[str, DeviceConfig]) -> None:
        """Deal the hosts to shards from the next `start` on; the devices stay the same."""
        sizes = self.task.sizes
        kind = {"narrow": sizes.narrow, "vectors": sizes.vectors}
        self.places = deal(self.parts.num_hosts, devices, self.task.batch_size * sizes.widest, **kind)
        graphs = {find_device(name): config.graphs for name, config in self.parts.devices.items()}
        shards = Counter(device for device, _ in self.places)
        self._lanes = [Lane(device, graphs=graphs[device] and shards[device] <= STREAMS) for device, _ in self.places]
        threads = min(self._workers, sum(device.type == "cuda" for device, _ in self.places))
        self._threads += [
            ThreadPoolExecutor(1, "shard", torch.set_num_threads, (1,)) for _ in range(threads - len(self._threads))
        ]

    def start(self, sampler: HostSampler, views: Sequence[DataView], hosts: Sequence[nn.Module] | None = None) -> None:
        """See `HostPool.start`."""
        HostPool.start(self, sampler, views, hosts)
        for left in self._underway:  # of a step that was interrupted
            left.cancel()
        wait(self._underway)
        self._sampler, self._views, self.shards, parts = sampler, views, [], self.parts
        hosts = sampler.hosts() if hosts is None else hosts
        return_memory()
        self.shards = [
            Shard(
                hosts[rows],
                parts.blueprints,
                self._data[device],
                self.task,
                device,
                views[rows],
                optimiser=parts.optimiser,
                incubation=parts.incubation,
                frozen=parts.frozen,
                precision=self._precision[device],
                own_kernels=self._own_kernels[device],
                lane=lane,
            )
            for (device, rows), lane in zip(self.places, self._lanes, strict=True)
        ]
        if not self._sensors:  # all hosts of a task have the same slots
            slots = self.shards[0].slots
            self._sensors = {device: PotentialSensor(parts.blueprints, slots, device) for device in self._data}

    # ---- training and measuring

    def epoch(
        self,
        time: int,
        alpha_VNS: npt.NDArray[np.float32],
        *,
        probe: bool = True,
        retired_N: npt.NDArray[np.bool_] | None = None,
    ) -> Epoch:
        """See `HostPool.epoch`."""
        order = self._order(time)
        retired_N = np.zeros(len(order.samples_NI), np.bool_) if retired_N is None else retired_N
        with self.times.waiting():
            trained = self._submit(
                "train", lambda shard, rows: shard.train_epoch(order.of(rows), probe=probe, retired_M=retired_N[rows])
            )
            measured = self._submit("validate", lambda shard, rows: shard.validate(alpha_VNS[:, rows]), after=trained)
            report = joined([one.result() for one in trained], 0)
            self._count(alpha_VNS, trained=self._sampler.samples_per_epoch, trained_N=~retired_N)
            potential_NSK = np.full((*report.seed_norm_MS.shape, len(self.parts.blueprints)), np.nan, dtype=np.float32)
            if probe:  # while the shards validate
                potential_NSK = self._potential()
            return Epoch(report, joined([one.result() for one in measured], -1), potential_NSK)

    def _order(self, time: int) -> EpochOrder:
        return self._sampler.order(time, self._views)

    def train(self, time: int, samples: int | None = None) -> npt.NDArray[np.bool_]:
        """Train every host on the first `samples` of an epoch, without validation, and return which are finite `[N]`."""
        order = self._order(time)
        order = order if samples is None else order.first(samples)
        report = joined(self._each("train", lambda shard, rows: shard.train_epoch(order.of(rows))), 0)
        return np.isfinite(report.loss_M) & report.finite_M

    def host_states(self) -> list[dict[str, Tensor]]:
        """Return the parameters and buffers of every host by name, on the CPU."""
        return [state for states in self._each("copy", lambda shard, _: shard.host_states()) for state in states]

    def potential(self, time: int) -> npt.NDArray[np.float32]:
        """See `HostPool.potential`."""
        self.capture(time)
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

    def validate(
        self, alpha_VNS: npt.NDArray[np.float32], *, test: bool = False, wanted_N: npt.NDArray[np.bool_] | None = None
    ) -> Measurement:
        """See `HostPool.validate`."""
        if not test:  # scores are no part of growing a host
            self._count(alpha_VNS, wanted_N=wanted_N)
        return joined(self._each("validate", lambda shard, rows: shard.validate(alpha_VNS[:, rows], test=test)), -1)

    def latency(self, host: nn.Module, used_S: npt.NDArray[np.bool_], samples: Tensor) -> Price:
        """See `HostPool.latency`."""
        device = self.places[0][0]
        with computed_in(self._precision[device], device):
            return measure_latency(host, self.parts.blueprints, used_S, samples, device)

    # ---- seeds and snapshots

    def capture(self, time: int) -> None:
        """See `HostPool.capture`."""
        order = self._order(time)
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

    def save_snapshots(self, healthy_N: npt.NDArray[np.bool_]) -> None:
        """Save snapshots of the marked hosts. These copies are so small that threads would cost more."""
        for shard, (_, rows) in zip(self.shards, self.places, strict=True):
            shard.save_snapshots(healthy_N[rows])

    def restore(self, failed_N: npt.NDArray[np.bool_]) -> None:
        """Restore the marked hosts from their snapshots."""
        self._each("copy", lambda shard, rows: shard.restore(failed_N[rows]))

    def machines(self) -> dict[str, str]:
        """See `HostPool.machines`."""
        return {name: device_name(find_device(name)) for name in self.parts.devices}

    def close(self) -> None:
        """Stop the threads, and release the hosts and the data."""
        for threads in (self._pool, *self._threads):
            threads.shutdown(cancel_futures=True)
        self._sensing.shutdown()
        self.shards, self._lanes, self._sensors, self._data = [], [], {}, {}

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

        def run(index: int, shard: Shard, rows: slice) -> Result:
            if after:
                after[index].result()
            with self.times.working(phase):
                return work(shard, rows)

        dealt = zip(self.shards, self.places, strict=True)
        begun = [self._thread_of(index).submit(run, index, shard, rows) for index, (shard, (_, rows)) in enumerate(dealt)]
        self._underway = [*(one for one in self._underway if not one.done()), *begun]
        return begun

    def _thread_of(self, index: int) -> ThreadPoolExecutor:
        """Return the threads in which a shard works. On a GPU it is always the same one: cuBLAS keeps memory for every pair of
        thread and stream, and must be initialised in a thread before a capture."""
        on_gpu = self.places[index][0].type == "cuda"
        return self._threads[index % len(self._threads)] if on_gpu else self._pool


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
    """Return an upper limit of the number of hosts in a shard; the devices may be those of other machines."""
    each = -(-num_hosts // len(devices))
    return max(min(each, config.members_per_shard or each) for config in devices.values())


def cpu_members(hosts: int, values: int, config: DeviceConfig, *, narrow: bool = False, vectors: bool = False) -> int:
    """Return the number of hosts per shard, if a CPU has this many hosts; see `deal` for the other arguments."""
    own = narrow and config.uses_own_kernels
    most = min(SMALL_MEMBERS if own or vectors else CPU_MEMBERS, CPU_TRAINED * (1 + own) // max(1, values) or 1)
    shards = -(-hosts // most)
    if shards == 1 and hosts // 2 * values >= CPU_SHARD * (1 + own):
        shards = 2
    return -(-hosts // shards)  # of equal sizes


def deal(
    num_hosts: int, devices: Mapping[str, DeviceConfig], values: int = 1, *, narrow: bool = False, vectors: bool = False
) -> list[tuple[torch.device, slice]]:
    """Deal hosts in order: as evenly as possible to devices, then to shards of at most `members_per_shard`.

    Args:
        values: output values of a host's widest layer, per batch, which limit shards on a CPU.
        narrow: if true, Esper's own kernels can compute the hosts on a CPU.
        vectors: if true, the hosts are narrow and consist of linear layers.

    Raises:
        ValueError: a device is not on this machine, or there are fewer hosts than devices.
    """
    if num_hosts < len(devices):
        raise ValueError(f"hosts={num_hosts} is fewer than the {len(devices)} devices: raise hosts or leave devices out")
    places: list[tuple[torch.device, slice]] = []
    for rank, (name, config) in enumerate(devices.items()):
        first, stop = num_hosts * rank // len(devices), num_hosts * (rank + 1) // len(devices)
        device = find_device(name)
        size = config.members_per_shard or stop - first
        if device.type == "cpu" and not config.members_per_shard:
            size = cpu_members(stop - first, values, config, narrow=narrow, vectors=vectors)
        places += [(device, slice(start, min(start + size, stop))) for start in range(first, stop, size)]
    return places
