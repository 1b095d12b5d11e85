"""Diagnostics: each number against a second computation; computing them does not change learning."""

# T steps, N hosts, B = T * N decisions, C composite actions, H heads, R units of the core

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from sklearn.metrics import explained_variance_score
from torch import Tensor, nn

from esper.agent.ppo.advantages import Baseline
from esper.agent.ppo.core import Recurrent
from esper.agent.ppo.diagnostics import (
    HEADS,
    PARTS,
    QUARTERS,
    PolicyEvaluation,
    calibration,
    core_health,
    error_by_quarter,
    evaluate_rollout,
    explained_variance,
    gradient_norms,
    head_stats,
    parts_of,
    ratio_factors,
    top_blueprint_share,
)
from esper.agent.ppo.distribution import ActionDistribution
from esper.agent.ppo.losses import Reference
from esper.agent.ppo.network import Outputs
from esper.agent.ppo.ppo import PPO, PPOConfig, PPOMLPConfig
from esper.agent.scripted.base import Wait
from esper.buffer.rollout import Rollout
from esper.env.actions import Head
from esper.telemetry.tags import METRICS, tags_of
from tests.agent.ppo.enumeration import enumerated, row_of
from tests.agent.ppo.test_distribution import random_distribution
from tests.agent.toy_envs import blank, make_spec, random_observation, random_rollout

SPEC = make_spec(hosts=8, steps=6)
SMALL = PPOConfig(hidden=16, slot_width=16, target_kl=1e9, twins=1, baseline=Baseline.critic)


def make(seed: int = 0, **config: Any) -> PPO:
    return replace(SMALL, **config).build(SPEC, seed=seed)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rollout_of(agent: PPO, seed: int = 0, **kinds: Any) -> Rollout:
    return random_rollout(agent, np.random.default_rng(seed), **kinds)


# ---- the critic


def test_explained_variance_by_hand() -> None:
    target = torch.tensor([1.0, 2.0, 3.0, 6.0])
    assert explained_variance(target, target) == 1.0
    assert explained_variance(target + 10, target) == 1.0  # a constant error explains as well
    assert explained_variance(torch.zeros(4), target) == 0.0
    value = torch.tensor([1.0, 3.0, 2.0, 5.0])  # errors 0, -1, 1, 1: variance 0.6875; target variance 3.5
    assert explained_variance(value, target) == pytest.approx(1 - 0.6875 / 3.5)


def test_explained_variance_of_a_constant_is_nan() -> None:
    assert explained_variance(torch.arange(3.0), torch.ones(3)) != explained_variance(torch.arange(3.0), torch.ones(3))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), floor=st.floats(1e-6, 100), noise=st.floats(0, 3))
def test_the_floor_applies_only_below_itself(seed: int, floor: float, noise: float) -> None:
    rng = np.random.default_rng(seed)
    target = torch.from_numpy(rng.standard_normal((7, 5)))
    value = target + noise * torch.from_numpy(rng.standard_normal((7, 5)))
    floored = explained_variance(value, target, floor=floor)
    spread = float(target.var(correction=0))
    if floor <= spread:
        oracle = explained_variance_score(target.flatten().numpy(), value.flatten().numpy())
        assert floored == pytest.approx(oracle, abs=1e-9)
        assert floored == pytest.approx(explained_variance(value, target), abs=1e-9)
    else:
        assert 1 - floored == pytest.approx((1 - explained_variance(value, target)) * spread / floor, rel=1e-6, abs=1e-12)


def test_the_floor_bounds_explained_variance_of_nearly_equal_returns() -> None:
    target = 5 + 1e-6 * torch.randn(40, generator=generator(), dtype=torch.float64)
    value = 5 + 1e-3 * torch.randn(40, generator=generator(1), dtype=torch.float64)
    assert explained_variance(value, target) < -1e5
    assert explained_variance(value, target, floor=0.01) == pytest.approx(1, abs=1e-3)
    assert explained_variance(target, torch.full_like(target, 5), floor=0.01) == pytest.approx(1, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.01, 100))
