"""The terms of the objective on numbers that can be followed by hand, and the replay of rollouts in rows and in chunks."""

# T steps, N hosts, C chunks of a row

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.agent.ppo import ppo
from esper.agent.ppo.advantages import Baseline, leave_one_out, returns_to_go
from esper.agent.ppo.losses import (
    Surrogate,
    chunk_starts,
    clip_fraction,
    clipped_surrogate,
    compute_losses,
    kl_estimate,
    masked_mean,
    per_head_surrogate,
    value_loss,
)
from esper.agent.ppo.ppo import PPO, PPOConfig, PPOMLPConfig
from esper.buffer.rollout import Rollout
from esper.env.actions import Head, segments
from esper.env.spec import Observation
from tests.agent.small_policy import SPEC, generator
from tests.agent.toy_envs import random_observation, random_rollout

RATIO = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1])
ADVANTAGE = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
ALL = torch.ones(5, dtype=torch.bool)


def test_clipped_surrogate_by_hand() -> None:
    # min(1.5, 1.2) = 1.2;  min(-1.5, -1.2) = -1.5;  min(0.5, 0.8) = 0.5;  min(-0.5, -0.8) = -0.8;  2.2
    loss = clipped_surrogate(RATIO.log(), ADVANTAGE, ALL, clip=0.2)
    assert loss.item() == pytest.approx(-(1.2 - 1.5 + 0.5 - 0.8 + 2.2) / 5)


def test_clipping_stops_the_gradient_only_where_the_policy_has_gained_enough() -> None:
    log_ratio = RATIO.log().requires_grad_()
    clipped_surrogate(log_ratio, ADVANTAGE, ALL, clip=0.2).backward()
    expected = -(RATIO * ADVANTAGE) / 5  # d ratio / d ln ratio = ratio
    expected[[0, 3]] = 0.0
    torch.testing.assert_close(log_ratio.grad, expected)


def test_at_ratio_one_the_gradient_is_that_of_reinforce() -> None:
    log_ratio = torch.zeros(5, requires_grad=True)
    clipped_surrogate(log_ratio, ADVANTAGE, ALL, clip=0.2).backward()
    torch.testing.assert_close(log_ratio.grad, -ADVANTAGE / 5)


def test_masked_steps_enter_neither_sum_nor_count() -> None:
    mask = torch.tensor([True, False, False, False, True])
    assert clipped_surrogate(RATIO.log(), ADVANTAGE, mask, clip=0.2).item() == pytest.approx(-(1.2 + 2.2) / 2)
    assert masked_mean(RATIO, torch.zeros(5, dtype=torch.bool)).item() == 0.0


def test_a_masked_infinity_does_not_reach_the_mean() -> None:
    values = torch.tensor([1.0, float("inf")])
    assert masked_mean(values, torch.tensor([True, False])).item() == 1.0


def test_value_loss_is_half_the_squared_error() -> None:
    assert value_loss(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.0])).item() == pytest.approx(0.5 * (4 + 0) / 2)


def test_kl_estimate_by_hand() -> None:
    expected = sum(ratio - 1 - torch.tensor(ratio).log().item() for ratio in RATIO.tolist()) / 5
    assert kl_estimate(RATIO.log(), ALL).item() == pytest.approx(expected, rel=1e-5)
    assert kl_estimate(torch.zeros(5), ALL).item() == 0.0


def test_clip_fraction_counts_both_sides() -> None:
    assert clip_fraction(RATIO.log(), ALL, clip=0.2).item() == pytest.approx(0.8)
    assert clip_fraction(RATIO.log(), torch.tensor([True, False, False, False, True]), clip=0.2).item() == pytest.approx(0.5)


def by_hand(log_ratio: list[list[float]], advantage: list[float], relevant: list[list[bool]], clip: float) -> float:
    """Sum over heads in plain numbers, mean over steps."""
    total = 0.0
    for heads, gain, counts in zip(log_ratio, advantage, relevant, strict=True):
        for number, matters in zip(heads, counts, strict=True):
            if matters:
                ratio = math.exp(number)
                total += min(ratio * gain, min(max(ratio, 1 - clip), 1 + clip) * gain)
    return -total / len(advantage)


