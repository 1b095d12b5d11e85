"""Rollbacks within an episode: what the learner sees, what is reported, and forfeited rewards."""

import itertools

import numpy as np
import pytest

from esper.agent.scripted.base import WaitConfig
from esper.governor.watchdog import WatchdogConfig
from esper.reward.modes import ShapedConfig
from esper.reward.table import SHAPING
from esper.training.play import play
from esper.training.trainer import Trainer
from tests.training.small_run import collected, config

SICK, FALLS = 2, 3
"""The host that becomes non-finite, and the step."""


def inject(env, monkeypatch):
    """Make a weight of host `SICK` NaN before step `FALLS` of the episode."""
    step, steps = env.step, itertools.count()

    def faulty(action):
        if next(steps) == FALLS:
            env.pool.shards[0].network.host.flat.data[SICK, 3] = np.nan
        return step(action)

    monkeypatch.setattr(env, "step", faulty)


def test_a_rollback_within_an_episode_reaches_the_learner(tmp_path, monkeypatch):
    """The penalty and the end are on the step of the rollback, and the recurrent state is reset after it."""
    trainer = Trainer(config("hosts=8", "steps=6", "governor.penalty=1000"), tmp_path)
    inject(trainer.env, monkeypatch)
    act, acted = trainer.agent.act, []

    def heard(observation, state, **given):
        acted.append((observation, given, act(observation, state, **given)))
        return acted[-1][-1]

    monkeypatch.setattr(trainer.agent, "act", heard)
    rollout, episode = collected(trainer)
    falls_TN = np.zeros((6, 8), bool)
    falls_TN[FALLS, SICK] = True
    ends_TN, starts_TN = falls_TN.copy(), np.roll(falls_TN, 1, axis=0)
    ends_TN[-1] = starts_TN[0] = True
    assert (rollout.terminated_TN.numpy() == ends_TN).all()
    assert (rollout.is_init_TN.numpy() == starts_TN).all()
    assert ((rollout.reward_TN.numpy() < -900) == falls_TN).all()
    paid_N, healthy_N = rollout.reward_TN.sum(0).numpy(), np.arange(8) != SICK
    np.testing.assert_allclose(paid_N[healthy_N], episode.return_N[healthy_N], rtol=1e-5)
    assert paid_N[SICK] < episode.return_N[SICK] < -900  # the report leaves out the potential of the snapshot
    assert ("rollbacks", "1 in the 48 host epochs of the last update") in episode.summary()

    observation, given, decision = acted[FALLS + 1]
    anew = act(observation, trainer.agent.start(8), **(given | {"is_init": np.zeros(8, bool)}))
    as_anew = [(decision.state["h"][host] == anew.state["h"][host]).all().item() for host in range(8)]
    assert as_anew == [host == SICK for host in range(8)]
    assert decision.value[SICK] == anew.value[SICK]
    assert trainer.learn(episode)["policy/first_ratio_error"] < 1e-5


def test_forfeit_prefix_removes_all_rewards_but_shaping_before_a_rollback(tmp_path, monkeypatch):
    paid, shaping = [], []
    for forfeit in ("none", "prefix"):
        own = ["reward=loss", "governor.penalty=1000", f"buffer.forfeit={forfeit}"]
        trainer = Trainer(config("hosts=8", "steps=6", *own), tmp_path / forfeit)
        inject(trainer.env, monkeypatch)
        rollout = collected(trainer)[0]
        paid.append(rollout.reward_TN.numpy())
        shaping.append(rollout.shaping_TN.numpy())
    kept, taken = paid
    expected = kept.copy()
    expected[:FALLS, SICK] = shaping[0][:FALLS, SICK]
    assert (taken == expected).all()
    assert (shaping[0] == shaping[1]).all()
    assert (taken[:FALLS, SICK] != kept[:FALLS, SICK]).any()


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_the_potential_of_the_snapshot_is_charged_to_the_learner_only(make_env, monkeypatch, gamma):
    """The reported return of a rollback holds the penalty and the loss, without the potential of the snapshot."""
    hosts = 3
    reward = ShapedConfig(attribution=0, rent=0, stage_potential=0, germinate_cost=0, prune_cost=0, terminal=0)
    env = make_env(hosts, 5, reward=reward, governor=WatchdogConfig(penalty=10.0), gamma=gamma)
    env.reset(seed=0)
    inject(env, monkeypatch)
    rows = []
    episode = play(env, WaitConfig().build(env.layout, seed=0), record=rows.append)
    paid_TN, before_TN = (
        np.stack(part) for part in zip(*((row.reward_N, row.signals.accuracy_before_N) for row in rows), strict=True)
    )
    assert rows[FALLS].signals.rolled_back_N.tolist() == [host == SICK for host in range(hosts)]
    assert paid_TN[FALLS, SICK] == pytest.approx(-before_TN[FALLS, SICK] - 10)
    restored_N = np.where(rows[FALLS].signals.rolled_back_N, gamma * before_TN[FALLS + 1], 0)
    discounted_N = (1 - gamma) * before_TN[1:].sum(axis=0)
    np.testing.assert_allclose(episode.return_N, paid_TN.sum(axis=0) + restored_N + discounted_N, rtol=1e-5)
    assert sum(episode.terms.values()) == pytest.approx(episode.return_N.mean(), rel=1e-5)
    assert episode.terms["governor"] == pytest.approx(-10 / hosts)
    # shaping telescopes over the whole episode, as if nothing had happened, whatever the discount
    np.testing.assert_allclose(episode.return_N, -episode.first_accuracy_N - np.array([0, 0, 10]), rtol=1e-5)
    assert SHAPING in episode.terms
