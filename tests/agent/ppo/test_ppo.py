"""Acting, the update, non-finite minibatches, resuming, and the config."""

# T steps, N hosts, H heads

import io
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from esper.agent.base import AgentConfig
from esper.agent.ppo.advantages import Targets
from esper.agent.ppo.diagnostics import explained_variance
from esper.agent.ppo.ppo import PPO, PPOConfig
from esper.buffer.rollout import Rollout
from esper.env.actions import Head, Op
from tests.agent.small_policy import SMALL, SPEC, corridor, generator, make, update
from tests.agent.toy_envs import blank, random_observation, random_rollout

# ---- acting


def test_the_action_of_a_host_does_not_depend_on_the_number_of_hosts() -> None:
    agent, rng = make(), np.random.default_rng(0)
    seen, uniform = random_observation(SPEC, rng), rng.random((8, len(Head)))
    state = {name: torch.randn(8, 16, generator=generator()) for name in ("h", "c")}
    is_init = rng.random(8) < 0.5
    whole = agent.act(seen, state, is_init=is_init, uniform=uniform)
    for rows in (slice(2, 3), slice(3, 8)):
        few = type(seen)(**{name: getattr(seen, name)[rows] for name in seen.__dataclass_fields__})
        part = agent.act(few, {n: s[rows] for n, s in state.items()}, is_init=is_init[rows], uniform=uniform[rows])
        assert np.array_equal(part.action, whole.action[rows])
        np.testing.assert_allclose(part.log_prob, whole.log_prob[rows], atol=1e-5)
        np.testing.assert_allclose(part.value, whole.value[rows], atol=1e-5)
        torch.testing.assert_close(part.state["h"], whole.state["h"][rows])


def test_acting_draws_no_random_numbers_and_changes_no_state() -> None:
    agent, rng = make(), np.random.default_rng(0)
    seen, uniform, state = random_observation(SPEC, rng), rng.random((8, len(Head))), agent.start(8)
    torch.manual_seed(0)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    one = agent.act(seen, state, is_init=np.zeros(8, bool), uniform=uniform)
    two = agent.act(seen, state, is_init=np.zeros(8, bool), uniform=uniform)
    assert np.array_equal(one.action, two.action)
    np.testing.assert_array_equal(one.value, two.value)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)
    assert not any(tensor.any() for tensor in state.values())
    assert not any(tensor.requires_grad or tensor.is_inference() for tensor in one.state.values())


def test_greedy_actions_do_not_depend_on_noise() -> None:
    agent, rng = make(), np.random.default_rng(0)
    seen = random_observation(SPEC, rng)
    actions = [
        agent.act(seen, agent.start(8), is_init=np.ones(8, bool), uniform=rng.random((8, len(Head))), greedy=True).action
        for _ in range(3)
    ]
    assert (actions[0] == actions[1]).all()
    assert (actions[0] == actions[2]).all()


@pytest.mark.parametrize(("layer", "what"), [("op", "probabilities"), ("slot_score", "probabilities"), ("value", "values")])
@pytest.mark.parametrize("greedy", [False, True])
def test_non_finite_weights_are_noticed_when_acting(layer: str, what: str, greedy: bool) -> None:
    agent, seen = make(), blank(SPEC)
    seen.legal_slots[:, Op.GERMINATE, 1:] = True
    getattr(agent.network, layer).weight.data[:, 0] = float("nan")
    with pytest.raises(FloatingPointError, match=f"{what} are not finite"):
        agent.act(seen, agent.start(8), is_init=np.ones(8, bool), uniform=np.full((8, len(Head)), 0.99), greedy=greedy)


def test_a_parameter_drawn_from_nan_logits_is_noticed_too() -> None:
    agent, seen = make(wait_bias=-99.0), blank(SPEC)
    seen.legal_slots[:, Op.GERMINATE, 1:] = True
    agent.network.parameter.weight.data[:] = float("nan")
    with pytest.raises(FloatingPointError, match="probabilities are not finite"):
        agent.act(seen, agent.start(8), is_init=np.ones(8, bool), uniform=np.full((8, len(Head)), 0.5))


# ---- the update


@pytest.mark.parametrize("resets", [0.0, 0.3])
def test_replay_reproduces_the_rollout(resets: float) -> None:
    agent = make()
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
    assert agent.updates == 0
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


