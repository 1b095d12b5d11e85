"""PPO solves small environments within seconds, and fails where a necessary part is switched off."""

# T steps, N hosts, S slots

from typing import Any

import numpy as np
import pytest
import torch

from esper.agent.ppo.losses import Surrogate
from esper.agent.ppo.ppo import PPO, PPOMLPConfig
from esper.buffer.transition import Decision
from esper.env.actions import Head, Op
from esper.env.spec import Observation
from tests.agent.toy_envs import ToyEnv, blank, learn, make_spec, mean_return, play


class MaskedBandit(ToyEnv):
    """One step. The right seed in the right slot pays 1, where that slot is open; waiting pays 0.1, anything else nothing."""

    SLOT, BLUEPRINT = 1, 2

    def observe(self, t: int) -> Observation:
        seen = blank(self.spec)
        seen.slots[:, self.SLOT, 0] = 1.0
        seen.legal_slots[:, Op.GERMINATE] = self.rng.random((self.spec.num_hosts, self.spec.num_slots)) < 0.6
        seen.slots[:, :, 1] = seen.legal_slots[:, Op.GERMINATE]
        seen.legal_slots[:, Op.PRUNE, 0] = True
        self.open = seen.legal_slots[:, Op.GERMINATE, self.SLOT]
        return seen

    def pay(self, t: int, decision: Decision) -> tuple[np.ndarray, np.ndarray]:
        action = decision.action
        hit = (action[:, Head.OP] == Op.GERMINATE) & (action[:, Head.SLOT] == self.SLOT)
        hit &= action[:, Head.BLUEPRINT] == self.BLUEPRINT
        reward = np.where(action[:, Head.OP] == Op.WAIT, 0.1, 1.0 * hit)
        return reward.astype(np.float32), np.zeros(len(action), np.bool_)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"surrogate": Surrogate.per_head}, {"kind": PPOMLPConfig}], ids=["ppo", "per_head", "mlp"]
)
def test_masked_bandit(options: dict[str, Any]) -> None:
    env = MaskedBandit(make_spec(hosts=64, steps=1), np.random.default_rng(0))
    agent = learn(env, 40, entropy_coef=0.03, **options)
    rollout = play(agent, env, greedy=True)
    expected = np.where(env.open, 1.0, 0.1)
    assert (rollout.reward_TN[0].numpy() == expected.astype(np.float32)).mean() > 0.98


class TwoSteps(ToyEnv):
    """First any seed or none, unpaid; then advancing pays 1, but only after blueprint 3. Nothing shows which one it was."""

    def observe(self, t: int) -> Observation:
        seen = blank(self.spec)
        seen.features[:, 0] = 1 - t / 2
        seen.legal_slots[:, Op.GERMINATE if t == 0 else Op.ADVANCE] = True
        return seen

    def pay(self, t: int, decision: Decision) -> tuple[np.ndarray, np.ndarray]:
        op = decision.action[:, Head.OP]
        if t == 0:
            self.right = (op == Op.GERMINATE) & (decision.action[:, Head.BLUEPRINT] == 3)
            return np.zeros(len(op), np.float32), np.zeros(len(op), np.bool_)
        return np.where(self.right, op == Op.ADVANCE, 0.0).astype(np.float32), np.zeros(len(op), np.bool_)


def test_delayed_credit_reaches_the_parameter_head() -> None:
    env = TwoSteps(make_spec(hosts=64, steps=2), np.random.default_rng(0))
    assert mean_return(learn(env, 40, until=0.98), env) > 0.95


class Memory(ToyEnv):
    """A cue in the first step; in the last, germinating is right where it was 1, and waiting where it was -1."""

    def reset(self) -> None:
        self.cue = self.rng.random(self.spec.num_hosts) < 0.5

    def observe(self, t: int) -> Observation:
        seen = blank(self.spec)
        seen.features[:, 0] = 1 - t / self.spec.num_steps
        if t == 0:
            seen.features[:, 1] = np.where(self.cue, 1.0, -1.0)
        if t == self.spec.num_steps - 1:
            seen.legal_slots[:, Op.GERMINATE, 0] = True
        return seen

    def pay(self, t: int, decision: Decision) -> tuple[np.ndarray, np.ndarray]:
        right = (decision.action[:, Head.OP] == Op.GERMINATE) == self.cue
        paid = right if t == self.spec.num_steps - 1 else np.zeros_like(right)
        return paid.astype(np.float32), np.zeros(len(paid), np.bool_)


def test_the_lstm_remembers_within_an_episode_only() -> None:
    """A cue in step 0, and the choice it is for in step 7."""
    spec = make_spec(hosts=64, steps=8, slots=1, blueprints=1)
    env = Memory(spec, np.random.default_rng(0))
    agent = learn(env, 40, until=0.98)
    assert mean_return(agent, env) > 0.95
    assert np.mean([mean_return(agent, env, always_init=True) for _ in range(8)]) < 0.65
    without = learn(env, 10, kind=PPOMLPConfig)
    assert np.mean([mean_return(without, env) for _ in range(8)]) < 0.65


def test_memory_crosses_chunks() -> None:
    """The last two steps learn to read what four steps before them left behind, though no gradient asked for it."""
    env = Memory(make_spec(hosts=64, steps=6, slots=1, blueprints=1), np.random.default_rng(0))
    assert mean_return(learn(env, 30, chunk=2, until=0.98), env) > 0.95


class Rollback(ToyEnv):
    """Pruning breaks the host: penalty, and a new sub-episode. Waiting pays a little, fossilising the same."""

    def observe(self, t: int) -> Observation:
        seen = blank(self.spec)
        seen.features[:, 0] = 1 - t / self.spec.num_steps
        seen.legal_slots[:, [Op.PRUNE, Op.FOSSILIZE]] = True
        return seen

    def pay(self, t: int, decision: Decision) -> tuple[np.ndarray, np.ndarray]:
        broken = decision.action[:, Head.OP] == Op.PRUNE
        return np.where(broken, -10.0, 0.1).astype(np.float32), broken


def op_probability(agent: PPO, env: ToyEnv, op: Op) -> float:
    with torch.no_grad():
        rollout = play(agent, env)
        outputs, _ = agent.network.unroll(rollout.seen, agent.start(env.spec.num_hosts), rollout.is_init_TN)
    return float(outputs.distribution.op_BO[:, op].exp().mean())


def test_actions_that_break_a_host_become_rare() -> None:
    env = Rollback(make_spec(hosts=32, steps=5), np.random.default_rng(0))
    newborn, learned = learn(env, 0), learn(env, 15)
    assert op_probability(newborn, env, Op.PRUNE) > 0.15
    assert op_probability(learned, env, Op.PRUNE) < 0.03


@pytest.mark.slow
def test_the_critic_explains_predictable_returns() -> None:
    """Every step pays what the cue of the first step says, so that returns are known from then on."""

    class Annuity(Memory):
        def observe(self, t: int) -> Observation:
            seen = Memory.observe(self, t)
            seen.legal_slots[:, Op.GERMINATE, 0] = True
            return seen

        def pay(self, t: int, decision: Decision) -> tuple[np.ndarray, np.ndarray]:
            return np.where(self.cue, 50.0, -20.0).astype(np.float32), np.zeros(len(self.cue), np.bool_)

    env = Annuity(make_spec(hosts=32, steps=5), np.random.default_rng(0))
    agent = learn(env, 40)
    stats = agent.update(play(agent, env), progress=1.0, generator=torch.Generator().manual_seed(0))
    assert stats["explained_variance"] > 0.95