@given(st.integers(0, 10_000))
@settings(max_examples=50, deadline=None)
def test_per_head_surrogate_by_hand_in_value_and_gradient(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    log_ratio = (0.4 * torch.randn(6, 3, generator=generator, dtype=torch.float64)).requires_grad_()
    advantage = torch.randn(6, generator=generator, dtype=torch.float64)
    relevant = torch.rand(6, 3, generator=generator) < 0.6
    mask = torch.ones(6, dtype=torch.bool)
    mask[4:] = False
    loss = per_head_surrogate(log_ratio, advantage, relevant, mask, clip=0.2)
    loss.backward()
    rest = (advantage[:4].tolist(), relevant[:4].tolist(), 0.2)
    plain = log_ratio.detach()[:4].tolist()
    assert loss.item() == pytest.approx(by_hand(plain, *rest), abs=1e-12)
    assert not log_ratio.grad[4:].any()
    step = 1e-6
    for t in range(4):
        for head in range(3):
            around = []
            for sign in (1, -1):
                moved = [list(row) for row in plain]
                moved[t][head] += sign * step
                around.append(by_hand(moved, *rest))
            assert log_ratio.grad[t, head].item() == pytest.approx((around[0] - around[1]) / (2 * step), abs=1e-8)


def test_a_clipped_head_leaves_the_others_free_unlike_a_joint_ratio() -> None:
    log_ratio = torch.tensor([[0.5, 0.0]], dtype=torch.float64, requires_grad=True)
    gain, yes = torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.bool)
    per_head_surrogate(log_ratio, gain, torch.ones(1, 2, dtype=torch.bool), yes, clip=0.2).backward()
    assert log_ratio.grad.tolist() == [[0.0, -1.0]]
    joint = torch.tensor([[0.5, 0.0]], dtype=torch.float64, requires_grad=True)
    clipped_surrogate(joint.sum(dim=1), gain, yes, clip=0.2).backward()
    assert joint.grad.tolist() == [[0.0, 0.0]]


def test_at_ratio_one_both_surrogates_have_one_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    advantage = torch.randn(5, generator=generator)
    relevant = torch.rand(5, 3, generator=generator) < 0.5
    by_head, joint = torch.zeros(5, 3, requires_grad=True), torch.zeros(5, 3, requires_grad=True)
    per_head_surrogate(by_head, advantage, relevant, ALL, clip=0.2).backward()
    clipped_surrogate(torch.where(relevant, joint, 0.0).sum(dim=1), advantage, ALL, clip=0.2).backward()
    torch.testing.assert_close(by_head.grad, joint.grad)


def test_a_non_finite_irrelevant_head_has_no_effect() -> None:
    log_ratio = torch.tensor([[0.1, float("inf")], [0.1, float("nan")]], requires_grad=True)
    relevant = torch.tensor([[True, False], [True, False]])
    loss = per_head_surrogate(log_ratio, torch.ones(2), relevant, torch.ones(2, dtype=torch.bool), clip=0.2)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(log_ratio.grad).all()


# ---- replay


def make(kind: type[PPOConfig] = PPOConfig, **config: Any) -> PPO:
    return replace(kind(hidden=16, slot_width=16), **config).build(SPEC, seed=0)


def random_start() -> dict[str, torch.Tensor]:
    return {name: torch.randn(8, 16, generator=generator()) for name in ("h", "c")}


def trained(**config: Any) -> tuple[list[torch.Tensor], list[str]]:
    """Weights and stats after a few updates."""
    agent = make(**{"epochs": 2, **config})
    stats = []
    for seed in range(3):
        rollout = random_rollout(agent, np.random.default_rng(seed), resets=0.2)
        stats.append(repr(agent.update(rollout, progress=0.0, generator=generator(seed))))
    return list(agent.network.parameters()), stats


def test_heads_without_a_choice_in_a_minibatch_change_no_bit() -> None:
    agent = make()
    rollout = random_rollout(agent, np.random.default_rng(0), resets=0.2)
    for place in segments(SPEC.head_sizes).values():  # the first host may choose, the others have one value a head
        rollout.seen.legal_values[:, 1:, place] = False
        rollout.seen.legal_values[:, 1:, place.start] = True
    rollout.action_TNH[:, 1:, Head.BLUEPRINT :] = 0
    targets, rows = agent._targets(rollout), torch.arange(1, 8)
    assert targets.free
    results: list[tuple[dict[str, torch.Tensor], list[torch.Tensor | None]]] = []
    for free in (targets.free, None):
        agent.network.zero_grad()
        log_ratio, terms = agent._losses(rollout, replace(targets, free=free), rows)
        sum(terms.values()).backward()  # pyright: ignore[reportAttributeAccessIssue]
        grads = [None if p.grad is None else p.grad.clone() for p in agent.network.parameters()]
        results.append((terms | {"log_ratio": log_ratio}, grads))
    assert all(torch.equal(results[0][0][name], results[1][0][name]) for name in results[0][0])
    for one, other in zip(results[0][1], results[1][1], strict=True):
        assert torch.equal(torch.zeros(()) if one is None else one, torch.zeros_like(one) if other is None else other)  # pyright: ignore


