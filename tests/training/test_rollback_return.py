"""The reported return of a rollback: the penalty and the loss, without the potential of the snapshot."""

import numpy as np
import pytest

from esper.agent.scripted.base import WaitConfig
from esper.governor.watchdog import WatchdogConfig
from esper.reward.modes import ShapedConfig
from esper.reward.table import SHAPING
from esper.training.play import play

HOSTS, SICK, AT = 3, 1, 2


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_the_potential_of_the_snapshot_is_charged_to_the_learner_only(make_env, monkeypatch, gamma):
    reward = ShapedConfig(attribution=0, rent=0, stage_potential=0, germinate_cost=0, prune_cost=0, terminal=0)
    env = make_env(HOSTS, 5, reward=reward, governor=WatchdogConfig(penalty=10.0), gamma=gamma)
    env.reset(seed=0)
    step, rows = env.step, []

    def faulty(actions):
        if env.time == AT:
            env.pool.shards[0].network.host.flat.data[SICK, 3] = np.nan
        return step(actions)

    monkeypatch.setattr(env, "step", faulty)
    episode = play(env, WaitConfig().build(env.layout, seed=0), record=rows.append)
    paid_TN, before_TN = (
        np.stack(part) for part in zip(*((row.reward_N, row.signals.accuracy_before_N) for row in rows), strict=True)
    )
    assert rows[AT].signals.rolled_back_N.tolist() == [host == SICK for host in range(HOSTS)]
    assert paid_TN[AT, SICK] == pytest.approx(-before_TN[AT, SICK] - 10)
    restored_N = np.where(rows[AT].signals.rolled_back_N, gamma * before_TN[AT + 1], 0)
    np.testing.assert_allclose(episode.return_N, paid_TN.sum(axis=0) + restored_N, rtol=1e-5)
    assert sum(episode.terms.values()) == pytest.approx(episode.return_N.mean(), rel=1e-5)
    assert episode.terms["governor"] == pytest.approx(-10 / HOSTS)
    if gamma == 1:  # shaping telescopes over the whole episode, as if nothing had happened
        np.testing.assert_allclose(episode.return_N, -episode.first_accuracy_N - np.array([0, 10, 0]), rtol=1e-5)
    assert SHAPING in episode.terms
