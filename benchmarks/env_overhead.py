"""Trains and measures hosts for an episode, by the environment with empty slots or by the bare fused loop below it.

    python benchmarks/env_overhead.py env
    python benchmarks/env_overhead.py bare

Both train the same hosts on the same data in the same order and validate once an epoch; the environment adds actions, lifecycle,
growth potential, the governor with its snapshots, rewards and observations. Run the two in turn, several times, and compare the
printed seconds, which leave out start-up. Results: benchmarks/README.md.
"""

import argparse
import time

import numpy as np
import torch

from esper.env.actions import Head
from esper.env.growth_env import GrowthEnv
from esper.env.shard import DeviceConfig
from esper.governor import WatchdogConfig
from esper.population.blueprints import ConvHeavyConfig, ConvLightConfig, DepthwiseConfig, NormConfig
from esper.population.lifecycle import OneSeedConfig
from esper.reward import ShapedConfig
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


def bare(env: GrowthEnv, epochs: int) -> float:
    nothing = np.zeros((1, env.num_envs, env.layout.num_slots), dtype=np.float32)
    begun = time.perf_counter()
    for _ in range(epochs):
        env.crew.train_epoch(env.orders(), probe=False)
        env.crew.validate(nothing)
        env.time += 1
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("how", choices=("env", "bare"))
    parser.add_argument("--hosts", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=40)
    given = parser.parse_args()
    torch.set_num_threads(1)
    task = DigitsConfig().build()
    env = GrowthEnv(
        task=task,
        slots=OneSeedConfig(),
        blueprints=BLUEPRINTS,
        reward=ShapedConfig().build(gamma=0.99),
        governor=WatchdogConfig().build(num_classes=10),
        devices={"cpu": DeviceConfig()},
        num_hosts=given.hosts,
        num_steps=10 * given.epochs,  # no episode ends here
    )
    env.reset()
    run = {"env": by_env, "bare": bare}[given.how]
    run(env, 2)  # warm-up
    seconds = run(env, given.epochs)
    loss = env.crew.validate(np.zeros((1, given.hosts, env.layout.num_slots), dtype=np.float32)).loss_VM.mean()
    print(f"{given.how}: {given.hosts} hosts x {given.epochs} epochs: {seconds:.3f} s, validation loss {loss:.4f}")
    env.close()


if __name__ == "__main__":
    main()
