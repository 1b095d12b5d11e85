"""A rollout lived again: in whole rows or in chunks, clipped as one or head by head, with and without foresight."""

# T steps, N hosts, S slots, C chunks of a row

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from esper.agent.ppo import learner as learner_module
from esper.agent.ppo.config import PPOConfig, PPOMLPConfig
from esper.agent.ppo.distribution import segments
from esper.agent.ppo.gae import Baseline, leave_one_out, returns_to_go
from esper.agent.ppo.learner import PPO
from esper.agent.ppo.losses import Surrogate
from esper.agent.ppo.objective import chunk_starts, losses
from esper.agent.ppo.targets import NEEDED
from esper.buffer.rollout import Rollout
from esper.env.actions import Head, Observation
from tests.agent.toy_worlds import blank, make_spec, random_observation, random_rollout

SPEC = make_spec(hosts=8, steps=6)
SMALL = PPOConfig(hidden=16, slot_width=16, twins=1, baseline=Baseline.critic)
SHOWN = (*NEEDED, "noise")
SEEING = replace(SPEC, slot_feature_names=SHOWN)


def make(spec: Any = SPEC, kind: type[PPOConfig] = PPOConfig, **config: Any) -> PPO:
    return replace(kind(hidden=16, slot_width=16), **config).build(spec, seed=0)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_start() -> dict[str, torch.Tensor]:
    return {name: torch.randn(8, 16, generator=generator()) for name in ("h", "c")}


def trained(**config: Any) -> tuple[list[torch.Tensor], list[str]]:
    """Weights and stats after a few updates."""
    agent = make(**config)
    stats = []
    for seed in range(3):
        rollout = random_rollout(agent, np.random.default_rng(seed), resets=0.2)
        stats.append(repr(agent.update(rollout, progress=0.0, generator=generator(seed))))
    return list(agent.network.parameters()), stats


def test_choices_that_a_minibatch_lacks_change_nothing_to_the_bit() -> None:
    agent = make()
    rollout = random_rollout(agent, np.random.default_rng(0), resets=0.2)
    for place in segments(SPEC.head_sizes).values():  # the first host may choose, the others have one value a head
        rollout.seen.legal_values[:, 1:, place] = False
        rollout.seen.legal_values[:, 1:, place.start] = True
    rollout.action_TNH[:, 1:, Head.BLUEPRINT :] = 0
    targets, rows = agent._targets(rollout), torch.arange(1, 8)
    assert targets.free
    told: list[tuple[dict[str, torch.Tensor], list[torch.Tensor | None]]] = []
    for free in (targets.free, None):
        agent.network.zero_grad()
        log_ratio, terms = agent._losses(rollout, replace(targets, free=free), rows)
        sum(terms.values()).backward()  # pyright: ignore[reportAttributeAccessIssue]
        grads = [None if p.grad is None else p.grad.clone() for p in agent.network.parameters()]
        told.append((terms | {"log_ratio": log_ratio}, grads))
    assert all(torch.equal(told[0][0][name], told[1][0][name]) for name in told[0][0])
    for one, other in zip(told[0][1], told[1][1], strict=True):
        assert torch.equal(torch.zeros(()) if one is None else one, torch.zeros_like(one) if other is None else other)  # pyright: ignore


# ---- chunks


@pytest.mark.parametrize("kind", [PPOConfig, PPOMLPConfig])
def test_a_chunk_of_all_steps_is_the_whole_row_to_the_bit(kind: type[PPOConfig]) -> None:
    (rows, told), (chunks, same) = trained(kind=kind), trained(kind=kind, chunk=6)
    assert all(torch.equal(a, b) for a, b in zip(rows, chunks, strict=True))
    assert told == same
    (shorter, _) = trained(kind=kind, chunk=3)
    assert any(not torch.equal(a, b) for a, b in zip(rows, shorter, strict=True))


@pytest.mark.parametrize("chunk", [1, 2, 3, 6])
@pytest.mark.parametrize("begun", [False, True])
def test_chunks_start_with_what_a_full_unroll_remembers_there(chunk: int, begun: bool) -> None:
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
    agent = make(chunk=2)
    for seed in range(3):
        start = random_start() if begun else None
        rollout = random_rollout(agent, np.random.default_rng(seed), resets=resets, initial_state=start)
        assert agent.update(rollout, progress=0.0, generator=generator()).first_ratio_error < 1e-5


def test_chunks_that_start_with_nothing_are_noticed_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make(chunk=2, minibatches=1, learning_rate=1e-2)
    for seed in range(10):
        agent.update(random_rollout(agent, np.random.default_rng(seed)), progress=0.0, generator=generator())
    rollout = random_rollout(agent, np.random.default_rng(10))
    rollout.log_prob_TN[5, 3] += 0.5
    with pytest.raises(RuntimeError, match="at step 5 of host 3"):
        agent.update(rollout, progress=0.0, generator=generator())
    rollout.log_prob_TN[5, 3] -= 0.5
    monkeypatch.setattr(learner_module, "chunk_starts", lambda network, rollout, chunk: network.start(24))
    with pytest.raises(RuntimeError, match=r"does not reproduce its rollout: at step [2-5] "):
        agent.update(rollout, progress=0.0, generator=generator())


