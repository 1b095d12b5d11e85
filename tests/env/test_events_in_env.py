"""Hosts whose data changes by a timetable: what they learn from, and what they are measured on."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from esper.env.actions import Op
from esper.hosts.cnn import CNNConfig
from esper.lifecycle.roles import Roles
from esper.optimisers.sgd import SGDConfig
from esper.pool.host_sampler import EpochOrder, HostSampler
from esper.pool.member_data import MeasuredPart, MemberData, TrainedPart
from esper.pool.shard import Shard
from esper.seeds.blueprints.plain import NormConfig
from esper.task.base import Task
from esper.task.digits import DigitsConfig
from esper.task.events import EventsConfig, change, class_shares
from esper.task.instances import Split
from tests.reference_host import forward

CPU, HOSTS, EPOCHS = torch.device("cpu"), 8, 9
DRIFTS = EventsConfig(
    kinds=["invert", "mirror", "relabel"], count=[0, 1, 2], first=1, last=7, gap=1, ramp=[0, 2], lasts=[0, 1], recurs=2
)
LATE = replace(DRIFTS, count=[2], ramp=[0], lasts=[0])


def digits(**lists):
    lists = {"events": DRIFTS, **lists}
    return DigitsConfig(batch_size=16, valid_samples=50, **lists).build(CNNConfig())


def views(task, hosts=HOSTS):
    return [task.view(0, Split.TRAINING, 0, index) for index in range(hosts)]


def seen(task, timetable, epoch, part):
    """Return inputs and targets of one host, sample by sample, and the share of drifted samples."""
    state, data = change(timetable, epoch, task.config.events.kinds), task.data
    x, y = (getattr(data, f"{part}_{axis}") for axis in "xy")
    drifted = {"": (x, y)}
    for kind in task.config.events.kinds:
        after = task.config.drifted(kind, replace(data, domains=None))
        drifted[kind] = getattr(after, f"{part}_x"), getattr(after, f"{part}_y")
    gone = getattr(data.domains, f"{part}_rank") < state.share
    pairs = [(drifted[state.new if new else state.old], index) for index, new in enumerate(gone.tolist())]
    return torch.stack([a[i] for (a, _), i in pairs]), torch.stack([b[i] for (_, b), i in pairs]), state.share


def images(x: Tensor, members: int) -> Tensor:
    """Return the images of every member `[M, B, ...]` from their layout side by side."""
    return x.view(len(x), members, -1, *x.shape[2:]).transpose(0, 1)


def test_training_validation_and_test_follow_the_same_timetable():
    task = digits()
    own = views(task)
    members, every = MemberData(task.data, own, None, CPU), torch.arange(len(task.data.train_y)).expand(HOSTS, -1)
    assert len({view.timetable for view in own}) > 4
    partial = set()
    for epoch in range(EPOCHS):
        members.at(epoch)
        x, y = members.batch(TrainedPart(every))
        found = {"train": (images(x, HOSTS), y)}
        for part in ("valid", "test"):
            x, y_MBT, weight = members.measured(MeasuredPart(slice(None), part == "test"), HOSTS)
            assert weight is None
            found[part] = images(x, HOSTS), y_MBT[..., 0]
        for host, view in enumerate(own):
            for part, (x, y) in found.items():
                wanted_x, wanted_y, share = seen(task, view.timetable, epoch, part)
                assert x[host].equal(wanted_x)
                assert y[host].equal(wanted_y)
                rank = getattr(task.data.domains, f"{part}_rank")
                assert float((rank < share).double().mean()) == pytest.approx(share, abs=0.5 / len(rank))
                partial.add(share)
    assert partial > {0.0, 1 / 3, 2 / 3, 1.0}


def test_wrong_labels_stay_wrong_after_a_drift():
    task = digits(label_noise=[0.3], events=EventsConfig(kinds=["relabel"], first=1, last=1))
    own = views(task, 1)
    members, every = MemberData(task.data, own, None, CPU), torch.arange(len(task.data.train_y))[None]
    (before,), (after,) = (members.at(epoch) or members.batch(TrainedPart(every))[1] for epoch in (0, 1))
    right = task.data.domains.train_y
    assert before.equal(own[0].labels.long())
    assert (before != right[0]).equal(after != right[1])
    assert int((after != right[1]).sum()) == round(0.3 * len(after))


def test_hosts_are_measured_on_their_own_domains():
    """Against each host alone, forward in plain PyTorch; the seed of one host gives it a second path."""
    task = digits(events=LATE)
    names = [(0, Split.TRAINING, 0, index) for index in range(4)]
    own, hosts = [task.view(*name) for name in names], [task.host(*name) for name in names]
    shard = Shard(hosts, (NormConfig(),), task.data, task, CPU, own, optimiser=SGDConfig())
    order = np.stack([np.random.default_rng(host).permutation(len(task.data.train_y)) for host in range(4)])
    for epoch in (0, 5):
        shard.train_epoch(EpochOrder(order, None, epoch))
        shard.network.train(False)
        alpha_VMS = np.zeros((2, 4, len(shard.slots)), np.float32)
        for test, part in ((False, "valid"), (True, "test")):
            found = shard.validate(alpha_VMS, test=test)
            for host, view in enumerate(own):
                x, y, _ = seen(task, view.timetable, epoch, part)
                inputs = x.repeat(1, 4, 1, 1).contiguous(memory_format=torch.channels_last)
                with torch.no_grad():
                    logits = forward(shard.network, inputs)[host]
                right = (logits.argmax(-1) == y).double().mean().item()
                np.testing.assert_allclose(found.accuracy_VM[:, host], 100 * right, atol=1e-4)


def test_classes_come_and_go_in_training_and_in_measurements():
    moves = EventsConfig(kinds=["arrive", "leave"], count=[1, 3], first=1, last=20, gap=1, ramp=[0, 3], lasts=[0, 2], replay=0.3)
    task = digits(events=moves, classes=[0, 8])
    own = views(task)
    sampler = HostSampler(task=task, split=Split.TRAINING, num_hosts=HOSTS)
    members, data = MemberData(task.data, own, None, CPU), task.data
    sizes = set()
    for epoch in range(24):
        members.at(epoch)
        order_NI = sampler.order(epoch, own).samples_NI
        for test, part in ((False, "valid"), (True, "test")):
            _, y_MBT, weight_MBT = members.measured(MeasuredPart(slice(None), test), HOSTS)
            for host, view in enumerate(own):
                here_K = class_shares(view.timetable, epoch, 10) * (1 if view.classes is None else view.classes)
                present = getattr(data.domains, f"{part}_rank") < torch.from_numpy(here_K)[getattr(data, f"{part}_y")]
                assert weight_MBT[host, :, 0].equal(present.double())
                assert y_MBT[host, :, 0].equal(getattr(data, f"{part}_y"))
        for host, view in enumerate(own):
            share_K = class_shares(view.timetable, epoch, 10, 0.3) * (1 if view.classes is None else view.classes)
            wanted = np.flatnonzero((data.domains.train_presence < torch.from_numpy(share_K)[data.train_y]).numpy())
            assert set(order_NI[host].tolist()) <= set(wanted.tolist())
            assert len(set(order_NI[host].tolist())) == len(wanted) or 2 * len(wanted) > order_NI.shape[1]
            sizes.add(len(wanted))
    assert len(sizes) > 20


def test_slow_learning_takes_smaller_steps():
    """The first step of hosts, seeds and a learning fossil, all of them in slot 0 or 1."""
    task = digits(events=EventsConfig(kinds=["slow"], first=4, last=4), rate_factor=[1.0, 3.0])
    names = [(0, Split.TRAINING, 0, index) for index in range(3)]
    order = np.stack([np.random.default_rng(host).permutation(16) for host in range(3)])
    here = np.array([[True, True, False]] * 3)
    roles = Roles(
        blueprint=np.where(here, 0, -1),
        blend=np.zeros_like(here, np.int64),
        alpha=here.astype(np.float32),
        behind=np.zeros_like(here),
        open=here,
        learns=here,
        fossil=np.array([[True, False, False], [False] * 3, [True, False, False]]),
    )
    moved = []
    for epoch in (3, 4):
        shard = Shard(
            [task.host(*n) for n in names],
            (NormConfig(),),
            task.data,
            task,
            CPU,
            [task.view(*n) for n in names],
            optimiser=SGDConfig(),
        )
        for member, slot in np.ndindex(3, 2):
            shard.plant(member, slot, 0, (0, "seed", member, slot))
        shard.arrange(roles)
        before = {key: row.clone() for key, row in shard.network.rows().items()}
        shard.train_epoch(EpochOrder(order, None, epoch))
        moved.append({key: row - before[key] for key, row in shard.network.rows().items()})
    for key in ("host", "seed/0/0", "seed/1/0"):
        assert moved[0][key].abs().amax(1).min() > 1e-4
        torch.testing.assert_close(moved[1][key], 0.1 * moved[0][key], rtol=1e-2, atol=1e-6)


# ---- whole environments


@pytest.fixture
def drifting(small_task: Task, monkeypatch: pytest.MonkeyPatch):
    """Turn the task of `make_env` into one with events."""

    def turn(events: EventsConfig) -> Task:
        whole = digits(events=events).data.domains
        parts = {f"{part}_{axis}": getattr(whole, f"{part}_{axis}") for part in ("train", "valid", "test") for axis in "xy"}
        sizes = {"train": 96, "valid": 50, "test": 50}
        cut = {name: value[:, : sizes[name[:-2]]] for name, value in parts.items()}
        ranks = {f"{part}_rank": getattr(whole, f"{part}_rank")[:size] for part, size in sizes.items()}
        config = DigitsConfig(batch_size=32, events=events)
        monkeypatch.setattr(small_task, "config", config)
        monkeypatch.setattr(small_task, "data", replace(small_task.data, domains=replace(whole, **cut, **ranks)))
        return small_task

    return turn


def played(env, steps, random_actions, key=0):
    """Return the arrays of some steps with random actions."""
    observation, arrays = env.observation(), []
    for step in range(steps):
        observation, reward, *_ = env.step(random_actions(observation, step, key))
        arrays.append(
            np.concatenate([reward, env.loss_N, *observation["features"], *observation["slots"].reshape(len(reward), -1)])
        )
    return np.stack(arrays)


def test_a_host_without_events_has_the_numbers_of_a_world_without(make_env, drifting, plan_actions):
    actions, outcomes = plan_actions(*[(Op.GERMINATE, 0, 1)] * HOSTS), []
    for events in (EventsConfig(), replace(LATE, count=[0, 1], last=4)):
        if events.kinds:
            drifting(events)
        env = make_env(HOSTS, 5)
        env.reset()
        for _ in range(4):
            env.step(actions)
        rows = env.pool.shards[0].network.rows()
        outcomes.append([rows["host"].numpy(), rows["seed/0/1"].numpy(), env.accuracy_NH, env.loss_N])
    calm_N = np.array([not view.timetable for view in env.views])
    assert 0 < calm_N.sum() < HOSTS
    for without, within in zip(*outcomes, strict=True):
        assert np.array_equal(without[calm_N], within[calm_N], equal_nan=True)
        assert not np.array_equal(without[~calm_N], within[~calm_N], equal_nan=True)


def test_the_observation_tells_nothing_before_an_event(make_env, drifting, plan_actions):
    seen = []
    for events in (EventsConfig(), replace(LATE, first=2, last=4)):
        if events.kinds:
            drifting(events)
        env = make_env(HOSTS, 5)
        seen.append([env.reset()[0], *(env.step(plan_actions(*[(Op.GERMINATE, 0, 1)] * HOSTS))[0] for _ in range(5))])
    starts_N = np.array([env.task.instance(0, Split.TRAINING, 0, host).timetable[0].start for host in range(HOSTS)])
    assert len(set(starts_N)) > 1
    for time, (without, within) in enumerate(zip(*seen, strict=True)):
        for key in without if time < 5 else ():  # the last one is that of the next episode
            same_N = np.array([np.array_equal(without[key][host], within[key][host]) for host in range(HOSTS)])
            assert same_N[starts_N >= time].all()
            assert key != "features" or not same_N[starts_N < time].any()


def test_an_episode_is_the_same_in_a_resumed_run(make_env, drifting, random_actions):
    drifting(replace(DRIFTS, last=4, count=[1]))
    through, resumed = make_env(4, 6), make_env(4, 6)
    through.reset()
    played(through, 6, random_actions, key=1)  # ends the episode
    resumed.reset(options={"episode": 1})
    assert [view.timetable for view in through.views] == [view.timetable for view in resumed.views]
    assert np.array_equal(played(through, 5, random_actions), played(resumed, 5, random_actions), equal_nan=True)


def test_shards_of_one_host_give_the_same_numbers(make_env, drifting, random_actions):
    drifting(replace(LATE, last=4))
    one, many = make_env(4, 6, members_per_shard=1), make_env(4, 6)
    for env in (one, many):
        env.reset(options={"episode": 0})
    observation = many.observation()
    for step in range(5):
        actions = random_actions(observation, step)
        observation = many.step(actions)[0]
        one.step(actions)
        np.testing.assert_allclose(one.accuracy_NH[:, 0], many.accuracy_NH[:, 0], atol=2.1)  # one image of 50
        np.testing.assert_allclose(one.loss_N, many.loss_N, rtol=2e-2)


def test_twins_share_a_timetable_that_only_the_final_info_names(make_env, drifting, plan_actions):
    drifting(replace(LATE, last=4))
    env = make_env(6, 5, num_twins=3)
    env.reset()
    timetables = [view.timetable for view in env.views]
    assert timetables[0] == timetables[1] == timetables[2] != timetables[3]
    assert all(len(events) == 2 for events in timetables)
    for _ in range(5):
        info = env.step(plan_actions(*[(Op.WAIT, 0, 0)] * 6))[-1]
    texts = info["final_info"]["instance"]
    assert texts[0] == texts[2] != texts[3]
    assert all(event.describe() in text for text, events in zip(texts, timetables, strict=True) for event in events)


def test_metrics_of_seeds_have_one_kind_for_all_hosts_whose_events_stay(make_env, drifting, plan_actions):
    drifting(replace(LATE, last=4, count=[1]))
    env = make_env(HOSTS, 5)
    env.reset()
    episode = env.record()
    for _ in range(5):
        _, reward, *_, info = env.step(plan_actions(*[(Op.GERMINATE, 0, 1)] * HOSTS))
        episode.add(info, reward)
    episode.close(info)
    episode.seconds = 1.0
    kinds = {tag.partition("/kind_")[2] for tag in episode.metrics() if "/kind_" in tag}
    lacking = {text.split()[0] for text in episode.instance}
    assert kinds == {f"{kind}_an_event_stays" for kind in lacking}
    assert len(set(episode.instance)) > len(kinds)


def test_a_drift_shows_in_the_accuracy(make_env, drifting, plan_actions):
    drifting(EventsConfig(kinds=["relabel"], first=8, last=8))
    env = make_env(8, 12)
    env.reset()
    accuracy = []
    for _ in range(10):
        env.step(plan_actions(*[(Op.WAIT, 0, 0)] * 8))
        accuracy.append(env.accuracy_NH[:, 0].mean())
    assert accuracy[8] < accuracy[7] - 15
