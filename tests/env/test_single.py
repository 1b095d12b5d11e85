"""One host as an ordinary Gymnasium environment."""

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from esper.env.actions import Head, Op
from esper.env.single import SingleHostEnv
from esper.governor.watchdog import WatchdogConfig
from esper.lifecycle.slots import EveryBlockConfig


def test_passes_gymnasiums_env_checker(make_env):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*not having a spec.*")  # there is no registered id to make it from
        warnings.filterwarnings("ignore", message=".*A Box observation space m..imum value is -?infinity.*")  # no bound is known
        check_env(SingleHostEnv(make_env(1, 3)))


def test_matches_the_vector_environment(make_env, random_actions):
    population, single = make_env(1, 3), SingleHostEnv(make_env(1, 3))
    wanted, _ = population.reset()
    for episode in range(2):
        seen, _ = single.reset()
        for step in range(3):
            assert all(np.array_equal(seen[name], wanted[name][0]) for name in seen)
            action = random_actions(wanted, step, episode)
            wanted, reward, ended, _, info = population.step(action)
            seen, paid, terminated, truncated, _ = single.step(action[0])
            assert (paid, terminated, truncated) == (reward[0], step == 2, False)
            assert ended[0] == terminated
        assert all(np.array_equal(seen[name], info["final_obs"][0][name]) for name in seen)


def test_info_describes_one_host(make_env):
    single = SingleHostEnv(make_env(1, 1))
    single.reset()
    _, reward, _, _, info = single.step(np.zeros(len(Head), dtype=np.int64))
    assert sum(info["components"].values()) == pytest.approx(reward, abs=1e-5)
    assert info["cause"] == 0
    assert info["final_info"]["instance"] in ("ooo", "xoo", "xox", "oxx")
    assert info["restored_potential"] == 0
    assert "signals" not in info


def test_reset_after_a_rollback_continues_with_the_same_host(make_env):
    single = SingleHostEnv(make_env(1, 4, governor=WatchdogConfig(penalty=7.0)))
    single.reset(seed=3)
    first_rows = single.population.pool.shards[0].network.host.flat.detach().clone()
    single.population.pool.shards[0].network.host.flat.data[:] = np.nan
    _, _, terminated, _, info = single.step(np.zeros(len(Head), dtype=np.int64))
    assert terminated
    assert info["components"]["governor"] == -7.0
    deducted = single.population.reward.initial_potential(single.population.accuracy_NH[:, 0], single.population.state)
    assert info["restored_potential"] == pytest.approx(deducted[0])
    assert info["restored_potential"] > 0
    seen, _ = single.reset()
    assert single.population.time == 1
    assert single.population.pool.shards[0].network.host.flat.equal(first_rows)
    assert single.observation_space.contains(seen)


def test_reset_with_a_seed_or_an_episode_starts_anew(make_env):
    single = SingleHostEnv(make_env(1, 1))
    first, _ = single.reset(seed=5)
    single.step(np.zeros(len(Head), dtype=np.int64))
    again, _ = single.reset(seed=5)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    single.step(np.zeros(len(Head), dtype=np.int64))
    again, _ = single.reset(options={"episode": 0})
    assert all(np.array_equal(first[name], again[name]) for name in first)


def test_action_masks_concatenate_the_heads(make_env):
    single = SingleHostEnv(make_env(1, 3))
    seen, _ = single.reset()
    masks = single.action_masks()
    op, slot, *_ = np.split(masks, np.cumsum(single.action_space.nvec)[:-1])
    assert masks.shape == (single.action_space.nvec.sum(),)
    assert masks.dtype == np.bool_
    assert np.flatnonzero(op).tolist() == [Op.WAIT, Op.GERMINATE]
    assert slot.all()
    action = np.array([Op.GERMINATE, 1, 0, 0, 0, 2, 0, 0])
    seen, *_ = single.step(action)
    op, slot, *parameters = np.split(single.action_masks(), np.cumsum(single.action_space.nvec)[:-1])
    assert op.tolist() == seen["legal_slots"].any(axis=1).tolist()
    assert np.array_equal(np.concatenate(parameters), seen["legal_values"])


def test_slots_without_legal_operations_are_masked_unless_all_are(make_env):
    single = SingleHostEnv(make_env(1, 3, slots=EveryBlockConfig(where=["r0c1"], min_prune_age=9, auto_advance=["training"])))
    single.reset()
    heads = single.action_space.nvec
    assert single.action_masks()[heads[0] : heads[0] + 3].tolist() == [False, True, False]
    single.population.gates.min_training = 9
    single.step(np.array([Op.GERMINATE, 1, 0, 0, 0, 2, 0, 0]))
    assert single.action_masks()[heads[0] : heads[0] + 3].all()  # only WAIT is left


def test_a_reset_is_required_before_the_first_step_and_after_an_end(make_env):
    single = SingleHostEnv(make_env(1, 1))
    wait = np.zeros(len(Head), dtype=np.int64)
    with pytest.raises(gymnasium.error.ResetNeeded):
        single.step(wait)
    with pytest.raises(gymnasium.error.ResetNeeded):
        single.action_masks()
    single.reset()
    single.step(wait)
    with pytest.raises(gymnasium.error.ResetNeeded):
        single.step(wait)


def test_several_hosts_are_refused(make_env):
    with pytest.raises(ValueError, match="hosts=2"):
        SingleHostEnv(make_env(2, 1))


def test_without_autoreset_an_episode_ends_with_its_last_observation(make_env, plan_actions):
    """And the next one is that of an environment with autoreset."""
    one, other = make_env(2, 2), make_env(2, 2)
    one.autoreset = False
    wait = plan_actions((Op.WAIT, 0, 0), (Op.WAIT, 0, 0))
    for env in (one, other):
        env.reset(seed=4)
        env.step(wait)
    observation, _, _, _, info = one.step(wait)
    begun, *_ = other.step(wait)
    assert (one.episode, one.time) == (0, 2)
    for host, final in enumerate(info["final_obs"]):
        assert all(np.array_equal(part[host], final[name], equal_nan=True) for name, part in observation.items())
    begun_too, _ = one.reset()
    assert all(np.array_equal(part, begun[name], equal_nan=True) for name, part in begun_too.items())
