"""Imitation: the policy does what its teacher does, in states to which the policy itself leads, and then learns on its own."""

# T steps, N hosts, H heads

import math
from typing import Any

import numpy as np
import pytest
import torch

from esper.agent.base import Controller
from esper.agent.ppo.advantages import Baseline
from esper.agent.ppo.imitation import SMOOTHING, imitation_loss, teacher_actions
from esper.agent.ppo.losses import Surrogate
from esper.agent.ppo.ppo import PPO, PPOConfig
from esper.agent.scripted.base import RandomConfig, Scripted, UniformArray, compose
from esper.buffer.rollout import Rollout
from esper.buffer.transition import Decision, State
from esper.env.actions import RELEVANT, Head, Op
from esper.env.spec import Observation
from esper.lifecycle.stages import IntArray
from tests.agent.small_policy import SPEC, generator, make, update
from tests.agent.toy_envs import ToyEnv, blank, learn, play, random_observation, random_rollout


class Second(Scripted):
    """Plants in the marked slot the second time that it may, so that it has to remember the first."""

    def start(self, num_hosts: int) -> State:
        return {"seen": torch.zeros(num_hosts, dtype=torch.int64)}

    def decide(self, observation: Observation, state: State, uniform_NH: UniformArray) -> tuple[IntArray, State]:
        may_N = observation.legal_slots[:, Op.GERMINATE].all(axis=1)
        seen_N = np.where(observation.features[:, 0] == 1, 0, state["seen"].numpy()) + may_N
        op_N = np.where(may_N & (seen_N == 2), Op.GERMINATE, Op.WAIT)
        slot_N = observation.slots[:, :, 0].argmax(axis=1)
        return compose(observation, self.spec, op_N, slot_N, blueprint=slot_N), {"seen": torch.from_numpy(seen_N)}


class Marks(ToyEnv):
    """Slots are marked at random, and open in some steps; every seed costs a point, so PPO alone learns to wait."""

    def observe(self, t: int) -> Observation:
        seen = blank(self.spec)
        seen.features[:, 0] = 1 - t / self.spec.num_steps
        seen.slots[np.arange(len(seen.slots)), self.rng.integers(0, self.spec.num_slots, len(seen.slots)), 0] = 1
        seen.legal_slots[:, Op.GERMINATE] = self.rng.random((self.spec.num_hosts, 1)) < 0.5
        seen.features[:, 1] = seen.legal_slots[:, Op.GERMINATE, 0]
        return seen

    def pay(self, t: int, decision: Decision) -> tuple[np.ndarray, np.ndarray]:
        return -np.float32(decision.action[:, Head.OP] == Op.GERMINATE), np.zeros(self.spec.num_hosts, np.bool_)


def asked_of(teacher: Controller, rollout: Rollout) -> torch.Tensor:
    """Return what a teacher would do in every step of a rollout."""
    return teacher_actions(teacher, rollout, SPEC.head_sizes, rng=np.random.default_rng(0), named="agent.teacher=x")


def agreement(agent: PPO, env: ToyEnv) -> tuple[float, float]:
    """Return the shares of unforced steps, and of those in which the teacher plants, in which both do the same."""
    rollout = play(agent, env, greedy=True)
    taught_TNH = asked_of(Second(env.spec), rollout)
    same_TN = (taught_TNH == rollout.action_TNH).all(dim=2)
    plants_TN = taught_TNH[..., Head.OP] == Op.GERMINATE
    return same_TN[~rollout.forced_TN].float().mean().item(), same_TN[plants_TN].float().mean().item()


def test_a_policy_learns_from_its_teacher_what_no_reward_asks_for() -> None:
    env = Marks(SPEC, np.random.default_rng(0))
    agent = learn(env, 0, twins=1, baseline=Baseline.critic, teacher="x", imitation=0.5)
    agent.follow(Second(SPEC))
    judge = Marks(SPEC, np.random.default_rng(1))
    before = agreement(agent, judge)[1]
    for number in range(40):
        agent.update(play(agent, env), progress=number / 100, generator=generator(number))
        if number % 8 == 7 and min(agreement(agent, judge)) > 0.97:
            break
    whole, plants = agreement(agent, env)
    assert before < 0.2
    assert whole > 0.95
    assert plants > 0.9
    for number in range(40):  # then by itself, from what seeds cost
        agent.update(play(agent, env), progress=0.5, generator=generator(number))
        if number % 8 == 7 and agreement(agent, judge)[1] < 0.03:
            break
    assert agreement(agent, env)[1] < 0.1


