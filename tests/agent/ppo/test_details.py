"""Implementation details of PPO that no other test file covers, one test each.

The list is from Huang et al. 2022 ("The 37 implementation details of proximal policy optimization"): core 1 to 13, five for
LSTMs, one for multi-discrete actions. Covered elsewhere: Adam's epsilon, learning rate decay and gradient clipping
(test_update); advantage normalisation (test_forced_steps); the replay of recurrent states (test_replay); GAE and episode ends
(test_advantages); the clipped surrogate and the critic's loss, which is not clipped (test_losses); whole rows in minibatches
(buffer/test_rollout); resets (test_network); the product of heads (test_distribution). Two differ on purpose: advantages are
normalised per rollout rather than per minibatch, and the bias of the forget gate starts at 1.
"""

# T steps, N hosts, R recurrent units

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from esper.agent.ppo.advantages import Baseline, gae
from esper.agent.ppo.losses import Reference
from esper.agent.ppo.ppo import PPO, PPOConfig
from esper.env.actions import Head, Op
from tests.agent.ppo.test_advantages import random_case
from tests.agent.toy_envs import make_spec, random_rollout

SPEC = make_spec(hosts=8, steps=6)
GAMMA, LAM = 0.95, 0.9


def make(**config: float | Reference) -> PPO:
    return replace(PPOConfig(hidden=16, slot_width=16, twins=1, baseline=Baseline.critic), **config).build(SPEC, seed=0)


def gain(layer: nn.Linear) -> float:
    """The factor g of a matrix that is g times an orthogonal one, in its smaller dimension; NaN where it is not that."""
    weight = layer.weight.detach().double()
    square = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
    g2 = float(square.diagonal().mean())
    fits = torch.allclose(square, g2 * torch.eye(len(square), dtype=torch.float64), atol=1e-5 * max(g2, 1e-3))
    return g2**0.5 if fits else float("nan")


def test_layers_start_orthogonal_with_their_gain_and_zero_bias() -> None:
    network = PPOConfig().build(SPEC, seed=0).network
    layers = {name: module for name, module in network.named_modules() if isinstance(module, nn.Linear)}
    wanted = {"op": 0.01, "slot_score": 0.01, "parameter": 0.01, "value": 1.0}
    assert set(wanted) < set(layers)
    for name, layer in layers.items():
        assert abs(gain(layer) - wanted.get(name, 2**0.5)) < 1e-5, name
        bias = layer.bias.detach().clone()
        if name == "op":
            bias[Op.WAIT] -= PPOConfig().wait_bias
        assert not bias.any(), name


def test_the_lstm_starts_orthogonal_and_every_rollout_at_zero_state() -> None:
    agent = make()
    core = agent.network.core
    for weight in (core.weight_ih_l0, core.weight_hh_l0):
        torch.testing.assert_close(weight.T @ weight, torch.eye(16), atol=1e-5, rtol=0)
    assert all(not tensor.any() for tensor in agent.start(8).values())


def test_every_pass_uses_each_host_once_in_minibatches_of_equal_size(monkeypatch) -> None:
    agent = make(epochs=3, minibatches=4, target_kl=1e9)
    taken: list[list[int]] = []
    losses = agent._losses

    def spy(rollout, targets, rows_M):
        taken.append(rows_M.tolist())
        return losses(rollout, targets, rows_M)

    monkeypatch.setattr(agent, "_losses", spy)
    agent.update(random_rollout(agent, np.random.default_rng(0)), progress=0.0, generator=torch.Generator().manual_seed(0))
    passes = [taken[index : index + 4] for index in range(0, 12, 4)]
    for rows in passes:
        assert sorted(row for part in rows for row in part) == list(range(8))
        assert {len(part) for part in rows} == {2}
    assert passes[0] != passes[1], "each pass deals anew"


