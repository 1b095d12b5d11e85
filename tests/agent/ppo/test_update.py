"""The update: schedules, the KL target, gradient clipping, and its statistics."""

# T steps, N hosts

from typing import Any

import numpy as np
import pytest
import torch

from esper.agent.ppo.advantages import Targets
from esper.agent.ppo.diagnostics import explained_variance
from esper.agent.ppo.ppo import PPO
from esper.buffer.rollout import Rollout
from esper.env.actions import Head
from tests.agent.small_policy import SPEC, corridor, generator, make, update, weights
from tests.agent.toy_envs import random_observation, random_rollout


def test_the_entropy_bonus_raises_entropy() -> None:
    agent = make(entropy_coef=1.0, entropy_final=1.0, learning_rate=1e-2, target_kl=1e9, wait_bias=3.0)
    entropies = [update(agent, seed)["entropy"] for seed in range(6)]
    assert entropies[-1] > entropies[0] + 0.1


def test_schedules_are_linear_in_progress() -> None:
    agent = make(learning_rate=1e-3, entropy_coef=0.02, entropy_final=0.01)
    stats = update(agent, progress=0.25)
    assert stats["learning_rate"] == pytest.approx(0.75e-3)
    assert stats["entropy_coef"] == pytest.approx(0.0175)
    assert agent.optimizer.param_groups[0]["lr"] == pytest.approx(0.75e-3)
    assert agent.optimizer.param_groups[0]["eps"] == 1e-5


def test_at_the_end_of_the_run_nothing_moves() -> None:
    agent = make()
    update(agent)
    before = weights(agent)
    stats = update(agent, progress=1.0)
    assert all(torch.equal(agent.network.state_dict()[name], tensor) for name, tensor in before.items())
    assert stats["kl"] == pytest.approx(0, abs=1e-7)


def followed(agent: PPO, rollout: Rollout) -> tuple[list[tuple[float, float]], list[int]]:
    """KL of each minibatch of an update, over unforced and over all steps, and the minibatches seen at each gradient step."""
    distances, steps = [], []
    losses, step = agent._losses, agent._step

    def spy_losses(rollout: Rollout, targets: Targets, rows: torch.Tensor) -> Any:
        log_ratio, terms = losses(rollout, targets, rows)
        k3 = (log_ratio.exp() - 1 - log_ratio).detach()
        distances.append((k3[~rollout.forced_TN[:, rows]].mean().item(), k3.mean().item()))
        return log_ratio, terms

    def spy_step(*given: Any) -> Any:
        steps.append(len(distances))
        return step(*given)

    agent._losses, agent._step = spy_losses, spy_step
    agent.update(rollout, progress=0.0, generator=generator())
    return distances, steps


def test_the_update_stops_at_the_kl_target() -> None:
    """A minibatch that finds the policy too far is the last, and no step is taken on it."""
    agent = make(target_kl=1e-3, learning_rate=0.05)
    distances, steps = followed(agent, random_rollout(agent, np.random.default_rng(0)))
    assert 1 < len(distances) < 32
    assert [far > 1e-3 for far, _ in distances] == [False] * (len(distances) - 1) + [True]
    assert steps == list(range(1, len(distances)))


def test_kl_is_measured_over_unforced_steps() -> None:
    """At them nothing can change. One host of eight has a choice: over all steps the policy seems an eighth as far."""

    def one_open(target: float) -> tuple[list[tuple[float, float]], list[int]]:
        agent = make(minibatches=1, learning_rate=0.05, target_kl=target)
        return followed(agent, random_rollout(agent, np.random.default_rng(0), observe=lambda t: corridor(open_hosts=1)))

    (_, (far, seemingly), *_), steps = one_open(1e9)
    assert 0 < seemingly < 0.9 * far
    assert len(steps) == 8
    distances, steps = one_open(0.9 * far)
    assert distances[1] == (far, seemingly)
    assert (len(distances), steps) == (2, [1])


def test_gradients_are_clipped_and_their_norm_is_recorded() -> None:
    agent = make(max_grad_norm=1e-9, epochs=1, minibatches=1)
    assert update(agent)["grad_norm"] > 1e-3
    total = sum(parameter.grad.square().sum() for parameter in agent.network.parameters() if parameter.grad is not None)
    assert total.sqrt().item() == pytest.approx(1e-9, rel=1e-2)


def test_explained_variance_compares_acting_values_with_monte_carlo_returns() -> None:
    agent = make(gamma=0.9, lam=0.3)
    rollout = random_rollout(agent, np.random.default_rng(0))
    weights = 0.9 ** np.arange(6)
    reward = rollout.reward_TN.numpy()
    returns = torch.tensor([[(weights[: 6 - t] * reward[t:, n]).sum() for n in range(8)] for t in range(6)])
    rollout.value_TN = (returns + torch.randn(6, 8, generator=generator())).float()
    expected = explained_variance(rollout.value_TN, returns)
    stats = agent.update(rollout, progress=0.0, generator=generator())
    assert stats["explained_variance"] == pytest.approx(expected, abs=1e-4)


def test_values_are_in_units_of_reward() -> None:
    agent = make()
    rollout = random_rollout(agent, np.random.default_rng(0))
    seen = random_observation(SPEC, np.random.default_rng(1))

    def value() -> np.ndarray:
        return agent.act(seen, agent.start(8), is_init=np.ones(8, bool), uniform=np.zeros((8, len(Head)))).value

    before = value()
    rollout.reward_TN *= 1000
    agent._targets(rollout)
    assert agent.popart.deviation > 100
    np.testing.assert_allclose(value(), before, atol=1e-3)
