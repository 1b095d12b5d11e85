"""Steps a second of recurrent PPO, with its updates, in the sandbox of tests/behaviour: ours, or that of sb3-contrib.

    python benchmarks/policy_speed.py ours
    python benchmarks/policy_speed.py sb3
    python benchmarks/policy_speed.py in_turn --rounds 5

Both play the same hosts for the same number of steps, with an LSTM of 64 units and as many weights in all, and take as many
gradient steps on minibatches of the same size. sb3-contrib has no recurrent policy with masks: it sees the same features in one
vector, chooses all eight heads each time (MultiDiscrete), and what is illegal is waiting; ours pays for the masks. With
`--hosts-apart` each host is a Gymnasium environment of its own, as that library is used; without, the sandbox is stepped for all
hosts at once for it too, and the ratio is that of the learners. Seconds leave out start-up and one update of warm-up; those of
the processor are steadier than those of the clock where others use the machine. Needs the `oracles` extra. Results:
benchmarks/README.md.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "behaviour"))

from sandbox import Puzzle, Sandbox, play

from esper.agent.ppo.advantages import Baseline
from esper.agent.ppo.ppo import PPOConfig
from esper.env.actions import Observation

UPDATE = PPOConfig(target_kl=1e9, twins=1, baseline=Baseline.critic)
"""No update ends before its time."""
BLUEPRINTS = len(Puzzle().rent_K)


def make_ours(puzzle: Puzzle, num_hosts: int) -> tuple[Callable[[int], None], int]:
    """What plays and learns so many times, and the number of its weights."""
    env = Sandbox(puzzle, num_hosts=num_hosts)
    agent = UPDATE.build(env.spec, seed=0)
    generator = torch.Generator().manual_seed(0)

    def run(updates: int) -> None:
        for _ in range(updates):
            agent.update(play(env, agent), progress=0.0, generator=generator)

    return run, sum(parameter.numel() for parameter in agent.network.parameters())


def flat(observation: Observation) -> np.ndarray:
    """All features in one vector, blueprints by one bit each."""
    blueprints = np.eye(BLUEPRINTS + 1, dtype=np.float32)[observation.blueprints]
    slots = np.concatenate([observation.slots, blueprints], axis=2)
    return np.concatenate([observation.features, slots.reshape(len(slots), -1)], axis=1)


def spaces_of(sandbox: Sandbox) -> tuple[spaces.Box, spaces.MultiDiscrete]:
    """What is seen, and the eight heads."""
    box = spaces.Box(-1, 1, flat(sandbox.reset()).shape[1:], np.float32)
    return box, spaces.MultiDiscrete(np.array(sandbox.spec.head_sizes))


class OneHost(gymnasium.Env[np.ndarray, np.ndarray]):
    """One host of the sandbox."""

    def __init__(self, puzzle: Puzzle, seed: int) -> None:
        self.sandbox = Sandbox(puzzle, num_hosts=1, seed=seed)
        self.observation_space, self.action_space = spaces_of(self.sandbox)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return flat(self.sandbox.reset())[0], {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward_N, ended_N = self.sandbox.step(action[None])
        return flat(observation)[0], float(reward_N[0]), bool(ended_N[0]), False, {}


class AllHosts(VecEnv):
    """The whole sandbox as stable-baselines3 wants it."""

    def __init__(self, puzzle: Puzzle, num_hosts: int) -> None:
        self.sandbox = Sandbox(puzzle, num_hosts=num_hosts)
        super().__init__(num_hosts, *spaces_of(self.sandbox))

    def reset(self) -> np.ndarray:
        return flat(self.sandbox.reset())

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        observation, reward_N, ended_N = self.sandbox.step(self.actions)
        return flat(observation), reward_N, ended_N, [{} for _ in reward_N]

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


def make_sb3(puzzle: Puzzle, num_hosts: int, *, apart: bool) -> tuple[Callable[[int], None], int]:
    """The same with sb3-contrib."""
    if apart:
        env: VecEnv = DummyVecEnv([partial(OneHost, puzzle, seed) for seed in range(num_hosts)])
    else:
        env = AllHosts(puzzle, num_hosts)
    steps = puzzle.num_steps
    model = RecurrentPPO(
        "MlpLstmPolicy",
        env,
        learning_rate=UPDATE.learning_rate,
        n_steps=steps,
        batch_size=num_hosts * steps // UPDATE.minibatches,
        n_epochs=UPDATE.epochs,
        gamma=UPDATE.gamma,
        gae_lambda=UPDATE.lam,
        clip_range=UPDATE.clip,
        ent_coef=UPDATE.entropy_coef,
        vf_coef=UPDATE.value_coef,
        max_grad_norm=UPDATE.max_grad_norm,
        policy_kwargs={
            "lstm_hidden_size": UPDATE.hidden,
            "shared_lstm": True,
            "enable_critic_lstm": False,
            "net_arch": {"pi": [104], "vf": [132]},  # about as many weights as ours
        },
        seed=0,
        device="cpu",
    )

    def run(updates: int) -> None:
        model.learn(updates * num_hosts * steps, reset_num_timesteps=False)

    return run, sum(parameter.numel() for parameter in model.policy.parameters())


Made = tuple[Callable[[int], None], int]


def timed(run: Callable[[int], None], updates: int) -> tuple[float, float]:
    """Seconds by the clock and of the processor."""
    begun, busy = time.perf_counter(), time.process_time()
    run(updates)
    return time.perf_counter() - begun, time.process_time() - busy


def alone(way: str, made: Made, updates: int, steps: int) -> None:
    run, weights = made
    run(1)  # warm-up
    seconds, busy = timed(run, updates)
    print(f"{way}: {weights} weights, {steps} steps: {steps / seconds:.0f} a second, {steps / busy:.0f} a second of one core")


def in_turn(ways: dict[str, Made], updates: int, steps: int, rounds: int) -> None:
    for way, (run, weights) in ways.items():
        run(1)  # warm-up
        print(f"{way}: {weights} weights")
    print("| round | ours [steps/s] | sb3 [steps/s] | ratio | ratio of processor time |\n|---|---|---|---|---|")
    ratios: list[tuple[float, float]] = []
    for index in range(rounds):
        took = {way: timed(ways[way][0], updates) for way in (ways if index % 2 else reversed(ways))}
        ratios.append((took["sb3"][0] / took["ours"][0], took["sb3"][1] / took["ours"][1]))
        rates = " | ".join(f"{steps / took[way][0]:.0f}" for way in ways)
        print(f"| {index + 1} | {rates} | {ratios[-1][0]:.2f} | {ratios[-1][1]:.2f} |", flush=True)
    clock, processor = np.median(ratios, axis=0)
    print(f"median ratio {clock:.2f}, of processor time {processor:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("how", choices=("ours", "sb3", "in_turn"))
    parser.add_argument("--hosts", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20, help="of an episode")
    parser.add_argument("--updates", type=int, default=5, help="in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hosts-apart", action="store_true", help="give sb3 an environment for each host")
    given = parser.parse_args()
    torch.set_num_threads(1)
    puzzle, steps = Puzzle(num_steps=given.steps), given.updates * given.hosts * given.steps
    make = {"ours": make_ours, "sb3": partial(make_sb3, apart=given.hosts_apart)}
    if given.how == "in_turn":
        in_turn({way: make[way](puzzle, given.hosts) for way in make}, given.updates, steps, given.rounds)
    else:
        alone(given.how, make[given.how](puzzle, given.hosts), given.updates, steps)


if __name__ == "__main__":
    main()
