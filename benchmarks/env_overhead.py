"""Trains and measures hosts for an episode, by the environment with empty slots or by the bare fused loop below it.

    python benchmarks/env_overhead.py env
    python benchmarks/env_overhead.py bare
    python benchmarks/env_overhead.py in_turn
    python benchmarks/env_overhead.py in_turn --way probed

All train the same hosts on the same data in the same order and validate once an epoch; the environment adds actions, lifecycle,
growth potential, the governor with its snapshots, rewards and observations. Run the first two in turn, several times, and compare
the printed seconds, which leave out start-up; `in_turn` does so with the same hosts, an epoch of each after the other, so that
both have the same neighbours on the machine and the same place in memory. `probed` is the bare loop that also measures growth
potential, after every epoch. Results: benchmarks/README.md.
"""

import argparse
import time
from functools import partial

import numpy as np
import torch

from esper.env.actions import Head
from esper.env.growth_env import GrowthEnv
from esper.env.shard import DeviceConfig
from esper.governor.watchdog import WatchdogConfig
from esper.hosts.cnn import CNNConfig
from esper.lifecycle.slots import OneSeedConfig
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


def by_env(env: GrowthEnv, epochs: int) -> float:
    wait = np.zeros((env.num_envs, len(Head)), dtype=np.int64)
    begun = time.perf_counter()
    for _ in range(epochs):
        env.step(wait)
    return time.perf_counter() - begun


def bare(env: GrowthEnv, epochs: int, *, probe: bool = False) -> float:
    nothing = np.zeros((1, env.num_envs, env.layout.num_slots), dtype=np.float32)
    begun = time.perf_counter()
    for _ in range(epochs):
        env.pool.epoch(env.orders(), nothing, probe=probe)
        env.time += 1
    return time.perf_counter() - begun


def make(num_hosts: int, epochs: int) -> GrowthEnv:
    env = GrowthEnv(
        task=DigitsConfig().build(CNNConfig()),
        slots=OneSeedConfig(),
        blueprints=BLUEPRINTS,
        reward=ShapedConfig().build(gamma=0.99),
        governor=WatchdogConfig().build(num_classes=10),
        devices={"cpu": DeviceConfig()},
        num_hosts=num_hosts,
        num_steps=10 * epochs,  # no episode ends here
    )
    env.reset()
    return env


WAYS = {"env": by_env, "bare": bare, "probed": partial(bare, probe=True)}


def in_turn(way: str, num_hosts: int, epochs: int) -> None:
    ways = {name: WAYS[name] for name in (way, "bare")}
    env = make(num_hosts, epochs)
    for one in ways.values():
        one(env, 2)  # warm-up
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for epoch in range(epochs):
        for name in ways if epoch % 2 else reversed(ways):
            seconds[name].append(ways[name](env, 1))
    ratio = np.array(seconds[way]) / np.array(seconds["bare"])
    low, middle, high = np.quantile(ratio, (0.25, 0.5, 0.75))
    total = sum(seconds[way]) / sum(seconds["bare"])
    print(f"{way} / bare over {epochs} pairs of epochs: median {middle:.3f}, quartiles {low:.3f} to {high:.3f}, sums {total:.3f}")
    env.close()


def alone(way: str, num_hosts: int, epochs: int) -> None:
    env = make(num_hosts, epochs)
    run = WAYS[way]
    run(env, 2)  # warm-up
    seconds = run(env, epochs)
    loss = env.pool.validate(np.zeros((1, num_hosts, env.layout.num_slots), dtype=np.float32)).loss_VM.mean()
    print(f"{way}: {num_hosts} hosts x {epochs} epochs: {seconds:.3f} s, validation loss {loss:.4f}")
    env.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("how", choices=(*WAYS, "in_turn"))
    parser.add_argument("--way", choices=("env", "probed"), default="env", help="what in_turn compares with the bare loop")
    parser.add_argument("--hosts", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=40)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.how == "in_turn":
        in_turn(given.way, given.hosts, given.epochs)
    else:
        alone(given.how, given.hosts, given.epochs)


if __name__ == "__main__":
    main()
