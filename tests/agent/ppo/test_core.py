"""The cores: the LSTM forgets at resets only, the feed-forward core at every step."""

# T steps, N hosts, R units

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from esper.agent.ppo.core import FeedForward, Recurrent
from esper.agent.ppo.ppo import PPO, PPOConfig, PPOMLPConfig
from esper.env.actions import Head
from tests.agent.toy_envs import make_spec, random_observation, random_rollout

SPEC = make_spec(hosts=8, steps=6)


def make(**config: Any) -> PPO:
    return replace(PPOMLPConfig(hidden=16, slot_width=16), **config).build(SPEC, seed=0)


def grown(core: Any) -> Any:
    """With weights that are not small anywhere."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return core


@pytest.mark.parametrize("resets", [0.0, 0.2, 1.0])
def test_the_lstm_follows_its_equations(resets: float) -> None:
    """i, f, g, o from weights and biases, one step of one host at a time, in float64."""
    core = grown(Recurrent(3)).double()
    generator = torch.Generator().manual_seed(1)
    input_TNR = torch.randn(7, 4, 3, generator=generator, dtype=torch.float64)
    start = {name: torch.randn(4, 3, generator=generator, dtype=torch.float64) for name in ("h", "c")}
    is_init_TN = torch.rand(7, 4, generator=generator) < resets
    output_TNR, end = core.unroll(input_TNR, start, is_init_TN)
    for n in range(4):
        h, c = start["h"][n], start["c"][n]
        for t in range(7):
            if is_init_TN[t, n]:
                h, c = torch.zeros(3).double(), torch.zeros(3).double()
            gates = core.weight_ih_l0 @ input_TNR[t, n] + core.bias_ih_l0 + core.weight_hh_l0 @ h + core.bias_hh_l0
            enter, forget, new, leave = gates.split(3)
            c = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
            h = leave.sigmoid() * c.tanh()
            torch.testing.assert_close(output_TNR[t, n], h, atol=1e-12, rtol=0)
        torch.testing.assert_close(end["h"][n], h, atol=1e-12, rtol=0)
        torch.testing.assert_close(end["c"][n], c, atol=1e-12, rtol=0)


def test_the_feed_forward_core_depends_on_one_step_only() -> None:
    core = grown(FeedForward(5))
    assert core.start(3) == {}
    input_TNR = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(1))
    changed = input_TNR.clone()
    changed[1, 2] += 1.0
    (before, state), (after, _) = (core.unroll(given, {}, torch.zeros(4, 3, dtype=torch.bool)) for given in (input_TNR, changed))
    assert state == {}
    differs = (before != after).any(dim=2)
    assert differs.nonzero().tolist() == [[1, 2]]
    assert before.abs().max() < 1


def test_both_cores_have_the_same_number_of_weights() -> None:
    weights = [sum(p.numel() for p in core.parameters() if p.dim() == 2) for core in (Recurrent(16), FeedForward(16))]
    assert weights[0] == weights[1] == 8 * 16**2


def test_a_feed_forward_policy_depends_on_the_present_observation_only() -> None:
    agent, rng = make(), np.random.default_rng(0)
    observations = [random_observation(SPEC, rng) for _ in range(4)]
    uniform = rng.random((8, len(Head)))

    def last(order: list[int], is_init: bool) -> tuple[np.ndarray, np.ndarray]:
        state = agent.start(8)
        assert state == {}
        for index in order:
            decision = agent.act(observations[index], state, is_init=np.full(8, is_init), uniform=uniform)
            state = decision.state
            assert state == {}
        return decision.log_prob, decision.value

    there = last([0, 1, 2, 3], False)
    assert all(np.array_equal(a, b) for a, b in zip(there, last([2, 0, 3], True), strict=True))
    remembers = PPOConfig(hidden=16, slot_width=16).build(SPEC, seed=0)
    values = []
    for order in ([0, 3], [1, 3]):
        state = remembers.start(8)
        for index in order:
            decision = remembers.act(observations[index], state, is_init=np.zeros(8, bool), uniform=uniform)
            state = decision.state
        values.append(decision.value)
    assert (values[0] != values[1]).all(), "the LSTM, for comparison, remembers"


@pytest.mark.parametrize("chunk", [0, 2])
def test_a_feed_forward_policy_replays_its_rollout(chunk: int) -> None:
    agent = make(chunk=chunk)
    for seed in range(3):
        rollout = random_rollout(agent, np.random.default_rng(seed), resets=0.3)
        stats = agent.update(rollout, progress=0.0, generator=torch.Generator().manual_seed(0))
        assert stats["first_ratio_error"] < 1e-5
        assert not any(name.startswith("core_") for name in stats)


def test_resets_do_not_affect_a_feed_forward_policy() -> None:
    agent = make(minibatches=1)
    rollout = random_rollout(agent, np.random.default_rng(0), resets=0.3)
    rollout.is_init_TN[:] = ~rollout.is_init_TN
    assert agent.update(rollout, progress=0.0, generator=torch.Generator().manual_seed(0))["first_ratio_error"] < 1e-5


def test_recurrent_and_feed_forward_policies_differ_in_the_core_only() -> None:
    names = [
        {
            name
            for name, _ in config(hidden=16, slot_width=16).build(SPEC, seed=0).network.named_parameters()
            if "core." not in name
        }
        for config in (PPOConfig, PPOMLPConfig)
    ]
    assert names[0] == names[1]
