"""Replay of a rollout by the update: it reproduces the log probabilities, and any difference is an error."""

# T steps, N hosts

import numpy as np
import pytest
import torch

from tests.agent.small_policy import generator, make, update
from tests.agent.toy_envs import random_rollout


@pytest.mark.parametrize("resets", [0.0, 0.3])
def test_replay_reproduces_the_rollout(resets: float) -> None:
    agent = make(epochs=1)
    for seed in range(3):
        assert update(agent, seed, resets=resets)["first_ratio_error"] < 1e-5


def test_a_replay_that_differs_raises_an_error_with_the_worst_step() -> None:
    agent = make(minibatches=1)
    rollout = random_rollout(agent, np.random.default_rng(0))
    rollout.log_prob_TN[3, 5] += 0.01
    with pytest.raises(RuntimeError, match="step 3 of host 5"):
        agent.update(rollout, progress=0.0, generator=generator())


@pytest.mark.parametrize("chunk", [0, 2])
def test_a_fault_in_any_host_is_noticed_before_the_first_step(chunk: int) -> None:
    agent = make(chunk=chunk, minibatches=8, epochs=1)
    rollout = random_rollout(agent, np.random.default_rng(0))
    for host in range(8):
        old = rollout.log_prob_TN[4, host].clone()
        for wrong in (old + 0.01, torch.tensor(torch.nan)):
            rollout.log_prob_TN[4, host] = wrong
            with pytest.raises(RuntimeError, match=f"step 4 of host {host},"):
                agent.update(rollout, progress=0.0, generator=generator())
        rollout.log_prob_TN[4, host] = old
    agent.update(rollout, progress=0.0, generator=generator())


def test_a_rollout_may_start_in_the_middle_of_an_episode() -> None:
    agent = make()
    update(agent)
    state = {name: torch.randn(8, 16, generator=generator()) for name in ("h", "c")}
    old = random_rollout(agent, np.random.default_rng(0), initial_state=state)
    assert agent.update(old, progress=0.0, generator=generator())["first_ratio_error"] < 1e-5
    old = random_rollout(agent, np.random.default_rng(0), initial_state=state)
    old.initial_state = {}
    with pytest.raises(RuntimeError, match="does not reproduce"):
        agent.update(old, progress=0.0, generator=generator())


def test_forgotten_resets_are_noticed() -> None:
    agent = make(minibatches=1, learning_rate=1e-2)
    for seed in range(20):
        update(agent, seed, resets=0.3)
    rollout = random_rollout(agent, np.random.default_rng(9), resets=0.3)
    rollout.is_init_TN[1:] = False
    with pytest.raises(RuntimeError, match="does not reproduce its rollout"):
        agent.update(rollout, progress=0.0, generator=generator())