def test_starts_are_made_anew_in_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, seen = make(chunk=2, epochs=3, target_kl=1e9), []

    def spy(network: Any, rollout: Rollout, chunk: int) -> Any:
        weights = [parameter.detach().clone() for parameter in network.parameters()]
        seen.append((weights, chunk_starts(network, rollout, chunk)))
        return seen[-1][1]

    monkeypatch.setattr(learner_module, "chunk_starts", spy)
    rollout = random_rollout(agent, np.random.default_rng(0))
    agent.update(rollout, progress=0.0, generator=generator())
    assert len(seen) == 3
    assert not torch.equal(seen[0][1]["h"][8:], seen[1][1]["h"][8:])
    assert not torch.equal(seen[1][1]["h"][8:], seen[2][1]["h"][8:])
    assert rollout.chunks == 1, "the rollout itself is not cut"
    assert not rollout.initial_state


def test_gradients_end_where_the_chunk_starts() -> None:
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


def test_twins_count_for_each_other_in_whatever_minibatch_they_are() -> None:
    agent = make(twins=4, baseline=Baseline.twins)
    rollout = random_rollout(agent, np.random.default_rng(0), observe=lambda t: open_to_all(t))
    targets = agent._targets(rollout)
    ends = rollout.terminated_TN, rollout.truncated_TN
    raw = leave_one_out(returns_to_go(rollout.reward_TN, rollout.next_value_TN, *ends, gamma=1.0), 4)
    expected = (raw - raw.mean()) / raw.std(correction=0)
    for host in range(8):
        _, terms = agent._losses(rollout, targets, torch.tensor([host]))
        assert terms["policy_loss"].item() == pytest.approx(-expected[:, host].mean().item(), abs=1e-5)


def open_to_all(t: int) -> Observation:
    """Every operation is legal."""
    return random_observation(SPEC, np.random.default_rng(t), legal=1.0)


def test_the_share_of_clipped_gradients_is_told() -> None:
    def share(bound: float) -> tuple[float, list[float]]:
        agent = make(max_grad_norm=bound, epochs=1)
        norms, step = [], agent._step

        def spy(*given: Any) -> Any:
            numbers = step(*given)
            norms.append(numbers[0]["grad_norm"])
            return numbers

        agent._step = spy
        stats = agent.update(random_rollout(agent, np.random.default_rng(0)), progress=0.0, generator=generator())
        return stats.grad_clipped, norms

    none, norms = share(1e9)
    assert none == 0.0
    assert share(1e-9)[0] == 1.0
    some, there = share(sorted(norms)[1] * 1.0001)
    assert some == np.mean([norm > sorted(norms)[1] * 1.0001 for norm in there])
    assert 0 < some < 1


# ---- head by head


