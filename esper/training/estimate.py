"""Memory and work of a run, computed from its config before any host exists.

Weights are counted on torch's meta device, which has shapes and no data; only if they fit, one host is built and run on two
samples. The constants were measured; a test compares the estimate with the memory that a run takes.
"""

# N hosts, S slots, K blueprints, B samples of a batch

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from esper.config import Config, ConfigError
from esper.env import observation as obs
from esper.env.actions import VALUES, Op
from esper.growth.loss import LOGITS
from esper.hosts.base import segments_of, slot_specs
from esper.measure import potential
from esper.measure.costs import count_parameters
from esper.pool.devices import find_device
from esper.pool.local import available_cores, cpu_members
from esper.pool.member_data import is_resident
from esper.pool.shard import CAPTURED_BATCHES, CPU_FEATURES, GPU_FEATURES, VALIDATION_BATCH
from esper.seeding import borrowed_stream
from esper.task.base import Task
from esper.task.instances import Split
from esper.task.loading import load_task
from esper.text import counted, si

CPU = torch.device("cpu")
FLOAT = 4
COPIES = 4
"""Tensors of the size of a host's weights with momentum: weights, gradient, momentum, snapshot."""
PROCESS = 380e6
"""Python with all libraries [bytes]."""
KERNELS = 130e6
"""Numba and the kernels of small hosts, in each process that computes hosts [bytes]."""
OBJECTS = 50e3
"""Python objects of a host while an episode starts [bytes]."""
SANDBOX_HOST = 5e3
"""State of a host of an environment without networks [bytes]."""
SANDBOX_SLOTS = 3
"""Slots of such a host."""
GRAPH = 2
"""Gradients and intermediates of a batch, as a factor on the features that the backward pass needs."""
LOSS = 3
"""Tensors of the size of the logits that a loss holds: logits, logarithms of probabilities, gradient."""
SENSED, SENSED_EACH = 2.5, 1.5
"""Copies of captured features that growth potential needs: this many for all hosts, and for each blueprint for those that are
measured at once."""
REPLAYED = 3
"""Copies of the policy's activations that a learning step holds."""


class Part(NamedTuple):
    """Memory of one part of a run."""

    name: str
    bytes: float
    keys: Sequence[str]
    """Keys that make it smaller; empty if none does."""


class HostSize(NamedTuple):
    """Sizes of one host."""

    slots: int
    parameters: int
    seeds: int
    """Parameters of a seed of every blueprint in every slot."""
    features: int = 0
    """Number of input values of all slots, per sample."""
    widest: int = 0
    """Largest number of outputs of a segment, per sample."""
    layer: int = 0
    """Largest number of outputs of a layer, per sample."""
    saved: float = 0.0
    """Bytes that the backward pass of one sample needs."""
    narrow: bool = False
    """See `FeatureSizes`."""
    vectors: bool = False
    """See `FeatureSizes`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What a run will take."""

    hosts: int
    epochs: int
    """Host epochs of the whole run."""
    parameters: int | None
    """Parameters of a host; None if the hosts are no networks."""
    pretraining: int = 0
    """Host epochs of pretraining before the first episode, unless an earlier run has cached the hosts."""
    places: Mapping[torch.device, Sequence[Part]]
    """Parts by the device that holds them."""

    @property
    def bytes(self) -> float:
        """Memory on all devices together [bytes]."""
        return sum(part.bytes for parts in self.places.values() for part in parts)

    def line(self, done: int = 0) -> str:
        """Return the estimate as one line, without the host epochs that are done."""
        size = f" of {self.parameters:,} parameters" if self.parameters is not None else ""
        before = f", and {self.pretraining:,} more to pretrain the hosts, unless an earlier run did" if self.pretraining else ""
        left = max(0, self.epochs - done)
        return (
            f"{counted(self.hosts, 'host')}{size}, about {in_bytes(self.bytes)} of memory; {counted(left, 'host epoch')}{before}"
        )

    def check(self, config: Config) -> None:
        """Check that the run fits into the memory of its devices.

        Raises:
            ConfigError: it does not; the message names the keys that make it smaller, if there are any.
        """
        for device, parts in self.places.items():
            needed, there = sum(part.bytes for part in parts), capacity(device)
            if needed <= there:
                continue
            largest = max(parts, key=lambda part: (bool(part.keys), part.bytes))
            now = {key: self.hosts if key == "hosts" else _value(config, key) for key in largest.keys}
            keys = " or ".join(f"{key} (now {value})" for key, value in now.items())
            remedy = f"lower {keys}" if keys else "use a machine or a GPU with more memory"
            where = "this machine" if device.type == "cpu" else str(device)
            raise ConfigError(
                f"the run needs about {in_bytes(needed)} of memory, most of it for {largest.name}, and {where} has "
                f"{in_bytes(there)}: {remedy}"
            )


