"""Device settings chosen on the machine: the precision and, by timing a run's hosts, the size of shards (`devices.<name>.tune`).

Each candidate trains the hosts of the first episode for a few batches, with seeds in every second host. Sizes are halved from all
hosts of the device down to single ones, until two in a row are slower than the fastest before them.
"""

# N hosts

import math
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from esper.checkpoint import Checkpoints, load_run
from esper.config import Config, ConfigError
from esper.env.actions import Head, Op, segments
from esper.env.growth_env import GrowthEnv
from esper.notices import notice
from esper.pool.devices import DeviceConfig, find_device, find_precision
from esper.pool.local import ShardPool
from esper.pool.training_step import WORTHWHILE
from esper.task.instances import Split
from esper.text import counted
from esper.training.config_io import from_plain
from esper.training.environment import build_env

BATCHES = {"cpu": 4, "cuda": 2 * WORTHWHILE}
"""Batches of a round by type of device. More: less noise, a later start. On a GPU they suffice for the warm-up to capture a CUDA
graph, which the timed rounds replay, as training does."""
ROUNDS = 3
"""Timed rounds, of which the fastest counts, after one of warm-up."""


class Tuned(NamedTuple):
    """The outcome of timing."""

    config: Config
    """The config with the fastest shard sizes, as if they had been typed."""
    seconds: Mapping[str, Mapping[int, float]]
    """Time of a round by device and hosts per shard [s]."""

    def lines(self) -> list[str]:
        """Return a sentence for each device that was timed."""
        lines: list[str] = []
        for name, times in self.seconds.items():
            best = min(times, key=times.__getitem__)
            others = ", ".join(f"{size}: {taken:.2g} s" for size, taken in times.items() if size != best)
            lines.append(
                f"{name}: {counted(best, 'host')} per shard, {times[best]:.2g} s for {num_batches(name)} batches"
                f"{f' ({others})' if others else ''}; repeat with devices.{name}.members_per_shard={best}"
            )
        return lines


def tuned(config: Config, checkpoints: Checkpoints | None = None) -> Tuned:
    """Fix the settings chosen on the machine: `precision=auto` and, by timing, the shard sizes of devices with `tune=true`.

    Args:
        config: config of the run.
        checkpoints: those of the run; if it has begun, its shard sizes are taken.

    Raises:
        ConfigError: the environment trains no hosts.
        ValueError: a device is not on this machine.
    """
    if config.cluster.is_remote:  # the workers find what their devices offer
        return Tuned(config, {})
    tunes = any(device.tune for device in config.devices.values())
    newest = checkpoints.latest() if checkpoints and tunes else None
    begun = from_plain(load_run(newest)["config"]).devices if newest else {}
    seconds, devices = dict[str, Mapping[int, float]](), dict[str, DeviceConfig]()
    for rank, (name, device) in enumerate(config.devices.items()):
        found = devices[name] = replace(device, precision=find_precision(name, device.precision), tune=False)
        if device.tune and name in begun:
            devices[name] = replace(found, members_per_shard=begun[name].members_per_shard)
        elif device.tune:
            share = config.hosts * (rank + 1) // len(config.devices) - config.hosts * rank // len(config.devices)
            times = seconds[name] = _timed(config, name, found, share)
            devices[name] = replace(found, members_per_shard=min(times, key=times.__getitem__))
    return Tuned(config if devices == config.devices else config.replaced(devices=devices), seconds)


def _timed(config: Config, name: str, device: DeviceConfig, hosts: int) -> dict[int, float]:
    """Return the time of a round by hosts per shard [s]."""
    alone = config.replaced(devices={name: device})
    with closing(build_env(alone, split=Split.TRAINING, hosts=hosts)) as env:
        if not isinstance(env, GrowthEnv):
            raise ConfigError(
                f"devices.{name}.tune=true times hosts in training, and env={config.choice('env')} trains none: leave it out"
            )
        times, slower = dict[int, float](), 0
        for size in (-(-hosts // 2**power) for power in range(math.ceil(math.log2(hosts)) + 1)):
            notice(f"timing shards on {name}", f"{size} hosts per shard")
            times[size] = _round(env, name, size)
            slower = slower + 1 if times[size] > min(times.values()) else 0
            if slower == 2:
                break
        return times


def num_batches(name: str) -> int:
    """Return the number of batches of a round on a device, unless an epoch has fewer."""
    return BATCHES[find_device(name).type]


def _round(env: GrowthEnv, name: str, size: int) -> float:
    """Return the time of a round with shards of this size [s]."""
    assert isinstance(env.pool, ShardPool)
    env.pool.deal({name: DeviceConfig(members_per_shard=size)})
    env.reset(options={"episode": 0})
    env.act(env.permitted(_germinate_every_second(env))[0])
    taken = list[float]()
    for _ in range(1 + ROUNDS):
        begun = time.perf_counter()
        env.pool.train(env.time, num_batches(name) * env.task.batch_size)
        taken.append(time.perf_counter() - begun)
    return min(taken[1:])


def _germinate_every_second(env: GrowthEnv) -> npt.NDArray[np.int64]:
    """Return actions that germinate a seed in every second host: the first legal choice of each head."""
    action_NH = np.zeros((env.num_envs, len(Head)), dtype=np.int64)
    seen = env.observation()
    for head, place in segments(env.layout.head_sizes).items():
        action_NH[:, head] = seen["legal_values"][:, place].argmax(1)
    action_NH[:, Head.SLOT] = env.legal_slots()[:, Op.GERMINATE].argmax(1)
    action_NH[::2, Head.OP] = Op.GERMINATE
    return action_NH