def test_before_the_first_step_both_surrogates_ask_for_the_same() -> None:
    agent = make(surrogate=Surrogate.per_head)
    rollout = random_rollout(agent, np.random.default_rng(0), observe=lambda t: free(t))
    assert rollout.head_log_prob_TNH.count_nonzero() > rollout.log_prob_TN.count_nonzero(), "several heads were drawn in a step"
    targets, gradients = agent._targets(rollout), []
    for surrogate in Surrogate:
        agent.network.zero_grad()
        _, terms = losses(agent.network, rollout, targets, torch.arange(8), clip=0.2, surrogate=surrogate)
        terms["policy_loss"].backward()
        gradients.append([p.grad.clone() for p in agent.network.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) > 0
    for joint, by_head in zip(*gradients, strict=True):
        torch.testing.assert_close(joint, by_head, atol=1e-6, rtol=1e-4)


def free(t: int) -> Observation:
    """Every operation is legal, and parameters are free."""
    return random_observation(SPEC, np.random.default_rng(t), legal=1.0, free=True)


def test_further_on_they_do_not() -> None:
    weights = []
    for surrogate in Surrogate:
        agent = make(surrogate=surrogate, clip=0.05, target_kl=1e9)
        rollout = random_rollout(agent, np.random.default_rng(0), observe=free)
        stats = agent.update(rollout, progress=0.0, generator=generator())
        assert stats.first_ratio_error < 1e-5
        weights.append(agent.network.op.weight.detach())
    assert not torch.equal(*weights)


def test_a_rollout_that_does_not_say_what_heads_added_cannot_be_learned_from_by_head() -> None:
    rollout = random_rollout(make(), np.random.default_rng(0))
    with pytest.raises(AssertionError, match="what the heads added is not in this rollout"):
        make(surrogate=Surrogate.per_head).update(rollout, progress=0.0, generator=generator())


# ---- foresight


class Garden:
    """A seed in every slot, whose contribution after a step is what the slot showed before it, or chance."""

    def __init__(self, seed: int, *, known: float) -> None:
        self.rng, self.known = np.random.default_rng(seed), known
        self.cue = self.rng.standard_normal((8, 3)).astype(np.float32)

    def observe(self, t: int) -> Observation:
        seen = blank(SEEING)
        column = {name: seen.slots[:, :, index] for index, name in enumerate(SHOWN)}
        column["stage_holding"][:] = column["alpha"][:] = column["contribution_measured"][:] = 1.0
        chance = self.rng.standard_normal((8, 3))
        column["contribution"][:] = 0.2 * (self.known * self.cue + (1 - self.known) * chance)
        self.cue = column["noise"][:] = self.rng.standard_normal((8, 3)).astype(np.float32)
        return seen


def forecast(known: float, **config: Any) -> float:
    """R^2 of a fresh rollout, after some updates."""
    agent = make(SEEING, learning_rate=1e-2, target_kl=1e9, **config)
    stats = None
    for seed in range(12):
        rollout = random_rollout(agent, np.random.default_rng(seed), observe=Garden(seed, known=known).observe)
        stats = agent.update(rollout, progress=0.0, generator=generator(seed))
    assert stats is not None
    return stats.contribution_r2


def test_what_can_be_foreseen_is_foreseen_and_chance_is_not() -> None:
    """Chance would be foreseen too, and well, if a step were told its own measurement."""
    assert forecast(1.0, aux_coef=1.0) > 0.8
    assert forecast(0.0, aux_coef=1.0) < 0.1


def test_its_gradient_reaches_the_trunk_and_no_other_head() -> None:
    agent = make(SEEING, aux_coef=1.0)
    rollout = random_rollout(agent, np.random.default_rng(0), observe=Garden(0, known=1.0).observe)
    _, terms = agent._losses(rollout, agent._targets(rollout), torch.arange(8))
    terms["contribution_loss"].backward()
    reached = {name.partition(".")[0] for name, p in agent.network.named_parameters() if p.grad is not None and p.grad.any()}
    assert reached == {"blueprint", "identity", "slot_in", "slot_out", "mix", "norm", "core", "foresight"}


def test_a_slot_is_foreseen_from_what_it_shows_even_where_nothing_is_remembered() -> None:
    """With a core that says nothing, each prediction hangs on its own slot."""
    agent = make(SEEING, aux_coef=1.0)
    rollout = random_rollout(agent, np.random.default_rng(0), observe=Garden(0, known=1.0).observe)
    for parameter in agent.network.core.parameters():
        torch.nn.init.zeros_(parameter)
    slots = rollout.seen.slots.clone().requires_grad_()
    outputs, _ = agent.network.unroll(replace(rollout.seen, slots=slots), agent.start(8), rollout.is_init_TN)
    outputs.contribution_BS[:, 0].sum().backward()
    assert slots.grad[:, :, 0].any(dim=2).all()
    assert not slots.grad[:, :, 1:].any()


def test_its_weight_scales_its_gradient_in_the_step() -> None:
    steps = []
    for coefficient in (1.0, 3.0):
        agent = make(SEEING, aux_coef=coefficient, max_grad_norm=1e9)
        rollout = random_rollout(agent, np.random.default_rng(0), observe=Garden(0, known=1.0).observe)
        _, terms = agent._losses(rollout, agent._targets(rollout), torch.arange(8))
        agent._step(terms, 0.0)
        steps.append(agent.network.foresight[0].weight.grad.clone())
    torch.testing.assert_close(steps[1], 3 * steps[0])


def test_without_it_there_is_nothing_and_the_rest_is_born_the_same() -> None:
    without, with_it = make(SEEING), make(SEEING, aux_coef=1e-3)
    assert without.network.foresight is None
    weights = dict(with_it.network.named_parameters())
    assert all(torch.equal(weights[name], parameter) for name, parameter in without.network.named_parameters())
    rollout = random_rollout(without, np.random.default_rng(0), observe=Garden(0, known=1.0).observe)
    targets = without._targets(rollout)
    assert targets.contributions is None
    assert "contribution_loss" not in without._losses(rollout, targets, torch.arange(8))[1]
    stats = without.update(rollout, progress=0.0, generator=generator())
    assert np.isnan([stats.contribution_r2, stats.contribution_loss]).all()


def test_a_rollout_in_which_nothing_was_measured_teaches_no_foresight() -> None:
    agent = make(SEEING, aux_coef=1.0)
    rollout = random_rollout(agent, np.random.default_rng(0), observe=lambda t: blank(SEEING))
    stats = agent.update(rollout, progress=0.0, generator=generator())
    assert stats.contribution_loss == 0.0
    assert np.isnan(stats.contribution_r2)
