"""A small policy for tests, and an update from a random rollout."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from esper.agent.ppo.advantages import Baseline
from esper.agent.ppo.ppo import PPO, PPOConfig
from esper.env.actions import Op
from tests.agent.toy_envs import blank, make_spec, random_rollout

SPEC = make_spec(hosts=8, steps=6)
SMALL = PPOConfig(hidden=16, slot_width=16, twins=1, baseline=Baseline.critic)


def make(seed: int = 0, **config: Any) -> PPO:
    return replace(SMALL, **config).build(SPEC, seed=seed)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def update(agent: PPO, seed: int = 0, progress: float = 0.0, **rollout: Any) -> dict[str, float]:
    played = random_rollout(agent, np.random.default_rng(seed), **rollout)
    return agent.update(played, progress=progress, generator=generator())


def corridor(*, open_hosts: int = 0) -> Any:
    """Return observations in which only waiting is legal, except for the first hosts."""
    observation = blank(SPEC)
    observation.features[:] = np.random.default_rng(0).standard_normal(observation.features.shape)
    observation.legal_slots[:open_hosts, Op.GERMINATE] = True
    return observation


def weights(agent: PPO) -> dict[str, torch.Tensor]:
    """Return copies of the weights that only gradient steps change: PopArt rescales the last layer of the critic too."""
    return {name: tensor.clone() for name, tensor in agent.network.state_dict().items() if not name.startswith("value.")}