def test_calibration_is_the_least_squares_line(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    value, target = scale * rng.standard_normal(30), rng.standard_normal(30)
    oracle = scipy_stats.linregress(value, target)
    found = calibration(torch.from_numpy(value).view(6, 5), torch.from_numpy(target).view(6, 5))
    assert found["value_slope"] == pytest.approx(oracle.slope, rel=1e-6, abs=1e-9)
    assert found["value_intercept"] == pytest.approx(oracle.intercept, rel=1e-6, abs=1e-9)


def test_calibration_needs_values_that_vary() -> None:
    assert calibration(torch.full((4,), 2.0), torch.arange(4.0)) == {}


def test_errors_by_quarter_of_the_prediction_by_hand() -> None:
    value = torch.tensor([[7.0, 1.0, 5.0, 3.0], [2.0, 8.0, 4.0, 6.0]])
    target = value + torch.tensor([[40.0, 1.0, 30.0, 2.0], [3.0, 42.0, 4.0, 10.0]])
    assert error_by_quarter(value, target) == {
        f"value_error_{quarter}": error for quarter, error in zip(QUARTERS, [2.0, 3.0, 20.0, 41.0], strict=True)
    }
    assert error_by_quarter(value[0, :3], target[0, :3]) == {}


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(4, 50))
def test_quarters_are_of_equal_size_and_cover_all_decisions(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    value, target = torch.from_numpy(rng.standard_normal(size)), torch.from_numpy(rng.standard_normal(size))
    order = np.argsort(value.numpy())
    expected = [(target - value).numpy()[part].mean() for part in np.array_split(order, 4)]
    assert list(error_by_quarter(value, target).values()) == pytest.approx(expected)


# ---- the policy


def test_ratio_factors_are_symmetric_and_masked() -> None:
    log_ratio = torch.tensor([2.0, 0.5, 0.25, 1.0, 1e6]).log()
    mask = torch.tensor([True, True, True, True, False])
    expected = {"ratio_max_op": 4, "ratio_q95_op": np.quantile([2, 2, 4, 1], 0.95)}
    assert ratio_factors(log_ratio, mask, "_op") == pytest.approx(expected)
    assert ratio_factors(log_ratio, torch.zeros(5, dtype=torch.bool)) == {}


def evaluate(distribution: ActionDistribution, action_BH: Tensor) -> PolicyEvaluation:
    return PolicyEvaluation(
        log_prob_BH=distribution.head_log_probs(action_BH),
        entropy_BH=distribution.head_entropies(action_BH),
        choices_BH=distribution.head_choices(action_BH),
        joint_TN=distribution.log_prob(action_BH)[None],
        core={},
    )


@pytest.mark.parametrize("seed", range(4))
def test_head_statistics_are_means_over_learnable_steps(seed: int) -> None:
    old, new = (random_distribution(seed, free=True, rows=64, scale=scale)[0] for scale in (1.0, 1.3))
    action_BH = old.sample(torch.rand(64, len(Head), generator=generator(seed), dtype=torch.float64))
    before, after = evaluate(old, action_BH), evaluate(new, action_BH)
    found = head_stats(before, after)
    for head, name in HEADS.items():
        rows = [b for b in range(64) if after.choices_BH[b, head] > 1]
        assert found[f"learnable_{name}"] == pytest.approx(len(rows) / 64)
        assert (f"entropy_{name}" in found) == bool(rows)
        if not rows:
            continue
        entropy, choices = after.entropy_BH[rows, head].numpy(), after.choices_BH[rows, head].numpy()
        ratio = (after.log_prob_BH - before.log_prob_BH)[rows, head].exp().numpy()
        assert found[f"entropy_{name}"] == pytest.approx(entropy.mean())
        assert found[f"entropy_share_{name}"] == pytest.approx((entropy / np.log(choices)).mean(), rel=1e-5)
        assert 0 <= found[f"entropy_share_{name}"] <= 1 + 1e-6
        assert found[f"ratio_max_{name}"] == pytest.approx(np.maximum(ratio, 1 / ratio).max())
        assert found[f"kl_{name}"] == pytest.approx((ratio - 1 - np.log(ratio)).mean())
    assert found["learnable_blueprint"] > 0


@pytest.mark.parametrize("seed", range(3))
def test_divergences_of_heads_add_up_to_that_of_the_action(seed: int) -> None:
    """Averaged over all actions by their old probability: KL(joint) = sum over heads of E[KL of the head where it counts]."""
    old, _ = random_distribution(seed, free=True)
    new, _ = random_distribution(seed, free=True, scale=1.1)
    for row in range(4):
        action_CH, old_C = enumerated(old, row)
        before, after = (evaluate(row_of(which, row, len(action_CH)), action_CH) for which in (old, new))
        log_ratio_CH = after.log_prob_BH - before.log_prob_BH
        by_head = (old_C.exp()[:, None] * (torch.expm1(log_ratio_CH) - log_ratio_CH)).sum()
        exact = (old_C.exp() * (old_C - after.joint_TN[0])).sum()
        assert by_head.item() == pytest.approx(exact.item(), abs=1e-9)
        assert exact > 1e-6


def test_the_evaluation_before_an_update_reproduces_the_rollout() -> None:
    agent = make()
    rollout = rollout_of(agent, resets=0.3)
    seen = evaluate_rollout(agent.network, rollout)
    torch.testing.assert_close(seen.joint_TN, rollout.log_prob_TN, rtol=0, atol=1e-5)
    torch.testing.assert_close(seen.log_prob_BH.sum(dim=1).view(6, 8), seen.joint_TN, rtol=0, atol=1e-5)
    assert torch.equal(seen.choices_BH[:, Head.OP].view(6, 8) == 1, rollout.forced_TN)


def test_forced_steps_are_not_learnable_by_any_head() -> None:
    agent = make()
    stats = agent.update(rollout_of(agent, observe=lambda t: blank(SPEC)), progress=0.0, generator=generator())
    assert all(stats[f"learnable_{name}"] == 0 for name in HEADS.values())
    assert not any(name.startswith("ratio_max") for name in stats)
    assert math.isnan(stats["top_blueprint_share"])


def test_the_share_of_the_blueprint_planted_most_often_counts_choices_only() -> None:
    rollout = rollout_of(make())
    rollout.action_TNH.zero_()
    rollout.action_TNH.view(-1, len(Head))[:10, Head.BLUEPRINT] = torch.tensor([2, 2, 2, 1, 2, 2, 0, 2, 3, 3])
    choices_BH = torch.zeros((48, len(Head)), dtype=torch.int64)
    choices_BH[:8, Head.BLUEPRINT] = 4
    assert top_blueprint_share(rollout, choices_BH) == 6 / 8
    choices_BH[:, Head.BLUEPRINT] = 1
    assert math.isnan(top_blueprint_share(rollout, choices_BH))


# ---- the network


def test_every_parameter_belongs_to_one_part() -> None:
    for config in (SMALL, replace(SMALL, slot_identity=False), PPOMLPConfig(hidden=16)):
        network = config.build(SPEC, seed=0).network
        parts = parts_of(network)
        assert sorted(map(id, network.parameters())) == sorted(id(p) for part in parts.values() for p in part)
        assert set(parts) <= set(PARTS)


def test_a_layer_without_a_part_is_refused() -> None:
    network = make().network
    network.add_module("oracle", nn.Linear(2, 2))
    with pytest.raises(AssertionError, match="add layer oracle of the policy network to PARTS"):
        parts_of(network)


def test_norms_of_parts_add_up_to_that_of_the_whole() -> None:
    agent = make(epochs=1, minibatches=1, max_grad_norm=1e9)
    stats = agent.update(rollout_of(agent), progress=0.0, generator=generator())
    norms = {part: stats[f"grad_norm_{part}"] for part in PARTS}
    assert math.sqrt(sum(norm**2 for norm in norms.values())) == pytest.approx(stats["grad_norm"], rel=1e-5)
    oracle = math.sqrt(sum(float(p.grad.square().sum()) for p in agent.network.core.parameters() if p.grad is not None))
    assert norms["core"] == pytest.approx(oracle, rel=1e-5)
    agent.optimizer.zero_grad()
    assert set(gradient_norms(agent.parts).values()) == {0.0}


def test_norms_are_those_before_clipping() -> None:
    agent = make(epochs=1, minibatches=1, max_grad_norm=1e-6)
    assert agent.update(rollout_of(agent), progress=0.0, generator=generator())["grad_norm_core"] > 1e-4


# ---- the core


def outputs_of(input_TNR: Tensor, output_TNR: Tensor) -> Outputs:
    """Return network outputs of which only those of the core matter."""
    return Outputs(distribution=None, value_B=None, core_input_TNR=input_TNR, core_output_TNR=output_TNR)


@pytest.mark.parametrize("scale", [1.0, 60.0])
def test_core_health_is_that_of_single_steps(scale: float) -> None:
    core = Recurrent(5).double()
    core.initialize(generator())
    input_TNR = scale * torch.randn(9, 4, 5, generator=generator(1), dtype=torch.float64)
    is_init_TN = torch.rand(9, 4, generator=generator(2)) < 0.2
    cell = nn.LSTMCell(5, 5).double()
    cell.load_state_dict({name.removesuffix("_l0"): tensor for name, tensor in core.state_dict().items()})
    h_NR = c_NR = torch.zeros(4, 5, dtype=torch.float64)
    outputs, gates = [], []
    with torch.no_grad():
        output_TNR, _ = core.unroll(input_TNR, {"h": h_NR, "c": c_NR}, is_init_TN)
        for input_NR, is_init_N in zip(input_TNR, is_init_TN, strict=True):
            h_NR, c_NR = h_NR * ~is_init_N[:, None], c_NR * ~is_init_N[:, None]
            gates.append((input_NR @ cell.weight_ih.T + cell.bias_ih + h_NR @ cell.weight_hh.T + cell.bias_hh).sigmoid())
            h_NR, c_NR = cell(input_NR, (h_NR, c_NR))
            outputs.append(h_NR)
    found, expected_BR = core_health(core, outputs_of(input_TNR, output_TNR), is_init_TN), torch.cat(outputs)
    enter, forget, _, leave = torch.stack(gates).chunk(4, dim=-1)
    gate = torch.stack([enter, forget, leave])
    assert found["core_h"] == pytest.approx(expected_BR.abs().mean().item(), abs=1e-9)
    assert found["core_saturated"] == pytest.approx((expected_BR.abs() > 0.99).double().mean().item())
    assert found["core_gates_saturated"] == pytest.approx(((gate < 0.01) | (gate > 0.99)).double().mean().item())
    assert (found["core_gates_saturated"] > 0.5) == (scale > 10)
    assert found["core_dead"] == pytest.approx((expected_BR.std(dim=0, correction=0) < 0.01).double().mean().item())


def test_units_with_constant_output_are_dead() -> None:
    core = Recurrent(4)
    core.initialize(generator())
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        core.get_parameter(name).data.view(4, 4, -1)[:, :3] = 0.0  # three of four units: all gates half open, nothing enters
    input_TNR, is_init_TN = torch.randn(6, 3, 4, generator=generator()), torch.zeros(6, 3, dtype=torch.bool)
    with torch.no_grad():
        output_TNR, _ = core.unroll(input_TNR, core.start(3), is_init_TN)
    assert core_health(core, outputs_of(input_TNR, output_TNR), is_init_TN)["core_dead"] == 0.75


def test_a_feed_forward_policy_has_no_core_health() -> None:
    agent = PPOMLPConfig(hidden=16, minibatches=2).build(SPEC, seed=0)
    stats = agent.update(rollout_of(agent), progress=0.0, generator=generator())
    assert not any(name.startswith("core_") for name in stats)


# ---- all of it


def test_the_joint_numbers_agree_with_the_update() -> None:
    agent = make(target_kl=0.5)
    rollout = rollout_of(agent, resets=0.2)
    stats = agent.update(rollout, progress=0.0, generator=generator())
    assert stats["kl_of_target"] == pytest.approx(stats["kl"] / 0.5)
    assert stats["learnable_op"] == pytest.approx(1 - stats["forced_fraction"])
    assert stats["explained_variance_floored"] == pytest.approx(stats["explained_variance"])
    assert stats["skipped_fraction"] == stats["minibatches_skipped"] / 32
    with torch.no_grad():
        after = evaluate_rollout(agent.network, rollout)
    factor_TN = (after.joint_TN - rollout.log_prob_TN).abs().exp()[~rollout.forced_TN]
    assert stats["ratio_max"] == pytest.approx(factor_TN.max().item(), rel=1e-6)
    assert stats["ratio_max"] > 1.001


@pytest.mark.parametrize(
    ("reference", "teaches"), [(Reference.uniform, False), (Reference.initial, False), (Reference.initial, True)]
)
def test_an_update_measures_every_policy_metric_of_the_table(reference: Reference, teaches: bool) -> None:
    agent, rng = make(reference=reference), np.random.default_rng(0)
    if teaches:
        agent.follow(Wait(SPEC))
    rollout = random_rollout(agent, rng, observe=lambda _: random_observation(SPEC, rng, free=True))
    found = agent.update(rollout, progress=0.0, generator=generator())
    tags = {tag for row in METRICS if row.tag.startswith("policy/") for tag in tags_of(row)}
    drift = {tag for tag in tags if "grad_drift" in tag}  # the trainer measures it over updates
    missing = {"policy/return", "policy/anomalies"} | drift | ({"policy/divergence"} if reference is Reference.uniform else set())
    missing |= set() if teaches else {"policy/imitation_loss"}
    assert {f"policy/{name}" for name in found} == tags - missing


def test_calibration_is_of_monte_carlo_returns_by_the_values_given_while_acting() -> None:
    agent = make(gamma=1.0)
    rollout = rollout_of(agent)
    returns_TN = rollout.reward_TN.flip(0).cumsum(dim=0).flip(0)
    rollout.value_TN = 2 * returns_TN + 3
    found = agent.update(rollout, progress=0.0, generator=generator())
    assert (found["value_slope"], found["value_intercept"]) == pytest.approx((0.5, -1.5), abs=1e-4)


def test_diagnostics_do_not_affect_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = make(), make()
    one.update(rollout_of(one), progress=0.0, generator=generator())
    monkeypatch.setattr("esper.agent.ppo.ppo.diagnose", lambda *_, **__: {"kl": 0.0})
    two.update(rollout_of(two), progress=0.0, generator=generator())
    weights = one.network.state_dict(), two.network.state_dict()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), legal=st.floats(0, 1), resets=st.floats(0, 0.5))
def test_all_metrics_are_in_their_ranges(seed: int, legal: float, resets: float) -> None:
    agent, rng = make(epochs=2), np.random.default_rng(seed)
    rollout = random_rollout(
        agent, rng, resets=resets, observe=lambda _: random_observation(SPEC, rng, free=bool(seed % 2), legal=legal)
    )
    assume(rollout.reward_TN.std() > 0)
    found = agent.update(rollout, progress=0.0, generator=generator())
    shares = ("learnable_", "entropy_share_", "core_saturated", "core_gates_saturated", "core_dead", "top_blueprint_share")
    for name, value in found.items():
        if name.startswith(shares) and not math.isnan(value):
            assert -1e-6 <= value <= 1 + 1e-6, name
        if name.startswith("ratio_") and not math.isnan(value):
            assert value >= 1, name
        if name.startswith("kl_") and not math.isnan(value):
            assert value >= -1e-6, name
        if name.startswith("learnable_"):
            assert (value > 0) == (f"entropy_{name.removeprefix('learnable_')}" in found)
