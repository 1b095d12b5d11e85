"""Imitation: the policy does what its teacher does, in states to which the policy itself leads, and then learns on its own."""

# T steps, N hosts, H heads

import math
from typing import Any

import numpy as np
import pytest
import torch

from esper.agent.base import Controller
from esper.agent.ppo.advantages import Baseline
from esper.agent.ppo.imitation import imitation_loss, teacher_actions
from esper.agent.ppo.losses import Surrogate
from esper.agent.ppo.ppo import PPO, PPOConfig
from esper.agent.scripted.base import Scripted, UniformArray, compose
from esper.buffer.rollout import Rollout
from esper.buffer.transition import Decision, State
from esper.env.actions import Head, Observation, Op
from esper.lifecycle.stages import IntArray
from tests.agent.small_policy import SPEC, generator, make, update
from tests.agent.toy_envs import ToyEnv, blank, learn, play, random_rollout


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
    before = agreement(agent, env)[1]
    for number in range(40):
        agent.update(play(agent, env), progress=number / 100, generator=generator(number))
    whole, plants = agreement(agent, env)
    assert before < 0.2
    assert whole > 0.95
    assert plants > 0.9
    for number in range(40):  # then by itself, from what seeds cost
        agent.update(play(agent, env), progress=0.5, generator=generator(number))
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
    assert all(math.isnan(first[name]) for name in ("kl", "kl_of_target", "ratio_max", "clip_fraction"))
    later = update(agent, progress=0.5)
    assert "imitation_loss" not in later
    assert later["minibatches_skipped"] > 0
    assert all(math.isfinite(later[name]) for name in ("kl", "kl_of_target", "ratio_max", "clip_fraction"))
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