def test_the_entropy_bonus_raises_entropy() -> None:
    agent = make(entropy_coef=1.0, entropy_final=1.0, learning_rate=1e-2, target_kl=1e9, wait_bias=3.0)
    entropies = [update(agent, seed)["entropy"] for seed in range(6)]
    assert entropies[-1] > entropies[0] + 0.1


def test_forgotten_resets_are_noticed() -> None:
    agent = make(minibatches=1, learning_rate=1e-2)
    for seed in range(20):
        update(agent, seed, resets=0.3)
    rollout = random_rollout(agent, np.random.default_rng(9), resets=0.3)
    rollout.is_init_TN[1:] = False
    with pytest.raises(RuntimeError, match="does not reproduce its rollout"):
        agent.update(rollout, progress=0.0, generator=generator())


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
    before = {name: tensor.clone() for name, tensor in agent.network.state_dict().items() if not name.startswith("value.")}
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


# ---- non-finite minibatches


def spoiled(agent: PPO, name: str, *places: tuple[int, int]) -> None:
    """Make the targets of later rollouts NaN at these steps and hosts."""
    targets = agent._targets

    def spoil(rollout: Rollout) -> Targets:
        spoiled_targets = targets(rollout)
        for step, host in places:
            getattr(spoiled_targets, name)[step, host] = float("nan")
        return spoiled_targets

    agent._targets = spoil


def weights(agent: PPO) -> dict[str, torch.Tensor]:
    """Weights that only gradient steps change: PopArt rescales the critic's last layer too."""
    return {name: tensor.clone() for name, tensor in agent.network.state_dict().items() if not name.startswith("value.")}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("value_TN", "value_loss, gradient of the encoder, gradient of the core, gradient of the critic not finite"),
        ("advantage_TN", "policy_loss, gradient of the encoder, gradient of the core, gradient of the heads not finite"),
    ],
)
@pytest.mark.parametrize("chunk", [0, 2])
def test_three_non_finite_minibatches_end_the_run_without_changing_weights(name: str, said: str, chunk: int) -> None:
    """The error names what is non-finite."""
    agent = make(epochs=3, minibatches=1, chunk=chunk)
    rollout = random_rollout(agent, np.random.default_rng(0), observe=lambda t: corridor(open_hosts=8))
    spoiled(agent, name, (5, 1), (3, 6), (3, 4))
    before = weights(agent)
    with pytest.raises(FloatingPointError, match=f"^{said} in 3 consecutive minibatches: lower agent"):
        agent.update(rollout, progress=0.0, generator=generator())
    assert all(torch.equal(agent.network.state_dict()[name], tensor) for name, tensor in before.items())


def test_dropped_and_skipped_minibatches_are_counted_separately() -> None:
    agent = make(epochs=4, minibatches=4, target_kl=1e9)
    spoiled(agent, "value_TN", (2, 5))
    stats = agent.update(random_rollout(agent, np.random.default_rng(0)), progress=0.0, generator=generator())
    assert (stats["minibatches_nonfinite"], stats["minibatches_skipped"]) == (4.0, 0.0)
    assert "minibatches_nonfinite" in stats
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


# ---- forced steps


def test_forced_steps_give_the_policy_no_gradient() -> None:
    agent = make(entropy_coef=1.0)
    rollout = random_rollout(agent, np.random.default_rng(0), observe=lambda t: corridor())
    assert rollout.forced_TN.all()
    targets = agent._targets(rollout)
    _, terms = agent._losses(rollout, targets, torch.arange(8))
    (terms["policy_loss"] - terms["entropy"]).backward()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in agent.network.parameters())
    _, terms = agent._losses(rollout, targets, torch.arange(8))
    terms["value_loss"].backward()
    assert agent.network.core.weight_ih_l0.grad.any(), "the critic learns there all the same"
    assert agent.update(rollout, progress=0.0, generator=generator())["forced_fraction"] == 1.0


