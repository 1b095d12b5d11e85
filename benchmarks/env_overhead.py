"""Train and validate hosts with the environment and with the bare fused loop. The ratio is the price of the environment.

    python benchmarks/env_overhead.py
    python benchmarks/env_overhead.py --way probed
    python benchmarks/env_overhead.py --only env

Both ways train the same hosts on the same data in the same order and validate once per epoch. The environment adds actions,
lifecycle, growth potential, the governor with its snapshots, rewards and observations; slots stay empty. `probed` is the bare
loop that also measures growth potential, after every epoch. A round is one epoch of each way, on the same hosts, so both share
neighbours and memory placement. `--only` runs one way alone. Results: benchmarks/README.md.
"""

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from paired_timing import claim, in_turn, ratio, timed

from esper.env.actions import Head
from esper.env.base import EnvParts
from esper.env.growth_env import GrowthConfig, GrowthEnv
from esper.governor.watchdog import WatchdogConfig
from esper.hosts.cnn import CNNConfig
from esper.lifecycle.slots import OneSeedConfig
from esper.pool.devices import DeviceConfig
from esper.reward.modes import ShapedConfig
from esper.seeds.blueprints.cnn import ConvHeavyConfig, ConvLightConfig, DepthwiseConfig
from esper.seeds.blueprints.plain import NormConfig
from esper.task.digits import DigitsConfig

BLUEPRINTS = {
    "norm": NormConfig(),
    "conv_light": ConvLightConfig(),
    "depthwise": DepthwiseConfig(),
    "conv_heavy": ConvHeavyConfig(),
}


def step(env: GrowthEnv) -> None:
    """Train one epoch by a step of the environment in which every host waits."""
    env.step(np.zeros((env.num_envs, len(Head)), dtype=np.int64))


def bare(env: GrowthEnv, *, probe: bool = False) -> None:
    """Train one epoch by the shards alone."""
    no_seeds = np.zeros((1, env.num_envs, env.layout.num_slots), dtype=np.float32)
    env.pool.epoch(env.time, no_seeds, probe=probe)
    env.time += 1


def make(num_hosts: int, epochs: int) -> GrowthEnv:
    """Build an environment whose episode does not end within the benchmark."""
    parts = EnvParts(
        task=DigitsConfig(),
        host=CNNConfig(),
        slots=OneSeedConfig(),
        blueprints=BLUEPRINTS,
        reward=ShapedConfig(),
        governor=WatchdogConfig(),
        devices={"cpu": DeviceConfig()},
        gamma=0.99,
        num_hosts=num_hosts,
        num_steps=10 * epochs,
    )
    env = GrowthConfig().build(parts)
    env.reset()
    return env


WAYS: dict[str, Callable[[GrowthEnv], None]] = {"env": step, "bare": bare, "probed": partial(bare, probe=True)}


def alone(way: str, env: GrowthEnv, epochs: int) -> None:
    """Time one way and print its seconds."""
    took = timed(lambda: [WAYS[way](env) for _ in range(epochs)])
    loss = env.pool.validate(np.zeros((1, env.num_envs, env.layout.num_slots), dtype=np.float32)).loss_VM.mean()
    print(f"{way}: {took.wall:.3f} s, {took.process:.3f} s of process time, validation loss {loss:.4f}")


def compare(way: str, env: GrowthEnv, epochs: int) -> None:
    """Time both ways in turn, an epoch each, and print their ratio."""
    timings = in_turn({name: partial(WAYS[name], env) for name in (way, "bare")}, epochs)
    for clock in ("wall", "process"):
        above, below = ([getattr(one, clock) for one in timings[name]] for name in (way, "bare"))
        low, high = np.quantile(np.array(above) / np.array(below), (0.25, 0.75))
        claim(f"{way} / bare, {clock}", np.array(above) / np.array(below))
        median = ratio(above, below).median
        total = sum(above) / sum(below)
        print(f"{way} / bare, {clock} time: median {median:.3f}, quartiles {low:.3f} to {high:.3f}, ratio of sums {total:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", choices=("env", "probed"), default="env", help="the way to compare with the bare loop")
    parser.add_argument("--only", choices=WAYS, help="run one way alone")
    parser.add_argument("--hosts", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=100, help="rounds of one epoch each")
    parser.add_argument("--quick", action="store_true", help="a few hosts and epochs: checks the script, measures nothing")
    given = parser.parse_args()
    if given.quick:
        given.hosts, given.epochs = 2, 2
    torch.set_num_threads(1)
    env = make(given.hosts, given.epochs)
    names = [given.only] if given.only else [given.way, "bare"]
    for name in 2 * names:
        WAYS[name](env)  # warm-up
    print(f"{given.hosts} hosts, {given.epochs} epochs of each way")
    if given.only:
        alone(given.only, env, given.epochs)
    else:
        compare(given.way, env, given.epochs)
    env.close()


if __name__ == "__main__":
    main()
