"""The gradient of an update, and its independence of host order, of other hosts and of the layout of episodes in rows.

All in float64, so that equal means to 1e-9.
"""

# T steps, N hosts, H heads

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from esper.agent.ppo.advantages import Baseline
from esper.agent.ppo.ppo import PPO, PPOConfig
from esper.buffer.rollout import Rollout, TensorObservation
from esper.env.actions import Head, Op
from esper.env.spec import EnvSpec
from tests.agent.toy_envs import make_spec, random_observation

SPEC = make_spec(hosts=8, steps=6)
ONE_STEP = {"epochs": 1, "minibatches": 1, "max_grad_norm": 1e9, "target_kl": 1e9}
"""One gradient step on the whole rollout, with the gradient as it is."""


def make(spec: EnvSpec = SPEC, **config: Any) -> PPO:
    """A policy in float64 whose weights are not small anywhere, so that differences show."""
    agent = replace(PPOConfig(hidden=16, slot_width=16, twins=1, baseline=Baseline.critic), **config).build(spec, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in agent.network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return agent


def doubled(rollout: Rollout) -> Rollout:
    """The same in float64."""
    for name, value in vars(rollout).items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            setattr(rollout, name, value.double())
    rollout.seen = TensorObservation(**{n: t.double() if t.is_floating_point() else t for n, t in rollout.seen.tensors().items()})
    rollout.initial_state = {name: tensor.double() for name, tensor in rollout.initial_state.items()}
    return rollout


def rollout_of(agent: PPO, *, free: bool = False, ends: tuple[int, ...] = ()) -> Rollout:
    """A rollout from the middle of episodes on, of which many steps are forced; the agent and it are in float64 from now on.

    Episodes end after the steps named, or else anywhere.
    """
    spec, rng = agent.spec, np.random.default_rng(0)
    state = {name: torch.randn(spec.num_hosts, 16, generator=torch.Generator().manual_seed(2)) for name in ("h", "c")}
    rollout, is_init = Rollout(spec), np.zeros(spec.num_hosts, bool)
    rollout.initial_state = state
    for t in range(spec.num_steps):
        seen = random_observation(spec, rng, free=free, legal=0.05)
        decision = agent.act(seen, state, is_init=is_init, uniform=rng.random((spec.num_hosts, len(Head))))
        ended = np.full(spec.num_hosts, t in ends) if ends else rng.random(spec.num_hosts) < 0.3
        ended |= t == spec.num_steps - 1
        reward = rng.standard_normal(spec.num_hosts).astype(np.float32)
        rollout.add(seen, decision, reward=reward, terminated=ended, is_init=is_init)
        state, is_init = decision.state, ended
    agent.network.double()
    return doubled(rollout)


def picked(rollout: Rollout, rows: torch.Tensor) -> Rollout:
    """Some rows, in that order."""
    part = copy.copy(rollout)
    shape = rollout.reward_TN.shape
    for name, value in vars(rollout).items():
        if isinstance(value, torch.Tensor) and value.shape[:2] == shape:
            setattr(part, name, value[:, rows])
    part.seen, part.num_hosts = rollout.seen[:, rows], len(rows)
    part.initial_state = {name: tensor[rows] for name, tensor in rollout.initial_state.items()}
    return part


def side_by_side(rollout: Rollout, at: int) -> Rollout:
    """The steps before `at` and those from it on, which are as many, as rows of their own."""
    whole = copy.copy(rollout)
    for name, value in vars(rollout).items():
        if isinstance(value, torch.Tensor) and value.shape[:2] == rollout.reward_TN.shape:
            setattr(whole, name, torch.cat([value[:at], value[at:]], dim=1))
    whole.seen = TensorObservation(**{n: torch.cat([t[:at], t[at:]], dim=1) for n, t in rollout.seen.tensors().items()})
    # What the second half of the rows remembers must not matter: they start with an episode.
    whole.initial_state = {n: torch.cat([t, torch.full_like(t, 7.0)]) for n, t in rollout.initial_state.items()}
    whole.num_steps = whole.length = at
    whole.num_hosts = 2 * rollout.num_hosts
    return whole


def updated(agent: PPO, rollout: Rollout) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Gradients of the last step of an update, and the weights after it, by name; the agent itself stays as it is."""
    agent = copy.deepcopy(agent)
    agent.optimizer = torch.optim.Adam(agent.network.parameters(), lr=1e-3, eps=1e-5)
    agent.update(rollout, progress=0.0, generator=torch.Generator().manual_seed(0))
    parameters = dict(agent.network.named_parameters())
    gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in parameters.items()}
    return gradients, {name: parameter.detach() for name, parameter in parameters.items()}


def assert_same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert any(tensor.abs().max() > 1e-3 for tensor in one.values()), "there is something to compare"
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, atol=1e-9, rtol=1e-9, msg=lambda text, name=name: f"{name}: {text}")


def test_the_order_of_hosts_does_not_matter() -> None:
    agent = make(minibatches=1, epochs=3, target_kl=1e9)
    rollout = rollout_of(agent)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(3))
    for one, two in zip(updated(agent, rollout), updated(agent, picked(rollout, order)), strict=True):
        assert_same(one, two)


def test_episodes_in_sequence_give_the_gradient_of_episodes_in_parallel() -> None:
    """Nothing passes from an episode to its neighbour: no state, no advantage, no gradient. So rows need no padding either."""
    agent = make(**ONE_STEP)
    rollout = rollout_of(agent, ends=(2, 5))
    one, two = updated(agent, rollout), updated(agent, side_by_side(rollout, 3))
    assert_same(one[0], two[0])


@pytest.mark.parametrize("free", [False, True])
def test_the_gradient_of_all_hosts_is_the_mean_of_those_of_single_hosts(free: bool) -> None:
    """Also where heads are free on some hosts and held on others: what is computed for the company changes nothing for a host."""
    agent = make()
    rollout = rollout_of(agent, free=free)
    targets, parameters = agent._targets(rollout), list(agent.network.parameters())
    chosen_N = (~rollout.forced_TN).sum(dim=0).double()
    assert len(chosen_N.unique()) > 1, "hosts have different numbers of choices"

    def gradients(rows: torch.Tensor, name: str) -> list[torch.Tensor]:
        _, terms = agent._losses(rollout, targets, rows)
        found = torch.autograd.grad(terms[name], parameters, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]

    everyone = torch.arange(8)
    log_ratio_TN, _ = agent._losses(rollout, targets, everyone)
    for host in range(8):
        alone_T1, _ = agent._losses(rollout, targets, everyone[host : host + 1])
        torch.testing.assert_close(alone_T1[:, 0], log_ratio_TN[:, host], atol=1e-12, rtol=0)
    equal_N = torch.full((8,), 1 / 8, dtype=torch.float64)
    for name, weight_N in (
        ("policy_loss", chosen_N / chosen_N.sum()),
        ("entropy", chosen_N / chosen_N.sum()),
        ("value_loss", equal_N),
    ):
        whole = gradients(everyone, name)
        single = [gradients(everyone[host : host + 1], name) for host in range(8)]
        assert max(tensor.abs().max() for tensor in whole) > 1e-3
        for index, tensor in enumerate(whole):
            mean = sum(weight_N[host] * single[host][index] for host in range(8))
            torch.testing.assert_close(mean, tensor, atol=1e-9, rtol=1e-9)


def test_one_pass_over_the_rollout_is_reinforce_with_a_baseline() -> None:
    """- mean of ln pi(a) * (G - V) over the steps with a choice, with G summed up by hand and pi asked step by step."""
    gamma = 0.95
    agent = make(**ONE_STEP, lam=1.0, gamma=gamma, value_coef=0.0, entropy_coef=0.0)
    rollout = rollout_of(agent)
    steps, hosts = rollout.reward_TN.shape
    return_TN = torch.zeros(steps, hosts, dtype=torch.float64)
    for t in range(steps):
        for host in range(hosts):
            for later in range(t, steps):
                return_TN[t, host] += gamma ** (later - t) * rollout.reward_TN[later, host]
                if rollout.terminated_TN[later, host]:
                    break
    chosen_TN = rollout.seen.legal_slots[:, :, Op.WAIT + 1 :].any(dim=3).any(dim=2)
    assert not chosen_TN.all()
    advantage_raw = (return_TN - rollout.value_TN)[chosen_TN]
    advantage = (advantage_raw - advantage_raw.mean()) / advantage_raw.std(correction=0)
    gradients, _ = updated(agent, rollout)

    log_probs, state = [], rollout.initial_state
    for t in range(steps):
        outputs, state = agent.network.step(rollout.seen[t], state, rollout.is_init_TN[t])
        log_probs.append(outputs.distribution.log_prob(rollout.action_TNH[t]))
    (-(torch.stack(log_probs)[chosen_TN] * advantage).mean()).backward()
    expected = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in agent.network.named_parameters()}
    # Advantages went through float32 once, where the rollout was written.
    for name, tensor in expected.items():
        torch.testing.assert_close(gradients[name], tensor, atol=1e-6, rtol=1e-6)
    assert max(tensor.abs().max() for tensor in expected.values()) > 1e-2


def test_a_second_pass_differs_from_reinforce() -> None:
    """The second step sees ratios that are not 1: without that the test above would say nothing about PPO."""
    agent = make(minibatches=1, epochs=2, target_kl=1e9, max_grad_norm=1e9)
    rollout = rollout_of(agent)
    once, _ = updated(make_like(agent, epochs=1), rollout)
    twice, _ = updated(agent, rollout)
    assert any((once[name] - twice[name]).abs().max() > 1e-3 for name in once)


def make_like(agent: PPO, **config: Any) -> PPO:
    """The same policy with other options."""
    other = copy.deepcopy(agent)
    other.config = replace(agent.config, **config)
    return other


def test_the_floor_of_explained_variance_is_that_of_advantages_squared() -> None:
    agent = make(advantage_floor=2.0, gamma=1.0)
    rollout = rollout_of(agent, ends=(5,))
    rollout.reward_TN /= rollout.reward_TN.flip(0).cumsum(dim=0).std(correction=0)  # returns of deviation 1
    rollout.value_TN = torch.zeros_like(rollout.value_TN)
    diagnostics = agent.update(rollout, progress=0.0, generator=torch.Generator().manual_seed(0))
    assert diagnostics["explained_variance_floored"] == pytest.approx(1 - 1 / 2.0**2, abs=1e-6)