# ---- chunks


@pytest.mark.parametrize("kind", [PPOConfig, PPOMLPConfig])
def test_one_chunk_per_row_equals_the_whole_row_bit_for_bit(kind: type[PPOConfig]) -> None:
    (rows, results), (chunks, same) = trained(kind=kind), trained(kind=kind, chunk=6)
    assert all(torch.equal(a, b) for a, b in zip(rows, chunks, strict=True))
    assert results == same
    (shorter, _) = trained(kind=kind, chunk=3)
    assert any(not torch.equal(a, b) for a, b in zip(rows, shorter, strict=True))


@pytest.mark.parametrize("chunk", [1, 2, 3, 6])
@pytest.mark.parametrize("begun", [False, True])
def test_chunks_start_from_the_state_of_a_full_unroll(chunk: int, begun: bool) -> None:
    agent = make()
    rollout = random_rollout(agent, np.random.default_rng(0), resets=0.3, initial_state=random_start() if begun else None)
    starts = chunk_starts(agent.network, rollout, chunk)
    state = rollout.initial_state or agent.start(8)
    with torch.no_grad():
        for t in range(6):
            if t % chunk == 0:
                rows = slice(8 * (t // chunk), 8 * (t // chunk + 1))
                for name in ("h", "c"):
                    torch.testing.assert_close(starts[name][rows], state[name], atol=1e-6, rtol=1e-5)
            _, state = agent.network.step(rollout.seen[t], state, rollout.is_init_TN[t])
    assert len(starts["h"]) == 8 * 6 // chunk
    assert not starts["h"].requires_grad


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("resets", [0.0, 0.3])
def test_chunks_replay_the_rollout(resets: float, begun: bool) -> None:
    agent = make(chunk=2, epochs=1)
    for seed in range(3):
        start = random_start() if begun else None
        rollout = random_rollout(agent, np.random.default_rng(seed), resets=resets, initial_state=start)
        assert agent.update(rollout, progress=0.0, generator=generator())["first_ratio_error"] < 1e-5


def test_chunks_with_a_wrong_initial_state_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make(chunk=2, minibatches=1, learning_rate=1e-2)
    for seed in range(10):
        agent.update(random_rollout(agent, np.random.default_rng(seed)), progress=0.0, generator=generator())
    rollout = random_rollout(agent, np.random.default_rng(10))
    rollout.log_prob_TN[5, 3] += 0.5
    with pytest.raises(RuntimeError, match="at step 5 of host 3"):
        agent.update(rollout, progress=0.0, generator=generator())
    rollout.log_prob_TN[5, 3] -= 0.5
    monkeypatch.setattr(ppo, "chunk_starts", lambda network, rollout, chunk: network.start(24))
    with pytest.raises(RuntimeError, match=r"does not reproduce its rollout: at step [2-5] "):
        agent.update(rollout, progress=0.0, generator=generator())


def test_chunk_states_are_recomputed_in_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, seen = make(chunk=2, epochs=3, target_kl=1e9), []

    def spy(network: Any, rollout: Rollout, chunk: int) -> Any:
        weights = [parameter.detach().clone() for parameter in network.parameters()]
        seen.append((weights, chunk_starts(network, rollout, chunk)))
        return seen[-1][1]

    monkeypatch.setattr(ppo, "chunk_starts", spy)
    rollout = random_rollout(agent, np.random.default_rng(0))
    agent.update(rollout, progress=0.0, generator=generator())
    assert len(seen) == 3
    assert not torch.equal(seen[0][1]["h"][8:], seen[1][1]["h"][8:])
    assert not torch.equal(seen[1][1]["h"][8:], seen[2][1]["h"][8:])
    assert rollout.chunks == 1, "the rollout itself is not cut"
    assert not rollout.initial_state


def test_gradients_end_at_the_start_of_a_chunk() -> None:
    """Only the last three of six steps are learned from. In whole rows they ask the first three to remember, in chunks not."""
    agent = make()
    rollout = random_rollout(agent, np.random.default_rng(0))
    targets, reached = agent._targets(rollout), {}
    rollout.forced_TN[:3] = True
    for chunk in (6, 3):
        features = rollout.seen.features.detach().requires_grad_()
        rollout.seen = replace(rollout.seen, features=features)
        part = rollout.folded(chunk)
        part.initial_state = chunk_starts(agent.network, rollout, chunk)
        _, terms = agent._losses(part, targets.folded(chunk), torch.arange(part.num_hosts))
        terms["policy_loss"].backward()
        reached[chunk] = (features.grad != 0).any(dim=2)
    assert reached[6].all()
    assert not reached[3][:3].any()
    assert reached[3][3:].all()


# ---- minibatches


def test_twin_baselines_do_not_depend_on_minibatches() -> None:
    agent = make(twins=4, baseline=Baseline.twins)
    rollout = random_rollout(agent, np.random.default_rng(0), observe=lambda t: open_to_all(t))
    targets = agent._targets(rollout)
    raw = leave_one_out(returns_to_go(rollout.reward_TN, rollout.terminated_TN, gamma=1.0), 4)
    expected = (raw - raw.mean()) / raw.std(correction=0)
    for host in range(8):
        _, terms = agent._losses(rollout, targets, torch.tensor([host]))
        assert terms["policy_loss"].item() == pytest.approx(-expected[:, host].mean().item(), abs=1e-5)


def open_to_all(t: int) -> Observation:
    """Every operation is legal."""
    return random_observation(SPEC, np.random.default_rng(t), legal=1.0)


def test_the_share_of_clipped_gradients_is_recorded() -> None:
    def share(bound: float) -> tuple[float, list[float]]:
        agent = make(max_grad_norm=bound, epochs=1)
        norms, step = [], agent._step

        def spy(*given: Any) -> Any:
            metrics = step(*given)
            norms.append(metrics["grad_norm"])
            return metrics

        agent._step = spy
        stats = agent.update(random_rollout(agent, np.random.default_rng(0)), progress=0.0, generator=generator())
        return stats["grad_clipped"], norms

    none, norms = share(1e9)
    assert none == 0.0
    assert share(1e-9)[0] == 1.0
    some, there = share(sorted(norms)[1] * 1.0001)
    assert some == np.mean([norm > sorted(norms)[1] * 1.0001 for norm in there])
    assert 0 < some < 1


# ---- head by head


def test_both_surrogates_have_the_same_first_gradient() -> None:
    agent = make(surrogate=Surrogate.per_head)
    rollout = random_rollout(agent, np.random.default_rng(0), observe=lambda t: free(t))
    assert rollout.head_log_prob_TNH.count_nonzero() > rollout.log_prob_TN.count_nonzero(), "several heads were drawn in a step"
    targets, gradients = agent._targets(rollout), []
    for surrogate in Surrogate:
        agent.network.zero_grad()
        _, terms = compute_losses(agent.network, rollout, targets, torch.arange(8), clip=0.2, surrogate=surrogate)
        terms["policy_loss"].backward()
        gradients.append([p.grad.clone() for p in agent.network.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) > 0
    for joint, by_head in zip(*gradients, strict=True):
        torch.testing.assert_close(joint, by_head, atol=1e-6, rtol=1e-4)


def free(t: int) -> Observation:
    """Every operation is legal, and parameters are free."""
    return random_observation(SPEC, np.random.default_rng(t), legal=1.0, free=True)


def test_the_surrogates_differ_after_the_first_step() -> None:
    weights = []
    for surrogate in Surrogate:
        agent = make(surrogate=surrogate, clip=0.05, target_kl=1e9, epochs=2)
        rollout = random_rollout(agent, np.random.default_rng(0), observe=free)
        stats = agent.update(rollout, progress=0.0, generator=generator())
        assert stats["first_ratio_error"] < 1e-5
        weights.append(agent.network.op.weight.detach())
    assert not torch.equal(*weights)


def test_the_per_head_surrogate_needs_head_log_probs() -> None:
    rollout = random_rollout(make(), np.random.default_rng(0))
    with pytest.raises(AssertionError, match="the rollout lacks the log-probabilities of the heads"):
        make(surrogate=Surrogate.per_head).update(rollout, progress=0.0, generator=generator())
