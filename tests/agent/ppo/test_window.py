"""Learning from a window of rollouts: V-trace from its definition, the centred clip, and updates with earlier rollouts."""

# T steps, N hosts

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from esper.agent.ppo.advantages import gae, vtrace_advantages
from esper.agent.ppo.losses import centred_surrogate, clipped_surrogate
from esper.agent.ppo.ppo import PPO
from esper.buffer.rollout import Rollout
from tests.agent.ppo.test_advantages import GAMMA, LAM, random_case
from tests.agent.small_policy import generator, make
from tests.agent.toy_envs import random_rollout

# ---- V-trace


def log_ratios(seed: int, like: torch.Tensor) -> torch.Tensor:
    """Log-ratios of both signs, some far from 0."""
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(100 + seed), dtype=torch.float64)


def definition(reward, value, terminated, log_ratio) -> tuple[np.ndarray, np.ndarray]:
    """Compute advantages and targets as the sums of the paper.

    v_s = V_s + sum over t >= s of gamma^(t-s) * (product of c_i for s <= i < t) * rho_t * delta_t, up to and including the step
    that ends the episode, where c_i = lam * min(1, ratio_i) and rho_t = min(1, ratio_t). The advantage of step s is that of
    Q(s, a): r_s + gamma * (V_{s+1} + lam * (v_{s+1} - V_{s+1})) - V_s.
    """
    reward, value, terminated = (tensor.numpy() for tensor in (reward, value, terminated))
    rho = np.minimum(1.0, np.exp(log_ratio.numpy()))
    steps, hosts = reward.shape
    next_value = np.where(terminated, 0.0, np.concatenate([value[1:], np.zeros((1, hosts))]))
    delta = reward + GAMMA * next_value - value
    correction = np.zeros((steps + 1, hosts))
    for host in range(hosts):
        for start in range(steps):
            product = 1.0
            for t in range(start, steps):
                correction[start, host] += GAMMA ** (t - start) * product * rho[t, host] * delta[t, host]
                if terminated[t, host]:
                    break
                product *= LAM * rho[t, host]
    following = np.where(terminated, 0.0, correction[1:])
    return delta + GAMMA * LAM * following, value + correction[:-1]


