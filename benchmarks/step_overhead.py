"""Processor time of the parts of a step besides training: rewards, masks and observation of many hosts together.

    python benchmarks/step_overhead.py
    python benchmarks/step_overhead.py --hosts 64 --repetitions 300 --profile

Hosts of `task=digits` hold seeds of all stages in three slots; nothing is trained. Timed per step are the terms of the reward,
the costs that they read, the legality of operations, and the features of hosts and slots. Results: benchmarks/README.md.
"""

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from env_overhead import BLUEPRINTS
from paired_timing import claim

from esper.config import GROUPS
from esper.env.base import EnvParts
from esper.env.growth_env import GrowthConfig, GrowthEnv
from esper.governor.watchdog import WatchdogConfig
from esper.hosts.cnn import CNNConfig
from esper.lifecycle.gates import StrictConfig
from esper.lifecycle.operations import roles
from esper.lifecycle.slots import EveryBlockConfig
from esper.lifecycle.stages import OCCUPIED, Op, Stage, empty
from esper.pool.devices import DeviceConfig
from esper.reward.modes import RewardConfig
from esper.reward.signals import StepSignals
from esper.task.digits import DigitsConfig


def make(num_hosts: int, reward: RewardConfig) -> GrowthEnv:
    """Build an environment with a slot in every block."""
    parts = EnvParts(
        task=DigitsConfig(),
        host=CNNConfig(),
        slots=EveryBlockConfig(),
        gates=StrictConfig(),
        blueprints=BLUEPRINTS,
        reward=reward,
        governor=WatchdogConfig(),
        devices={"cpu": DeviceConfig()},
        gamma=0.99,
        num_hosts=num_hosts,
        num_steps=20,
    )
    env = GrowthConfig().build(parts)
    env.reset()
    return env


def grow(env: GrowthEnv) -> None:
    """Fill the slots with seeds of random stages whose features are measured."""
    rng, state = np.random.default_rng(0), empty(env.num_envs, env.layout.num_slots)
    shape = state.stage.shape
    state.stage[:] = rng.integers(len(Stage), size=shape)
    there = state.within(*OCCUPIED)
    state.blueprint[:] = np.where(there, rng.integers(len(BLUEPRINTS), size=shape), -1)
    for name in ("alpha", "contribution", "contribution_error", "accuracy", "accuracy_start", "gradient_ratio", "gradient_norm"):
        getattr(state, name)[:] = rng.random(shape)
    for name in ("stage_age", "seed_age", "ramp_done", "ramp_total"):
        getattr(state, name)[:] = rng.integers(9, size=shape)
    state.measured[:] = there
    env.state, env.time = state, 5


def once(env: GrowthEnv, signals: StepSignals) -> None:
    """Compute what a step computes besides training, measuring and the governor."""
    seen = replace(signals, **env.costs.signals(signals.before, signals.after))
    env.reward(seen)
    env.legal_slots()  # for the action
    env.observation()  # with the masks of the next action


def count(env: GrowthEnv) -> None:
    """Count the FLOPs of a step with leave-one-out in three slots."""
    now = roles(env.state, env.slots)
    alpha_VNS = env.state.alpha * (1 - np.eye(4, 3, k=-1, dtype=np.float32))[:, None]
    env.meter.train(now, 1, 1)
    env.meter.measure(now, alpha_VNS, 1)


def milliseconds(run: Callable[[], object], repetitions: int) -> np.ndarray:
    """Return the processor time of this thread for each call [ms]."""
    spent = np.zeros(repetitions)
    for repetition in range(repetitions):
        begun = time.thread_time_ns()
        run()
        spent[repetition] = (time.thread_time_ns() - begun) / 1e6
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--reward", nargs="+", choices=GROUPS["reward"], default=["shaped", "sparse"])
    parser.add_argument("--profile", action="store_true", help="also print a profile")
    parser.add_argument("--quick", action="store_true", help="a few hosts and calls: checks the script, measures nothing")
    given = parser.parse_args()
    if given.quick:
        given.hosts, given.repetitions = 4, 5
    torch.set_num_threads(1)
    for name in given.reward:
        env = make(given.hosts, GROUPS["reward"][name]())
        nothing = np.zeros((given.hosts, 8), dtype=np.int64)
        *_, info = env.step(nothing)
        before = env.state
        grow(env)
        signals: StepSignals = replace(info["signals"], before=before, after=env.state, op_N=np.full(given.hosts, Op.WAIT))
        run = partial(once, env, signals)
        parts: dict[str, Callable[[], object]] = {
            "together": run,
            "costs": partial(env.costs.signals, signals.before, signals.after),
            "reward": partial(env.reward, signals),
            "masks": env.legal_slots,
            "observation": env.observation,
            "FLOP count (apart)": partial(count, env),
        }
        milliseconds(run, 20)  # warm-up
        spent = {part: milliseconds(work, given.repetitions) for part, work in parts.items()}
        claim(f"reward={name}, together [ms of processor time]", spent["together"])
        shown = ", ".join(f"{part} {np.median(ms):.3f} (min {ms.min():.3f})" for part, ms in spent.items())
        print(f"reward={name}, {given.hosts} hosts x {env.layout.num_slots} slots, median ms of processor time: {shown}")
        if given.profile:
            with cProfile.Profile() as profile:
                for _ in range(given.repetitions):
                    run()
            pstats.Stats(profile).sort_stats("tottime").print_stats(18)
        env.close()


if __name__ == "__main__":
    main()
