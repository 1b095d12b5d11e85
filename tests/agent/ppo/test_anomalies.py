"""Real updates of policies damaged in one way each, and the anomalies that they raise; a healthy policy raises none."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from esper.agent.ppo.advantages import Baseline
from esper.agent.ppo.ppo import PPO, PPOConfig
from esper.buffer.transition import Decision
from esper.env.actions import Head, Op
from esper.env.spec import Observation
from esper.telemetry.anomalies import AnomaliesConfig
from esper.telemetry.tags import measured
from tests.agent.ppo.test_learning import MaskedBandit, Memory, Rollback
from tests.agent.toy_envs import ToyEnv, make_spec, play

STILL = {"learning_rate": 1e-9}
"""A learning rate so small that the damage lasts."""


class Wages(Memory):
    """Every step pays what the cue of the first step says, and a little more for germinating: each part has much to learn."""

    def observe(self, t: int) -> Observation:
        seen = Memory.observe(self, t)
        seen.legal_slots[:, Op.GERMINATE, 0] = True
        return seen

    def pay(self, t: int, decision: Decision) -> tuple[np.ndarray, np.ndarray]:
        paid = np.where(self.cue, 5.0, -2.0) + 0.5 * (decision.action[:, Head.OP] == Op.GERMINATE)
        return paid.astype(np.float32), np.zeros(len(self.cue), np.bool_)


def wages() -> ToyEnv:
    return Wages(make_spec(hosts=32, steps=5), np.random.default_rng(0))


def rollback() -> ToyEnv:
    return Rollback(make_spec(hosts=32, steps=5), np.random.default_rng(0))


def bandit() -> ToyEnv:
    return MaskedBandit(make_spec(hosts=64, steps=1), np.random.default_rng(0))


def anomalies(env: ToyEnv, updates: int, damage: Callable[[PPO], None] = lambda agent: None, **config: Any) -> set[str]:
    """Keys of all anomalies in some updates of a policy that was damaged at the start."""
    torch.set_num_threads(1)
    small = replace(
        PPOConfig(hidden=16, slot_width=16, learning_rate=1e-2, minibatches=2, twins=1, baseline=Baseline.critic), **config
    )
    agent, watch = (
        small.build(env.spec, seed=0),
        AnomaliesConfig(patience=2, min_germinations=16).build(env.spec.num_hosts * env.spec.num_steps),
    )
    damage(agent)
    generator, found = torch.Generator().manual_seed(0), set[str]()
    for update in range(updates):
        stats = agent.update(play(agent, env), progress=update / updates, generator=generator)
        found |= {
            anomaly.key
            for anomaly in watch.look(update + 1, measured({f"policy/{name}": value for name, value in stats.items()})).present
        }
    return found


def scale(factor: float, *layers: str) -> Callable[[PPO], None]:
    """Multiplies the weights of layers."""

    def damage(agent: PPO) -> None:
        for name, parameter in agent.network.named_parameters():
            if name.startswith(tuple(f"{layer}." for layer in layers)):
                parameter.data *= factor

    return damage


def test_a_healthy_policy_raises_no_anomaly() -> None:
    assert anomalies(wages(), 10) == set()


def test_policy_steps_that_are_too_large_are_reported() -> None:
    found = anomalies(rollback(), 3, learning_rate=0.3, target_kl=0.001)
    assert {"ratio_explosion_ratio_max_op", "ratio_explosion_ratio_max", "kl_spike_kl_of_target"} <= found


def test_an_update_that_stops_at_once_is_reported() -> None:
    assert "hardly_learned_skipped_fraction" in anomalies(rollback(), 2, target_kl=1e-12)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (scale(0.0, "core"), "dead_core_core_dead"),
        (scale(100.0, "core"), "saturated_core_core_gates_saturated"),
        (scale(1e4, "value"), "useless_critic_explained_variance_floored"),
        (scale(1e4, "value"), "exploding_gradient_grad_norm_critic"),
        (scale(0.0, "op", "slot_score", "parameter", "value"), "vanishing_gradient_grad_norm_core"),
    ],
    ids=["dead", "saturated", "critic", "exploding", "vanishing"],
)
def test_a_damaged_part_is_named(damage: Callable[[PPO], None], expected: str) -> None:
    assert expected not in anomalies(rollback(), 2, **STILL)
    assert expected in anomalies(rollback(), 2, damage, **STILL)


def test_a_collapsed_policy_is_reported() -> None:
    found = anomalies(bandit(), 32)
    assert {"entropy_collapse_entropy_share_blueprint", "monoculture_top_blueprint_share"} <= found
