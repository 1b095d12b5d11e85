"""The recurrent PPO of sb3-contrib in the sandbox, for policy_speed.py. Needs the `oracles` extra."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from esper.agent.ppo.ppo import PPOConfig
from esper.env.sandbox_rules import SandboxRules
from esper.env.spec import Observation
from tests.behaviour.sandbox import Sandbox

BLUEPRINTS = len(SandboxRules().rent_K)


def flat(observation: Observation) -> np.ndarray:
    """Return all features as one vector per host, blueprints one-hot."""
    blueprints = np.eye(BLUEPRINTS + 1, dtype=np.float32)[observation.blueprints]
    slots = np.concatenate([observation.slots, blueprints], axis=2)
    return np.concatenate([observation.features, slots.reshape(len(slots), -1)], axis=1)


def spaces_of(sandbox: Sandbox) -> tuple[spaces.Box, spaces.MultiDiscrete]:
    """Return the spaces of observations and of the eight heads."""
    box = spaces.Box(-1, 1, flat(sandbox.reset()).shape[1:], np.float32)
    return box, spaces.MultiDiscrete(np.array(sandbox.spec.head_sizes))


class OneHost(gymnasium.Env[np.ndarray, np.ndarray]):
    """One host of the sandbox as a Gymnasium environment."""

    def __init__(self, puzzle: SandboxRules, seed: int) -> None:
        self.sandbox = Sandbox(puzzle, num_hosts=1, seed=seed)
        self.observation_space, self.action_space = spaces_of(self.sandbox)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return flat(self.sandbox.reset())[0], {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward_N, ended_N = self.sandbox.step(action[None])
        return flat(observation)[0], float(reward_N[0]), bool(ended_N[0]), False, {}


class AllHosts(VecEnv):
    """The whole sandbox as a vectorised environment of stable-baselines3."""

    def __init__(self, puzzle: SandboxRules, num_hosts: int) -> None:
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


def make_sb3(puzzle: SandboxRules, config: PPOConfig, num_hosts: int, *, apart: bool) -> tuple[Callable[[int], None], int]:
    """Return a function that plays and learns for a number of updates, and the number of weights."""
    if apart:
        env: VecEnv = DummyVecEnv([partial(OneHost, puzzle, seed) for seed in range(num_hosts)])
    else:
        env = AllHosts(puzzle, num_hosts)
    steps = puzzle.num_steps
    model = RecurrentPPO(
        "MlpLstmPolicy",
        env,
        learning_rate=config.learning_rate,
        n_steps=steps,
        batch_size=num_hosts * steps // config.minibatches,
        n_epochs=config.epochs,
        gamma=config.gamma,
        gae_lambda=config.lam,
        clip_range=config.clip,
        ent_coef=config.entropy_coef,
        vf_coef=config.value_coef,
        max_grad_norm=config.max_grad_norm,
        policy_kwargs={
            "lstm_hidden_size": config.hidden,
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
