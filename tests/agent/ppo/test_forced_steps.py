"""Forced steps, at which only waiting is legal: the critic learns from them and the policy does not."""

# T steps, N hosts

import numpy as np
import pytest
import torch

from tests.agent.small_policy import corridor, generator, make
from tests.agent.toy_envs import random_rollout


def test_forced_steps_give_the_policy_no_gradient() -> None:
    agent = make(entropy_coef=1.0)
    rollout = random_rollout(agent, np.random.default_rng(0), observe=lambda t: corridor())
    assert rollout.forced_TN.all()
    targets = agent._targets(rollout)
    _, terms = agent._losses(rollout, targets, torch.arange(8))
    (terms["policy_loss"] - terms["entropy"]).backward()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in agent.network.parameters())
    _, terms = agent._losses(rollout, targets, torch.arange(8))
    terms["value_loss"].backward()
    assert agent.network.core.weight_ih_l0.grad.any(), "the critic learns there all the same"
    assert agent.update(rollout, progress=0.0, generator=generator())["forced_fraction"] == 1.0


def test_advantages_are_normalised_over_unforced_steps() -> None:
    agent = make()
    rollout = random_rollout(agent, np.random.default_rng(0), observe=lambda t: corridor(open_hosts=3))
    rollout.reward_TN[:, 3:] += 1000.0
    chosen = agent._targets(rollout).advantage_TN[:, :3]
    assert chosen.mean().item() == pytest.approx(0, abs=1e-5)
    assert chosen.std(correction=0).item() == pytest.approx(1, abs=1e-4)


def test_forced_steps_enter_neither_policy_loss_nor_entropy() -> None:
    agent = make()
    rollout = random_rollout(agent, np.random.default_rng(0), observe=lambda t: corridor(open_hosts=3))
    targets = agent._targets(rollout)
    _, some = agent._losses(rollout, targets, torch.arange(3))
    _, every = agent._losses(rollout, targets, torch.arange(8))
    for name in ("policy_loss", "entropy"):
        torch.testing.assert_close(some[name], every[name])


def test_the_advantage_floor_damps_uneventful_rollouts() -> None:
    agent = make(advantage_floor=0.1)
    rollout = random_rollout(agent, np.random.default_rng(0))
    rollout.value_TN[:], rollout.reward_TN[:] = 0.0, 1e-6 * rollout.reward_TN
    assert agent._targets(rollout).advantage_TN.abs().max() < 1e-3