def check_memory(config: Config, hosts: int | None = None) -> None:
    """Check that a run, or an evaluation on this many hosts, fits into memory; see `Estimate.check`."""
    estimate(config, hosts).check(config)


def estimate(config: Config, hosts: int | None = None) -> Estimate:
    """Return the estimate of a run, or of an evaluation on this many hosts.

    Raises:
        ConfigError: a host is too large to be described.
        ValueError: a device is not on this machine.
    """
    count, places, size, pretraining = hosts or config.hosts, dict[torch.device, list[Part]](), None, 0
    if "task" in config.env.ignores:
        places[CPU] = [Part("hosts", count * SANDBOX_HOST, ("hosts", "steps"))]
    else:
        task, pretraining = load_task(config.task, config.host), config.task.pretrain * config.task.pretrain_pool
        size = _weights(config, task)
        places = _of_hosts(config, task, size, count)
        if all(sum(part.bytes for part in parts) < capacity(device) for device, parts in places.items()):
            size = _features(config, size, task)
            places = _of_hosts(config, task, size, count)
    places[CPU].append(Part("Python and its libraries", PROCESS, ()))
    if own := config.env.memory(config.steps):
        places[CPU].append(Part("the environment", own, ("steps",)))
    if hosts is None and config.agent.buffered:
        places[CPU] += _learning(config, size.slots if size else SANDBOX_SLOTS)
    epochs = (config.updates if hosts is None else 1) * count * config.steps
    parameters = size.parameters if size else None
    return Estimate(hosts=count, epochs=epochs, parameters=parameters, pretraining=pretraining, places=places)


def _weights(config: Config, task: Task) -> HostSize:
    """Return the number of weights of a host and its seeds, from a host without data.

    Raises:
        ConfigError: torch cannot even describe a host of this size.
    """
    instance = task.instance(config.seed, Split.TRAINING, 0, 0)
    for device in ("meta", "cpu"):  # a class from outside may need values
        try:
            ignored = warnings.catch_warnings(action="ignore")  # such as those of weights that are loaded without their values
            with borrowed_stream(), torch.device(device), ignored:
                host = task.make_host(instance)
                slots = slot_specs(host)
                chosen_S = config.slots.chosen(tuple(slot.name for slot in slots), config.choice("slots"))
                used = [slot for slot, chosen in zip(slots, chosen_S, strict=True) if chosen]
                seeds = [one.branch(slot) for one in config.blueprint.values() for slot in used if one.obstacle(slot) is None]
            return HostSize(slots=len(slots), parameters=count_parameters(host), seeds=sum(map(count_parameters, seeds)))
        except Exception as error:
            if "overflow" in str(error).lower():
                keys = " or ".join(f"{key} (now {_value(config, key)})" for key in (_size_key(config), _seed_key(config)))
                raise ConfigError(f"a host or a seed of this size exceeds any memory: lower {keys}") from error
    return HostSize(slots=0, parameters=0, seeds=0)  # the check of the host says what is wrong