def test_advantages_are_normalised_over_unforced_steps() -> None:
    agent = make()
    rollout = random_rollout(agent, np.random.default_rng(0), observe=lambda t: corridor(open_hosts=3))
    rollout.reward_TN[:, 3:] += 1000.0
    chosen = agent._targets(rollout).advantage_TN[:, :3]
    assert chosen.mean().item() == pytest.approx(0, abs=1e-5)
    assert chosen.std(correction=0).item() == pytest.approx(1, abs=1e-4)


def test_forced_steps_enter_neither_policy_loss_nor_entropy() -> None:
    agent = make()
    rollout = random_rollout(agent, np.random.default_rng(0), observe=lambda t: corridor(open_hosts=3))
    targets = agent._targets(rollout)
    _, some = agent._losses(rollout, targets, torch.arange(3))
    _, every = agent._losses(rollout, targets, torch.arange(8))
    for name in ("policy_loss", "entropy"):
        torch.testing.assert_close(some[name], every[name])


def test_the_advantage_floor_damps_uneventful_rollouts() -> None:
    agent = make(advantage_floor=0.1)
    rollout = random_rollout(agent, np.random.default_rng(0))
    rollout.value_TN[:], rollout.reward_TN[:] = 0.0, 1e-6 * rollout.reward_TN
    assert agent._targets(rollout).advantage_TN.abs().max() < 1e-3


# ---- state


def roundtrip(state: dict[str, Any]) -> dict[str, Any]:
    """Through a file that may hold tensors and primitives only."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)


def test_a_saved_policy_resumes_bit_for_bit() -> None:
    one = make(seed=0)
    for seed in range(3):
        update(one, seed)
    two = make(seed=99)
    two.load_state_dict(roundtrip(one.state_dict()))
    assert two.updates == 3
    for seed in range(3, 6):
        assert repr(update(one, seed, progress=0.5)) == repr(update(two, seed, progress=0.5))  # to the bit, and NaN is NaN
    states = one.state_dict(), two.state_dict()
    for part in ("network", "popart"):
        assert all(torch.equal(states[0][part][name], states[1][part][name]) for name in states[0][part])


def test_optimizer_and_popart_are_part_of_the_state() -> None:
    """A policy that forgot its optimiser or its scale goes on differently."""
    one = make()
    for seed in range(3):
        update(one, seed)
    for forgotten in ("optimizer", "popart"):
        two = make()
        two.load_state_dict(one.state_dict() | {forgotten: getattr(make(), forgotten).state_dict()})
        torch.manual_seed(0)
        three = make()
        three.load_state_dict(one.state_dict())
        update(two, 7), update(three, 7)
        assert any(not torch.equal(a, b) for a, b in zip(two.network.parameters(), three.network.parameters(), strict=True))


def test_a_policy_with_other_observations_is_refused() -> None:
    state = make().state_dict()
    other = SMALL.build(replace(SPEC, feature_names=("time_left", "cue", "hint")), seed=0)
    with pytest.raises(ValueError, match="features time_left, cue, noise, but this run has time_left, cue, hint"):
        other.load_state_dict(state)


# ---- config


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gamma", 1.1),
        ("gamma", -0.1),
        ("lam", 1.5),
        ("learning_rate", 0.0),
        ("learning_rate", float("inf")),
        ("epochs", 0),
        ("minibatches", 0),
        ("clip", 0.0),
        ("clip", 2.0),
        ("target_kl", 0.0),
        ("value_coef", -1.0),
        ("chunk", -1),
        ("entropy_coef", -1.0),
        ("entropy_final", float("nan")),
        ("max_grad_norm", 0.0),
        ("advantage_floor", 0.0),
        ("popart_step", -0.1),
        ("popart_step", 1.1),
        ("hidden", 0),
        ("slot_width", 0),
        ("blueprint_width", 0),
        ("wait_bias", float("inf")),
    ],
)
def test_values_out_of_range_are_refused_by_key(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"agent\.{name} must be .*got {value}"):
        PPOConfig(**{name: value})


def test_doubtful_values_warn() -> None:
    for config in ({"gamma": 0.5}, {"clip": 0.5}):
        with pytest.warns(UserWarning, match=f"agent.{next(iter(config))}="):
            PPOConfig(**config)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PPOConfig()


def test_a_config_without_a_controller_says_so() -> None:
    with pytest.raises(TypeError, match="AgentConfig does not define build"):
        AgentConfig().build(SPEC, seed=0)
