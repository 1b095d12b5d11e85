"""Non-finite minibatches: dropped and counted, and three in a row end the run."""

# T steps, N hosts

import numpy as np
import pytest
import torch

from esper.agent.ppo.advantages import Targets
from esper.agent.ppo.ppo import PPO
from esper.buffer.rollout import Rollout
from tests.agent.small_policy import corridor, generator, make, update, weights
from tests.agent.toy_envs import random_rollout


def spoiled(agent: PPO, name: str, *places: tuple[int, int]) -> None:
    """Make the targets of later rollouts NaN at these steps and hosts."""
    targets = agent._targets

    def spoil(rollout: Rollout) -> Targets:
        spoiled_targets = targets(rollout)
        for step, host in places:
            getattr(spoiled_targets, name)[step, host] = float("nan")
        return spoiled_targets

    agent._targets = spoil


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("value_TN", "value_loss, gradient of the encoder, gradient of the core, gradient of the critic"),
        ("advantage_TN", "policy_loss, gradient of the encoder, gradient of the core, gradient of the heads"),
    ],
)
@pytest.mark.parametrize("chunk", [0, 2])
def test_three_non_finite_minibatches_end_the_run_without_changing_weights(name: str, said: str, chunk: int) -> None:
    """The error names what is non-finite."""
    agent = make(epochs=3, minibatches=1, chunk=chunk)
    rollout = random_rollout(agent, np.random.default_rng(0), observe=lambda t: corridor(open_hosts=8))
    spoiled(agent, name, (5, 1), (3, 6), (3, 4))
    before = weights(agent)
    with pytest.raises(FloatingPointError, match=f"^non-finite in 3 consecutive minibatches: {said}; lower agent"):
        agent.update(rollout, progress=0.0, generator=generator())
    assert all(torch.equal(agent.network.state_dict()[name], tensor) for name, tensor in before.items())


def test_dropped_and_skipped_minibatches_are_counted_separately() -> None:
    agent = make(epochs=4, minibatches=4, target_kl=1e9)
    spoiled(agent, "value_TN", (2, 5))
    stats = agent.update(random_rollout(agent, np.random.default_rng(0)), progress=0.0, generator=generator())
    assert (stats["minibatches_nonfinite"], stats["minibatches_skipped"]) == (4.0, 0.0)
    assert agent.strikes < 2
    held = make(epochs=4, minibatches=4, target_kl=1e-9)
    stats = held.update(random_rollout(held, np.random.default_rng(0)), progress=0.0, generator=generator())
    assert (stats["minibatches_nonfinite"], stats["minibatches_skipped"]) == (0.0, 15.0)
    assert stats["skipped_fraction"] == 15 / 16


def test_a_healthy_minibatch_clears_the_strikes() -> None:
    agent = make()
    agent.strikes = 2
    update(agent)
    assert agent.strikes == 0