def test_a_teacher_is_asked_about_the_hosts_of_the_policy_in_order_and_with_its_own_memory() -> None:
    env, agent, teacher = Marks(SPEC, np.random.default_rng(1)), make(), Second(SPEC)
    online: list[IntArray] = []

    def asked(t: int) -> Observation:
        seen = env.observe(t)
        state.update(teacher.act(seen, dict(state), is_init=np.full(8, t == 0), uniform=np.zeros((8, len(Head)))).state)
        online.append(teacher.act(seen, before[-1], is_init=np.full(8, t == 0), uniform=np.zeros((8, len(Head)))).action)
        before.append(dict(state))
        return seen

    state = teacher.start(8)
    before = [dict(state)]
    rollout = random_rollout(agent, np.random.default_rng(0), observe=asked)
    assert asked_of(teacher, rollout).tolist() == np.stack(online).tolist()
    assert (np.stack(online)[..., Head.OP] == Op.GERMINATE).any()


@pytest.mark.parametrize("options", [{}, {"chunk": 2}, {"surrogate": Surrogate.per_head}], ids=str)
def test_only_the_first_updates_imitate(options: dict[str, Any]) -> None:
    agent = make(teacher="x", imitation=0.5, target_kl=1e-9, **options)
    agent.follow(Second(SPEC))
    first = update(agent, progress=0.49)
    assert first["imitation_loss"] > 0
    assert first["minibatches_skipped"] == 0, "a step of imitation may be large"
    names = ("kl", "kl_of_target", "ratio_max", "clip_fraction", "policy_loss", "entropy_coef")
    assert all(math.isnan(first[name]) for name in names)
    later = update(agent, progress=0.5)
    assert "imitation_loss" not in later
    assert later["minibatches_skipped"] > 0
    assert all(math.isfinite(later[name]) for name in names)
    assert "imitation_loss" not in update(agent, progress=0.1), "a longer run does not imitate again"
    restored = make(teacher="x", imitation=0.5, **options)
    restored.follow(Second(SPEC))
    restored.load_state_dict(agent.state_dict())
    assert "imitation_loss" not in update(restored, progress=0.1)
    assert "imitation_loss" not in update(make(), progress=0.0)
    assert PPOConfig(teacher="x").imitates == "x"


def test_the_loss_is_the_cross_entropy_over_decisions_however_rows_are_cut() -> None:
    losses = []
    for chunk, earlier in ((0, []), (2, []), (0, [1])):
        agent = make(teacher="x", chunk=chunk, epochs=1, minibatches=1)
        agent.follow(Second(SPEC))
        rollout = random_rollout(agent, np.random.default_rng(0), resets=0.3)
        others: list[Rollout] = [random_rollout(agent, np.random.default_rng(seed)) for seed in earlier]
        if not chunk and not earlier:
            outputs, _ = agent.network.unroll(rollout.seen, agent.start(8), rollout.is_init_TN, None)
            loss_TN = imitation_loss(outputs.distribution, asked_of(Second(SPEC), rollout).flatten(0, 1)).view(6, 8)
            expected = loss_TN[~rollout.forced_TN].mean().item()
        losses.append(agent.update(rollout, progress=0.0, generator=generator(), earlier=others)["imitation_loss"])
    assert losses[0] == pytest.approx(expected, rel=1e-5)
    assert losses[1] == pytest.approx(expected, rel=1e-5)
    assert losses[2] != pytest.approx(expected, rel=1e-3), "rollouts of earlier policies are labelled, too"


