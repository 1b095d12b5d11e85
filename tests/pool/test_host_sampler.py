"""Names of hosts, and what twins share."""

import numpy as np
import pytest
import torch

from esper.env.actions import Op
from esper.lifecycle.slots import EveryBlockConfig
from esper.pool.host_sampler import EpochOrder, HostSampler
from esper.task.augment import Augmentation
from esper.task.instances import Split
from tests.env_fixtures import order_of


@pytest.fixture
def twins(make_env):
    env = make_env(6, 8, slots=EveryBlockConfig(min_prune_age=1), num_twins=3)
    env.reset(seed=3)
    return env


def same(rows, first, second):
    """Up to rounding, since a member's place in a kernel may change the order of its sums."""
    return all(torch.allclose(row[first], row[second], rtol=1e-3, atol=1e-5) for row in rows.values())


def test_twins_are_identical_until_their_actions_differ(twins, plan_actions):
    names = twins.sampler.instances()
    assert names[0] == names[1] == names[2]
    for _ in range(2):
        observation, *_ = twins.step(plan_actions(*[(Op.WAIT, 0, 0)] * 6))
    rows = twins.pool.shards[0].network.rows()
    assert same(rows, 0, 1)
    assert same(rows, 3, 5)
    assert not same(rows, 0, 3)
    np.testing.assert_allclose(observation["features"][0], observation["features"][2], atol=0.05)
    twins.step(plan_actions((Op.GERMINATE, 1, 1), *[(Op.WAIT, 0, 0)] * 5))
    twins.step(plan_actions(*[(Op.WAIT, 0, 0)] * 6))
    rows = twins.pool.shards[0].network.rows()
    assert not same(rows, 0, 1)
    assert same(rows, 1, 2)


def test_twins_with_the_same_seed_get_the_same_weights(twins, plan_actions):
    for _ in range(4):
        twins.step(plan_actions(*[(Op.GERMINATE, 0, 1)] * 2, *[(Op.WAIT, 0, 0)] * 4))
    rows = twins.pool.shards[0].network.rows()
    assert rows["seed/0/1"][0].any()
    assert same(rows, 0, 1)


def test_without_twins_hosts_are_the_first_of_each_group(make_env):
    """Hosts of a run with twins are hosts of a run without."""
    many, few = make_env(6, 4, num_twins=3), make_env(2, 4)
    for env in (many, few):
        env.reset(seed=1)
    assert many.sampler.instances()[::3] == few.sampler.instances()
    assert np.array_equal(order_of(many).samples_NI[::3], order_of(few).samples_NI)
    assert np.array_equal(
        order_of(many).samples_NI,
        np.repeat(order_of(few).samples_NI, 3, axis=0),
    )


def test_twins_are_built_once_and_train_apart(make_env, plan_actions, monkeypatch):
    """A shard of one host trains a copy, even where hosts cannot be fused."""
    env = make_env(4, 8, num_twins=2, members_per_shard=1)
    build, built = env.task.host, []
    monkeypatch.setattr(env.task, "host", lambda *name: (built.append(name), build(*name))[1])
    env.reset(seed=3)
    assert len(built) == len(set(built)) == 2
    hosts = env.sampler.hosts()
    assert hosts[0] is hosts[1] is not hosts[2] is hosts[3]
    env.step(plan_actions((Op.GERMINATE, 0, 1), *[(Op.WAIT, 0, 0)] * 3))
    weights = [shard.network.host.flat[0] for shard in env.pool.shards]
    assert weights[2].equal(weights[3])
    env.pool.shards[2].network.host.flat.data.zero_()
    assert weights[3].any()


def test_twins_share_augmentation_draws(small_task, monkeypatch):
    monkeypatch.setattr(small_task, "augmentation", Augmentation(padding=1, flip=False))
    cohort = HostSampler(task=small_task, split=Split.TRAINING, num_hosts=4, twins=2)
    draws = cohort.order(0, cohort.views()).draws_NI3
    assert draws.shape == (4, cohort.samples_per_epoch, 3)
    assert np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[1], draws[2])


def test_a_large_batch_of_few_samples_has_a_draw_for_each():
    order = EpochOrder(np.arange(18).reshape(2, 9), np.zeros((2, 6, 3), np.uint8))  # draws are made for whole batches of 6
    ((samples_MB, draws_MB3),) = order.batches(12, torch.device("cpu"))
    assert samples_MB.shape == draws_MB3.shape[:2] == (2, 6)


def test_seed_stream_names_are_unique_by_host_slot_and_time(small_task):
    cohort = HostSampler(task=small_task, split=Split.TRAINING, num_hosts=4, twins=2, root=7, episode=5)
    names = {cohort.seed(host, slot, time) for host in (0, 2) for slot in (0, 1) for time in (0, 1)}
    assert len(names) == 8
    assert cohort.seed(0, 1, 1) == cohort.seed(1, 1, 1)
