"""Minibatches that cannot be learned from: dropped, counted, named, and after three in a row the end of the run."""

import numpy as np
import pytest
import torch

from esper.agent.ppo.learner import PPO
from esper.agent.ppo.nonfinite import first_sick
from esper.agent.ppo.targets import Targets
from esper.buffer.rollout import Rollout
from tests.agent.small_policy import corridor, generator, make, update
from tests.agent.toy_worlds import random_rollout


def spoiled(agent: PPO, name: str, *places: tuple[int, int]) -> None:
    """From now on what a rollout teaches is no number at these steps and hosts."""
    targets = agent._targets

    def spoil(rollout: Rollout) -> Targets:
        taught = targets(rollout)
        for step, host in places:
            getattr(taught, name)[step, host] = float("nan")
        return taught

    agent._targets = spoil


def weights(agent: PPO) -> dict[str, torch.Tensor]:
    """Those that only steps move: the critic's last layer follows the scale of returns as well."""
    return {name: tensor.clone() for name, tensor in agent.network.state_dict().items() if not name.startswith("value.")}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("value_TN", "value_loss, gradient of the encoder, gradient of the core, gradient of the critic not finite"),
        ("advantage_TN", "policy_loss, gradient of the encoder, gradient of the core, gradient of the heads not finite"),
    ],
)
@pytest.mark.parametrize("chunk", [0, 2])
def test_three_minibatches_with_infinite_numbers_end_the_run_and_touch_no_weight(name: str, said: str, chunk: int) -> None:
    """And the sentence says what is torn, and where it begins."""
    agent = make(epochs=3, minibatches=1, chunk=chunk)
    rollout = random_rollout(agent, np.random.default_rng(0), observe=lambda t: corridor(open_hosts=8))
    spoiled(agent, name, (5, 1), (3, 6), (3, 4))
    before = weights(agent)
    with pytest.raises(FloatingPointError, match=f"^{said} in 3 minibatches in a row, first at step 3 of host 4: lower agent"):
        agent.update(rollout, progress=0.0, generator=generator())
    assert all(torch.equal(agent.network.state_dict()[name], tensor) for name, tensor in before.items())


def test_weights_that_are_no_numbers_are_first_felt_in_the_first_step() -> None:
    agent = make(epochs=3, minibatches=1)
    rollout = random_rollout(agent, np.random.default_rng(0))
    targets = agent._targets(rollout)
    agent.network.value_in.weight.data[0, 0] = float("nan")
    assert first_sick(agent.network, rollout, targets, torch.tensor([6, 3])) == (0, 3)
    agent.network.value_in.weight.data[0, 0] = 0.0
    assert first_sick(agent.network, rollout, targets, torch.tensor([6, 3])) is None


def test_minibatches_that_were_dropped_are_told_apart_from_those_left_out() -> None:
    agent = make(epochs=4, minibatches=4, target_kl=1e9)
    spoiled(agent, "value_TN", (2, 5))
    stats = agent.update(random_rollout(agent, np.random.default_rng(0)), progress=0.0, generator=generator())
    assert (stats.minibatches_nonfinite, stats.minibatches_skipped) == (4.0, 0.0)
    assert "minibatches_nonfinite" in stats.metrics()
    assert agent.strikes < 2
    held = make(epochs=4, minibatches=4, target_kl=1e-9)
    stats = held.update(random_rollout(held, np.random.default_rng(0)), progress=0.0, generator=generator())
    assert (stats.minibatches_nonfinite, stats.minibatches_skipped) == (0.0, 15.0)
    assert stats.diagnostics.skipped_fraction == 15 / 16


def test_a_healthy_minibatch_clears_the_strikes() -> None:
    agent = make()
    agent.strikes = 2
    update(agent)
    assert agent.strikes == 0