@pytest.mark.parametrize("seed", range(10))
def test_vtrace_is_the_sum_of_its_definition(seed: int) -> None:
    case = random_case(seed)
    log_ratio = log_ratios(seed, case[0])
    assert case[2][:-1].any()
    advantage, target = vtrace_advantages(*case, log_ratio, gamma=GAMMA, lam=LAM)
    expected = definition(*case, log_ratio)
    np.testing.assert_allclose(advantage.numpy(), expected[0], atol=1e-12)
    np.testing.assert_allclose(target.numpy(), expected[1], atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vtrace_of_the_acting_policy_is_gae_and_the_lambda_return(dtype: torch.dtype) -> None:
    reward, value, terminated = random_case(3)
    case = (reward.to(dtype), value.to(dtype), terminated)
    advantage, target = vtrace_advantages(*case, torch.zeros_like(case[0]), gamma=GAMMA, lam=LAM)
    expected = gae(*case, gamma=GAMMA, lam=LAM)
    assert advantage.dtype == target.dtype == dtype
    assert torch.equal(advantage, expected)
    torch.testing.assert_close(target, expected + case[1])


def test_an_action_of_probability_zero_cuts_the_trace() -> None:
    reward, value, terminated = random_case(0)
    terminated[:-1] = False
    log_ratio = torch.zeros_like(reward)
    log_ratio[5] = -1e9
    advantage, target = vtrace_advantages(reward, value, terminated, log_ratio, gamma=GAMMA, lam=LAM)
    delta = reward[:-1] + GAMMA * value[1:] - value[:-1]
    torch.testing.assert_close(advantage[4], delta[4])
    torch.testing.assert_close(target[5], value[5])
    assert not torch.allclose(advantage[5], delta[5]), "the surrogate weights the step itself"


# ---- the centred clip


def surrogate_case(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-ratios to the acting policy, anchors, advantages and a mask, of 400 steps."""
    source = torch.Generator().manual_seed(seed)
    anchor, advantage = (torch.randn(400, generator=source, dtype=torch.float64) for _ in range(2))
    step = 0.3 * torch.randn(400, generator=source, dtype=torch.float64)
    return anchor + step, anchor, advantage, torch.rand(400, generator=source) < 0.8


def test_the_centred_surrogate_at_anchor_zero_is_the_clipped_one() -> None:
    log_ratio, anchor, advantage, mask = surrogate_case()
    near = (log_ratio - anchor).requires_grad_()
    centred = centred_surrogate(near, torch.zeros_like(near), advantage, mask, clip=0.2)
    clipped = clipped_surrogate(near, advantage, mask, clip=0.2)
    torch.testing.assert_close(centred, clipped)
    torch.testing.assert_close(torch.autograd.grad(centred, near)[0], torch.autograd.grad(clipped, near)[0])
    assert clipped != clipped_surrogate(near, advantage, mask, clip=9.0), "some ratios are clipped"


def test_the_centred_surrogate_is_clipped_around_its_centre() -> None:
    log_ratio, anchor, advantage, mask = surrogate_case()
    log_ratio.requires_grad_()
    loss = centred_surrogate(log_ratio, anchor, advantage, mask, clip=0.2)
    (gradient,) = torch.autograd.grad(loss, log_ratio)
    ratio, centre = log_ratio.detach().exp(), anchor.exp()
    beyond = torch.where(advantage > 0, ratio > centre + 0.2, ratio < centre - 0.2)
    assert 20 < (beyond & mask).sum() < 200
    expected = torch.where(beyond | ~mask, 0.0, -ratio * advantage / mask.sum())
    torch.testing.assert_close(gradient, expected)


# ---- updates


def weights(agent: PPO) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in agent.network.state_dict().items()}


def updated(agent: PPO, earlier: Any, rollout: Rollout) -> tuple[dict[str, torch.Tensor], Any]:
    stats = agent.update(rollout, progress=0.0, generator=generator(), earlier=earlier)
    return weights(agent), stats


def test_without_earlier_rollouts_an_update_is_the_on_policy_one() -> None:
    one, two = make(popart_step=0.05), make(popart_step=0.05)
    rollout = random_rollout(one, np.random.default_rng(0), resets=0.2)
    expected = weights(one)
    one.update(rollout, progress=0.0, generator=generator())
    after, _ = updated(two, (), rollout)
    assert all(torch.equal(after[name], tensor) for name, tensor in weights(one).items())
    assert any(not torch.equal(after[name], tensor) for name, tensor in expected.items()), "it learned"


def test_targets_of_an_earlier_rollout_of_the_same_policy_are_the_on_policy_ones() -> None:
    agent = make(popart_step=0.0)
    newest, earlier = (random_rollout(agent, np.random.default_rng(seed), resets=0.2) for seed in (1, 0))
    for rollout in (newest, earlier):
        rollout.reward_TN += 1.0
    joined, targets = agent._window([newest, earlier])
    plain = agent._targets(joined)
    torch.testing.assert_close(targets.advantage_TN, plain.advantage_TN, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(targets.value_TN, plain.value_TN, atol=1e-5, rtol=1e-4)
    assert targets.anchor_TN is not None
    assert targets.anchor_TN.abs().max() < 1e-5
    assert targets.num_current == newest.num_hosts
    other, moved = make(1, popart_step=0.0), newest
    _, far = agent._window([moved, random_rollout(other, np.random.default_rng(0), resets=0.2)])
    assert far.anchor_TN is not None
    assert far.anchor_TN[:, : newest.num_hosts].abs().max() < 1e-5
    assert far.anchor_TN[:, newest.num_hosts :].abs().max() > 1e-3, "another policy acted there"


def test_a_window_of_equal_rollouts_moves_the_policy_as_one_of_them() -> None:
    """The same rollout twice has the same mean loss; with the clip of half as wide a window the first step is the same."""
    plain = make(minibatches=1, epochs=1, learning_rate=1e-3, popart_step=0.0)
    window = make(minibatches=1, epochs=1, learning_rate=1e-3, popart_step=0.0)
    rollout = random_rollout(plain, np.random.default_rng(0))
    targets = plain._targets(rollout)
    joined, both = window._window([rollout, rollout])
    for agent, data, goal in ((plain, rollout, targets), (window, joined, both)):
        _, terms = agent._losses(data, goal, torch.arange(data.num_hosts))
        loss = terms["policy_loss"] + terms["value_loss"]
        loss.backward()
    for one, two in zip(plain.parameters, window.parameters, strict=True):
        if one.grad is not None:
            torch.testing.assert_close(one.grad, two.grad, atol=1e-5, rtol=1e-3)


def test_a_window_update_takes_as_many_steps_per_rollout_and_measures_kl_on_current_actions() -> None:
    agent = make(minibatches=2, epochs=3, target_kl=1e9, learning_rate=1e-3)
    earlier = [random_rollout(agent, np.random.default_rng(seed)) for seed in (0, 1)]
    agent.update(earlier[0], progress=0.0, generator=generator())
    newest = random_rollout(agent, np.random.default_rng(2))
    seen: list[torch.Tensor] = []
    losses = agent._losses

    def spy(rollout: Rollout, targets: Any, rows: torch.Tensor) -> Any:
        seen.append(rows)
        return losses(rollout, targets, rows)

    agent._losses = spy
    stats = agent.update(newest, progress=0.0, generator=generator(), earlier=earlier)
    assert len(seen) == 3 * 2 * 3
    assert sorted(torch.cat(seen[:6]).tolist()) == list(range(24))
    assert stats["minibatches_skipped"] == 0
    assert stats["first_ratio_error"] < 1e-5
    strict = make(minibatches=2, epochs=3, target_kl=1e-7, learning_rate=1e-3)
    strict.network.load_state_dict(agent.network.state_dict())
    newest = random_rollout(strict, np.random.default_rng(3))
    stopped = strict.update(newest, progress=0.0, generator=generator(), earlier=earlier)
    assert stopped["minibatches_skipped"] > 0


def test_a_wider_window_narrows_the_clip() -> None:
    """One row far from its centre: clipped in a window of three, where the clip is half as wide, and not alone."""
    agent = make(popart_step=0.0, clip=0.2)
    rollout = random_rollout(agent, np.random.default_rng(0))
    joined, targets = agent._window([rollout] * 3)
    shifted = replace(targets, anchor_TN=targets.anchor_TN - 0.14)  # ratio / centre = 1.15
    rows = torch.arange(joined.num_hosts)
    (_, narrow), (_, wide) = (
        agent._losses(joined, replace(shifted, num_current=count), rows) for count in (rollout.num_hosts, joined.num_hosts)
    )
    assert narrow["policy_loss"] > wide["policy_loss"] + 1e-3
