"""Environments of a few steps whose best policy is known, and a loop that trains a policy in them."""

# N hosts, S slots, K blueprints, V values of all parameter heads, T steps

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from esper.agent.ppo.ppo import PPO, PPOConfig
from esper.buffer.rollout import Rollout
from esper.buffer.transition import Decision, State
from esper.env.actions import Head, Op, legal_values
from esper.env.spec import EnvSpec, Observation

FEATURES = ("time_left", "cue", "noise")
SLOT_FEATURES = ("mark", "noise")


def make_spec(*, hosts: int = 8, steps: int = 4, slots: int = 3, blueprints: int = 4) -> EnvSpec:
    return EnvSpec(
        num_hosts=hosts,
        num_steps=steps,
        slot_names=tuple(f"slot{i}" for i in range(slots)),
        blueprint_names=tuple(f"blueprint{i}" for i in range(blueprints)),
        seed_params=tuple((8 * (kind + 1),) * slots for kind in range(blueprints)),
        feature_names=FEATURES,
        slot_feature_names=SLOT_FEATURES,
    )


def blank(spec: EnvSpec, hosts: int | None = None) -> Observation:
    """Return observations of zeros in which only waiting is legal."""
    n, slots, blueprints = hosts or spec.num_hosts, spec.num_slots, len(spec.blueprint_names)
    legal_slots = np.zeros((n, len(Op), slots), dtype=np.bool_)
    legal_slots[:, Op.WAIT] = True
    return Observation(
        features=np.zeros((n, len(spec.feature_names)), np.float32),
        slots=np.zeros((n, slots, len(spec.slot_feature_names)), np.float32),
        blueprints=np.full((n, slots), blueprints),
        legal_slots=legal_slots,
        legal_values=legal_values(n, blueprints),
    )


def random_observation(
    spec: EnvSpec, rng: np.random.Generator, *, hosts: int | None = None, free: bool = False, legal: float = 0.5
) -> Observation:
    """Random features and masks; with `free`, parameters have random masks instead of pinned values."""
    seen = blank(spec, hosts)
    seen.features[:] = rng.standard_normal(seen.features.shape)
    seen.slots[:] = rng.standard_normal(seen.slots.shape)
    seen.blueprints[:] = rng.integers(0, len(spec.blueprint_names) + 1, seen.blueprints.shape)
    seen.legal_slots[:] = rng.random(seen.legal_slots.shape) < legal
    seen.legal_slots[:, Op.WAIT] = True
    if free:
        start = 0
        for size in spec.head_sizes[Head.BLUEPRINT :]:
            column = seen.legal_values[:, start : start + size]
            column[:] = rng.random(column.shape) < 0.5
            column[np.arange(len(column)), rng.integers(0, size, len(column))] = True
            start += size
    return seen


def random_rollout(
    agent: PPO,
    rng: np.random.Generator,
    *,
    resets: float = 0.0,
    observe: Callable[[int], Observation] | None = None,
    initial_state: State | None = None,
) -> Rollout:
    """Return a rollout of random observations and rewards, whose sub-episodes end with probability `resets` per step."""
    spec = agent.spec
    rollout, state = Rollout(spec), initial_state or agent.start(spec.num_hosts)
    rollout.initial_state = initial_state or {}
    is_init = np.full(spec.num_hosts, initial_state is None)
    for t in range(spec.num_steps):
        observation = observe(t) if observe else random_observation(spec, rng, legal=0.3)
        decision = agent.act(observation, state, is_init=is_init, uniform=rng.random((spec.num_hosts, len(Head))))
        terminated = (rng.random(spec.num_hosts) < resets) | (t == spec.num_steps - 1)
        reward = rng.standard_normal(spec.num_hosts).astype(np.float32)
        rollout.add(observation, decision, reward=reward, terminated=terminated, is_init=is_init)
        state, is_init = decision.state, terminated
    return rollout


@dataclass
class ToyEnv:
    """An environment of T steps."""

    spec: EnvSpec
    rng: np.random.Generator

    def reset(self) -> None:
        """Start a new episode of every host."""

    def observe(self, t: int) -> Observation:
        raise NotImplementedError

    def pay(self, t: int, decision: Decision) -> tuple[np.ndarray, np.ndarray]:
        """Return rewards, and which sub-episodes ended early."""
        raise NotImplementedError


def play(agent: PPO, env: ToyEnv, *, greedy: bool = False, always_init: bool = False) -> Rollout:
    spec, rng = env.spec, env.rng
    env.reset()
    rollout, state = Rollout(spec), agent.start(spec.num_hosts)
    is_init = np.ones(spec.num_hosts, dtype=np.bool_)
    for t in range(spec.num_steps):
        observation = env.observe(t)
        uniform = rng.random((spec.num_hosts, len(Head)))
        decision = agent.act(observation, state, is_init=is_init, uniform=uniform, greedy=greedy)
        reward, ended = env.pay(t, decision)
        terminated = ended | (t == spec.num_steps - 1)
        rollout.add(observation, decision, reward=reward, terminated=terminated, is_init=is_init)
        state, is_init = decision.state, np.full_like(terminated, True) if always_init else terminated
    return rollout


def learn(
    env: ToyEnv, updates: int, *, seed: int = 0, kind: type[PPOConfig] = PPOConfig, until: float = math.inf, **config: Any
) -> PPO:
    """Return a small policy after a number of updates, or as soon as its mean return is above `until`."""
    torch.set_num_threads(1)
    small = replace(kind(hidden=16, slot_width=16, learning_rate=1e-2, minibatches=2), **config)
    agent = small.build(env.spec, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    judge = copy(env)
    judge.rng = np.random.default_rng(99)  # so that judging changes nothing in the training
    for update in range(updates):
        agent.update(play(agent, env), progress=update / updates, generator=generator)
        if until < math.inf and update % 5 == 4 and mean_return(agent, judge) > until:
            break
    return agent


def mean_return(agent: PPO, env: ToyEnv, *, always_init: bool = False) -> float:
    """Return the mean return of greedy actions."""
    return float(play(agent, env, greedy=True, always_init=always_init).reward_TN.sum(dim=0).mean())
