"""Pretrained hosts, for tasks with deployed networks: one pool per root seed and split, trained once.

The pool is kept in memory, and on disk under a hash of everything that determines it. It is trained in shards of a fixed size, so
its hosts are bit for bit the same in every run, whether trained or read from disk.
"""

# P hosts of a pool

import hashlib
import inspect
import os
import platform
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from esper.checkpoint import CheckpointError, encode, entries, load
from esper.files import DiskError, disk, write_whole
from esper.fusion.precision import Precision
from esper.hosts.base import HostConfig
from esper.notices import notice
from esper.optimisers.base import OptimiserConfig, SeedSettingsConfig
from esper.pool.base import PoolParts
from esper.pool.devices import DeviceConfig, find_device, find_precision
from esper.pool.host_sampler import HostSampler
from esper.pool.local import ShardPool
from esper.task.base import POOL, Task
from esper.task.data import TaskError, hash_rows
from esper.task.instances import DataView, Split

FORMAT = 3
"""Version of the pool files; increment it when training gives different numbers."""
MEMBERS = 8
"""Hosts trained as one fused program."""

KEPT = 8
"""Pools kept in memory, the newest: an environment may be reset with ever new root seeds."""

State = dict[str, Tensor]
"""Parameters and buffers of a host, by name."""


def state_of(host: nn.Module) -> State:
    """Return the parameters and buffers of a host."""
    return {**dict(host.named_parameters()), **dict(host.named_buffers())}


@dataclass(kw_only=True, slots=True)
class Pretrained:
    """The pretrained hosts of a task."""

    task: Task
    host: HostConfig
    optimiser: OptimiserConfig
    devices: Mapping[str, DeviceConfig]
    """Devices of the run; see `_place`."""
    pools: dict[tuple[int, Split], list[nn.Module]] = field(default_factory=lambda: dict[tuple[int, Split], list[nn.Module]]())
    """The pools used so far, by root seed and split."""

    def hosts(self, sampler: HostSampler) -> list[nn.Module]:
        """Return the hosts of an episode. Several may be the same module.

        Raises:
            TaskError: the training of a host diverged.
        """
        key = sampler.root, sampler.split
        if key not in self.pools:
            self.pools[key] = self._pool(sampler)
            if len(self.pools) > KEPT:
                self.pools.pop(next(iter(self.pools)))
        return [self.pools[key][self.task.origin(*sampler.name(host)).index] for host in range(sampler.num_hosts)]

    def _pool(self, sampler: HostSampler) -> list[nn.Module]:
        """Return a pool from disk, or train it, and write it there if possible."""
        config = self.task.config
        pool = replace(sampler, num_hosts=config.pretrain_pool, twins=1, episode=POOL, epochs=config.pretrain)
        hosts, views = pool.hosts(), pool.views()
        path = _folder(config.pretrain_folder) / f"{self._digest(pool, hosts, views)}.pt"
        try:
            _read(path, hosts)
        except CheckpointError:  # it is missing or damaged
            states = self._train(pool, hosts, views)
            _write(path, states)
            for host, state in zip(hosts, states, strict=True):
                _fill(host, state)
        return hosts

    def _train(self, pool: HostSampler, hosts: Sequence[nn.Module], views: Sequence[DataView]) -> list[State]:
        """Train the hosts of a pool, and return their states."""
        name, place = self._place()
        epochs, finite_P, devices = self.task.config.pretrain, np.ones(len(hosts), np.bool_), {name: place}
        parts = PoolParts(task=self.task, blueprints=(), devices=devices, num_hosts=len(hosts), optimiser=self.optimiser)
        shards = ShardPool(parts)
        shards.start(pool, views, hosts)
        for time in range(epochs):
            notice(f"pretraining {len(hosts)} hosts", f"epoch {time + 1}/{epochs}")
            finite_P &= shards.train(time)
        states = shards.host_states()
        shards.close()
        notice()
        if len(diverged := np.flatnonzero(~finite_P)):
            raise TaskError(
                f"task.pretrain={epochs}: the training of hosts {', '.join(map(str, diverged))} of {len(hosts)} diverged: "
                "lower optimiser.learning_rate"
            )
        return states

    def _place(self) -> tuple[str, DeviceConfig]:
        """Return the device that trains the pools: the run's first, or the CPU if only a cluster's workers have that one."""
        name, config = next(iter(self.devices.items()))
        members = 1 if config.members_per_shard == 1 else MEMBERS  # hosts that cannot be fused have 1
        try:
            find_device(name)
        except ValueError:
            return "cpu", DeviceConfig(members_per_shard=members)
        return name, replace(config, members_per_shard=members, tune=False)

    def _digest(self, pool: HostSampler, hosts: Sequence[nn.Module], views: Sequence[DataView]) -> str:
        """Return a hash of all that determines a pool: task, host, names, device, initial weights and training data."""
        (name, place), task = self._place(), self.task
        device, members = find_device(name), place.members_per_shard
        chip = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
        facts = [FORMAT, torch.__version__, chip, members, task.config.pretrain, pool.root, str(pool.split)]
        facts += [task.batch_size, task.epoch_samples, task.augmentation, task.data.num_classes, task.objective]
        facts += [replace(self.optimiser, seeds=SeedSettingsConfig())]
        facts += [view.timetable for view in views if view.timetable]
        precision = find_precision(name, place.precision)
        facts += [precision] * (precision is not Precision.fp32)
        if device.type == "cpu" and place.uses_own_kernels and task.sizes.narrow:
            facts += ["own kernels", version("numba"), version("llvmlite")]
        digest = hashlib.sha256(repr([*facts, replace(self.host, frozen=False)]).encode())
        own = [type(part) for part in (self.optimiser, task.objective, task.augmentation)]
        for module in [*_modules_of(hosts[0]), *_modules_outside(own)]:
            with suppress(OSError, TypeError):  # a class without a file
                digest.update(inspect.getsource(sys.modules[module]).encode())
        data = task.data
        arrays: list[Any] = [data.train_x, data.train_y, data.mean, data.std]
        for host, view in zip(hosts, views, strict=True):
            arrays += [*state_of(host).items(), view.samples, view.labels, view.classes, view.rate_factor]
        for part in arrays:
            key, value = part if isinstance(part, tuple) else ("", part)
            values = value.detach() if isinstance(value, Tensor) else np.array(value)
            kind = torch.atleast_1d(values)[:0].cpu().numpy().dtype if isinstance(values, Tensor) else values.dtype
            digest.update(f"{key} {kind} {tuple(values.shape)}".encode())
            if isinstance(values, Tensor):
                hash_rows(digest.update, values)
            elif value is not None:
                digest.update(values.tobytes())
        return digest.hexdigest()