@pytest.mark.slow
def test_a_policy_still_explores_when_ppo_takes_over() -> None:
    env = Marks(SPEC, np.random.default_rng(0))
    agent = learn(env, 0, teacher="x", imitation=0.5)  # with twins, whose advantages are 0 where they act alike
    agent.follow(Second(SPEC))
    for number in range(40):
        last = agent.update(play(agent, env), progress=number / 100, generator=generator(number))
    assert min(last["entropy_share_op"], last["entropy_share_slot"], last["entropy_share_blueprint"]) > 0.1
    assert last["entropy_share_op"] < 0.5
    first = agent.update(play(agent, env), progress=0.5, generator=generator())
    assert first["kl"] > 1e-4


def test_targets_are_smoothed_over_legal_values_of_the_heads_that_matter() -> None:
    agent = make()
    seen = random_observation(SPEC, np.random.default_rng(3), free=True)
    rollout = random_rollout(agent, np.random.default_rng(0), observe=lambda t: seen)
    distribution = agent.network.unroll(rollout.seen, agent.start(8), rollout.is_init_TN, None)[0].distribution
    taught_BH = distribution.sample(torch.rand(48, len(Head), generator=generator()).double())
    expected = torch.zeros(48)
    for row, action in enumerate(taught_BH.tolist()):
        op, slot = action[Head.OP], action[Head.SLOT]
        heads = [(distribution.op_BO[row], op)] + [(distribution.slot_BOS[row, op], slot)] * bool(RELEVANT[op, Head.SLOT])
        heads += [(part[row, slot], action[head]) for (of, head), part in distribution.parameters.items() if of == op]
        for log_prob_W, chosen in heads:
            legal_W = log_prob_W > -1e8
            target_W = SMOOTHING * legal_W / legal_W.sum()
            target_W[chosen] += 1 - SMOOTHING
            expected[row] -= (target_W * log_prob_W)[legal_W].sum()
    torch.testing.assert_close(imitation_loss(distribution, taught_BH), expected.detach(), check_dtype=False)


class Blind(Scripted):
    """Prunes the first slot, whether there is a seed or not."""

    def choose(self, observation: Observation, uniform_NH: UniformArray) -> IntArray:
        return np.full((len(observation.features), len(Head)), [Op.PRUNE, *[0] * 7])


def test_an_illegal_label_is_an_error_that_names_the_teacher() -> None:
    agent = make(teacher="blind")
    agent.follow(Blind(SPEC))
    with pytest.raises(ValueError, match=r"^agent\.teacher=blind chose prune \(slot 0, .*\), which is illegal there"):
        update(agent)


def test_a_random_teacher_draws_its_actions_anew_in_every_update() -> None:
    def labels(number: int) -> torch.Tensor:
        agent = make(teacher="random", epochs=1)
        agent.follow(RandomConfig().build(SPEC, seed=0))
        agent._number = number
        rollout = random_rollout(agent, np.random.default_rng(0))
        agent.update(rollout, progress=0.0, generator=generator())
        assert rollout.taught_TNH is not None
        return rollout.taught_TNH[~rollout.forced_TN]

    waits = (labels(0)[:, Head.OP] == Op.WAIT).float().mean().item()
    assert 0.1 < waits < 0.6
    assert torch.equal(labels(0), labels(0))
    assert not torch.equal(labels(0), labels(1))


def test_a_teacher_sees_each_rollout_of_a_window_once_with_its_own_hosts() -> None:
    agent, teacher, asked = make(teacher="x", epochs=1), Second(SPEC), list[int]()
    start = teacher.start
    teacher.start = lambda num_hosts: asked.append(num_hosts) or start(num_hosts)
    agent.follow(teacher)
    window: list[Rollout] = []
    for seed in range(3):
        window.insert(0, random_rollout(agent, np.random.default_rng(seed)))
        agent.update(window[0], progress=0.0, generator=generator(), earlier=window[1:])
        window = [Rollout.from_state(rollout.state_dict()) for rollout in window]  # as in a resumed run
    assert asked == [8, 8, 8]
    assert "imitation_loss" not in agent.update(
        random_rollout(agent, np.random.default_rng(9)), progress=0.5, generator=generator(), earlier=window
    )