@pytest.mark.parametrize("reference", Reference)
def test_the_objective_is_the_sum_of_its_terms_with_their_weights(reference: Reference) -> None:
    """Policy loss + value_coef * value loss - entropy_coef * entropy, or + entropy_coef * divergence: one gradient."""
    agent = make(epochs=1, minibatches=1, value_coef=0.7, entropy_coef=0.3, max_grad_norm=1e9, reference=reference)
    rollout = random_rollout(agent, np.random.default_rng(0))
    other = copy.deepcopy(agent)
    _, terms = other._losses(rollout, other._targets(rollout), torch.arange(8))
    drawn = terms["entropy"] if reference is Reference.uniform else -terms["divergence"]
    loss = terms["policy_loss"] + 0.7 * terms["value_loss"] - 0.3 * drawn
    parameters = dict(other.network.named_parameters())
    expected = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    agent.update(rollout, progress=0.0, generator=torch.Generator().manual_seed(0))
    found = dict(agent.network.named_parameters())
    for name, gradient in zip(parameters, expected, strict=True):
        if gradient is None:
            assert found[name].grad is None, name
        else:
            torch.testing.assert_close(found[name].grad, gradient, atol=1e-6, rtol=1e-4)


def test_the_first_step_of_adam_is_at_most_the_learning_rate() -> None:
    """Adam divides by the root of the gradient's square: with its epsilon of 1e-5 no weight moves by more than the step size."""
    agent = make(epochs=1, minibatches=1, learning_rate=1e-3)
    rollout = random_rollout(agent, np.random.default_rng(0))
    agent._targets(rollout)  # rescales the critic's last layer, which is no gradient step
    before = {name: parameter.detach().clone() for name, parameter in agent.network.named_parameters() if "value" not in name}
    agent.update(rollout, progress=0.0, generator=torch.Generator().manual_seed(0))
    moved = {name: (dict(agent.network.named_parameters())[name].detach() - old).abs() for name, old in before.items()}
    assert max(float(tensor.max()) for tensor in moved.values()) <= 1.001e-3
    for name, parameter in agent.network.named_parameters():
        if name in moved and parameter.grad is not None:
            size = parameter.grad.abs()
            torch.testing.assert_close(moved[name], 1e-3 * size / (size + 1e-5), atol=2e-6, rtol=1e-2)


def test_gae_is_the_loop_over_the_done_flag_of_the_next_step() -> None:
    """The form most implementations have: a row of done flags shifted by one, for rollouts whose episodes all terminate."""
    reward, value, terminated = (tensor.numpy() for tensor in random_case(4, steps=30))
    steps, hosts = reward.shape
    done = np.zeros((steps, hosts))
    done[1:] = terminated[:-1]
    advantage, last = np.zeros((steps, hosts)), np.zeros(hosts)
    for t in reversed(range(steps)):
        nonterminal = 0.0 if t == steps - 1 else 1.0 - done[t + 1]
        following = 0.0 if t == steps - 1 else value[t + 1]
        delta = reward[t] + GAMMA * following * nonterminal - value[t]
        advantage[t] = last = delta + GAMMA * LAM * nonterminal * last
    ours = gae(*map(torch.from_numpy, (reward, value, terminated)), gamma=GAMMA, lam=LAM)
    np.testing.assert_allclose(ours.numpy(), advantage, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("reference", Reference)
def test_the_entropy_bonus_draws_towards_its_reference(reference: Reference) -> None:
    """A uniform reference acts more often than a policy that waits; the initial policy goes on waiting."""
    agent = make(entropy_coef=10.0, entropy_final=10.0, learning_rate=1e-2, target_kl=1e9, wait_bias=3.0, reference=reference)
    generator = torch.Generator().manual_seed(0)

    def waits() -> float:
        rollout = random_rollout(agent, np.random.default_rng(0))
        agent.update(rollout, progress=0.0, generator=generator)
        return float((rollout.action_TNH[..., Head.OP] == Op.WAIT)[~rollout.forced_TN].float().mean())

    shares = [waits() for _ in range(8)]
    assert shares[0] > 0.7
    assert (shares[-1] < shares[0] / 2) == (reference is Reference.uniform), shares
    assert shares[-1] > 0.7 or reference is Reference.uniform