def _features(config: Config, size: HostSize, task: Task) -> HostSize:
    """Return the sizes with those of the features, after running a host on two samples; zeros for one that fails."""
    # A copy, since its storage may be saved as a whole.
    x, saved = task.data.inputs(task.data.valid_x[:2].clone()), dict[int, Tensor]()
    weights: set[int] = set()  # the backward pass also needs views of weights, which are counted elsewhere

    def keep(tensor: Tensor) -> Tensor:
        if (place := tensor.untyped_storage().data_ptr()) not in weights:
            saved[place] = tensor
        return tensor

    try:
        host = task.host(config.seed, Split.TRAINING, 0, 0)
        weights.update(parameter.untyped_storage().data_ptr() for parameter in host.parameters())
        with borrowed_stream(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            for segment in segments_of(host.train()):
                x = segment(x)
    except Exception:  # the check of the host says what is wrong
        return size
    needed = sum(tensor.untyped_storage().nbytes() for tensor in saved.values()) / 2
    sizes = task.sizes
    features, widest = sum(sizes.segments[:-1]), max(sizes.segments)
    found = size._replace(features=features, widest=widest, layer=sizes.widest, saved=needed)
    return found._replace(narrow=sizes.narrow, vectors=sizes.vectors)


def _of_hosts(config: Config, task: Task, size: HostSize, hosts: int) -> dict[torch.device, list[Part]]:
    """Return what hosts of this size hold, by device."""
    samples = task.epoch_samples or len(task.data.train_y)
    each = samples * (16 + 3 * (task.augmentation is not None))
    data, cluster = _data_bytes(task), config.cluster
    if cluster.is_remote and not cluster.processes:  # they are on other machines
        return {CPU: [Part("the data", data, ())]}
    places = {
        CPU: [
            Part("the data", data, ("task.batch_size", "hosts")),
            Part("workers", cluster.processes * (PROCESS + data), ("cluster.workers",)),
            Part("hosts", hosts * (OBJECTS + FLOAT * size.parameters), ("hosts", _size_key(config))),
            Part("the order of samples", hosts * each, ("hosts", "task.epoch_samples")),
        ]
    }
    if task.config.pretrain:
        pool = task.config.pretrain_pool * (OBJECTS + (1 + COPIES) * FLOAT * size.parameters)
        places[CPU].append(Part("pretrained hosts", pool, ("task.pretrain_pool", _size_key(config))))
    for name in config.devices:
        share = -(-hosts // len(config.devices))
        places.setdefault(find_device(name), []).extend(_on_device(config, task, size, share, name))
    on_cpu = (one for name, one in config.devices.items() if find_device(name).type == "cpu")
    if size.narrow and any(one.uses_own_kernels for one in on_cpu):
        processes, keys = (cluster.processes, ("cluster.workers",)) if cluster.processes else (1, ())
        places[CPU].append(Part("Numba and its kernels", processes * KERNELS, keys))
    return places


def _on_device(config: Config, task: Task, size: HostSize, hosts: int, name: str) -> list[Part]:
    """Return what the hosts of one device hold there."""
    device, given = find_device(name), config.devices[name]
    chosen = given.members_per_shard
    batch, positions = min(task.batch_size, len(task.data.train_y)), task.data.positions
    copies = COPIES + 2 * (config.optimiser.tensors - 1)  # in use and in the snapshot
    on_cpu = device.type == "cpu"
    kept = is_resident(task.data, given.resident, None if on_cpu else capacity(device))
    copied = kept and (task.data.mapped or not on_cpu)  # data in the memory of a CPU is used in place
    fitting = cpu_members(hosts, task.batch_size * size.layer, given, narrow=size.narrow, vectors=size.vectors)
    members = min(hosts, chosen or fitting)
    active = min(hosts, members * available_cores()) if on_cpu else hosts  # hosts that train at the same time
    measured = active * size.widest * max(1, VALIDATION_BATCH // positions)
    measured = min(measured, available_cores() * CPU_FEATURES if on_cpu else max(GPU_FEATURES, active * size.widest))
    logits = min(active * batch * positions * task.data.num_classes, (available_cores() if on_cpu else 1) * LOGITS)
    captured = size.features * CAPTURED_BATCHES * batch  # of a host; growth potential is measured for a part of the hosts at once
    most = potential.CPU_FEATURES * available_cores() if on_cpu else potential.GPU_FEATURES
    part = max(potential.FEWEST, most // max(1, captured))
    sensed = 2 * FLOAT * captured * (SENSED * hosts + SENSED_EACH * len(config.blueprint) * min(hosts, part))
    both = ("task.batch_size", f"devices.{name}.members_per_shard" if on_cpu and chosen else "hosts")
    return [
        *([Part("the data", float(task.data.packed_bytes()), ())] if copied else []),
        Part("hosts", hosts * size.parameters * FLOAT * copies, ("hosts", _size_key(config))),
        Part("seeds", hosts * size.seeds * FLOAT * copies, ("hosts", _seed_key(config))),
        Part("training on a batch", GRAPH * active * -(-batch // config.optimiser.micro_batches) * size.saved, both),
        Part("the loss", LOSS * FLOAT * logits, both),
        Part("validation", 2 * COPIES * FLOAT * measured, both),
        *([Part("the growth potential", sensed, ("hosts", "task.batch_size"))] if getattr(config.env, "potential", True) else []),
    ]


def _learning(config: Config, slots: int) -> list[Part]:
    """Return what a learner holds: the rollouts, and its weights and activations."""
    blueprints, rollouts = tuple(config.blueprint), int(getattr(config.buffer, "rollouts", 1))
    features, of_slot, values = (
        len(obs.HOST_FEATURES),
        len(obs.slot_table(blueprints)),
        len(blueprints) + sum(map(len, VALUES.values())),
    )
    row = FLOAT * (features + slots * of_slot) + 8 * slots + len(Op) * slots + values + 100
    decisions, weights, units, keys = config.hosts * config.steps, *config.agent.network_size(slots, features, of_slot)
    reused = ("hosts", "steps") if rollouts <= config.steps else ("buffer.rollouts", "hosts")
    return [
        Part("rollouts", decisions * row * rollouts, reused),
        Part("learning", REPLAYED * decisions * units * FLOAT, ("hosts", "steps") if units < decisions else keys),
        Part("the policy", weights * FLOAT * COPIES, keys),
    ]


def _size_key(config: Config) -> str:
    return f"host.{config.host.size_key}" if config.host.size_key else "task.batch_size"


def _seed_key(config: Config) -> str:
    """Return the key of the largest size of any blueprint, or that of a host if it is larger."""
    keys = [_size_key(config), *(f"blueprint.{name}.{key}" for name, one in config.blueprint.items() for key in one.sizes)]
    return max(keys, key=lambda key: _value(config, key))


def _value(config: Config, key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = value[name] if isinstance(value, dict) else getattr(value, name)
    return value


def _data_bytes(task: Task) -> float:
    """Return the size of the data in memory, with its copies for every drift."""
    if task.data.mapped:
        return 0.0
    return float(sum(part.nbytes for part in task.data.tensors()))


def capacity(device: torch.device) -> float:
    """Return the memory of a device [bytes]; for the CPU that of the machine, or of the container if that is less."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    if not hasattr(os, "sysconf"):
        return float("inf")
    memory = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # of version 2 and of version 1
        limit = Path("/sys/fs/cgroup", name)
        text = limit.read_text().strip() if limit.exists() else ""
        memory = min(memory, float(text)) if text.isdigit() else memory
    return memory


def in_bytes(count: float) -> str:
    """Return a number of bytes with two digits and a unit, as in 210 MB."""
    number = si(count, digits=2, gap=" ")
    return f"{number}B" if number[-1].isalpha() else f"{number} B"