def _modules_of(host: nn.Module) -> list[str]:
    """Return the Python modules, other than torch's, that define the classes of a host and its layers, bases included."""
    kinds = {kind for layer in host.modules() for kind in type(layer).__mro__}
    return sorted({kind.__module__ for kind in kinds if kind.__module__.partition(".")[0] not in ("torch", "builtins")})


def _modules_outside(kinds: Sequence[type]) -> list[str]:
    """Return the Python modules outside of Esper that define classes, bases included; for Esper's own, `FORMAT` counts."""
    modules = {base.__module__ for kind in kinds for base in kind.__mro__}
    return sorted(name for name in modules if name.partition(".")[0] not in {"esper", "torch", *sys.stdlib_module_names})


def _folder(chosen: str) -> Path:
    """Return the folder of the pools: the chosen one, or one in the user's cache."""
    return Path(chosen or Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "esper", "pretrained"))


def _read(path: Path, hosts: Sequence[nn.Module]) -> None:
    """Fill hosts with the states in a file.

    Raises:
        CheckpointError: the file is missing, damaged, or of another form.
    """
    state = load(path)
    with entries(path):
        states = [{key: rows[index] for key, rows in state.items()} for index in range(len(hosts))]
        for host, one in zip(hosts, states, strict=True):
            if {key: part.shape for key, part in state_of(host).items()} != {key: part.shape for key, part in one.items()}:
                raise ValueError("it holds other hosts")
        for host, one in zip(hosts, states, strict=True):
            _fill(host, one)


def _write(path: Path, states: Sequence[State]) -> None:
    """Write the states of hosts, or warn that the disk does not allow it."""
    own = path.with_suffix(f".{platform.node()}.{os.getpid()}")  # other runs, also of other machines, may write the file now
    try:
        with disk(f"write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(own, encode({key: torch.stack([state[key] for state in states]) for key in states[0]}))
            os.replace(own, path)
    except DiskError as error:
        warnings.warn(f"pretrained hosts are not cached: {error}; or set task.pretrain_folder", stacklevel=2)


@torch.no_grad()
def _fill(host: nn.Module, state: State) -> None:
    """Copy a state into a host."""
    for key, part in state_of(host).items():
        part.copy_(state[key])
