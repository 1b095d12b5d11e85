"""Hosts in workers: the same numbers as in one process, whatever happens to a worker."""

import pickle
import warnings
from dataclasses import dataclass

import numpy as np
import pytest

from esper.governor.base import Cause, Governor, GovernorConfig, Verdict
from esper.growth.grown import KeptSeed
from esper.lifecycle.roles import Blend
from esper.pool.cluster import ClusterConfig, ClusterError
from esper.pool.local import limit_cores
from esper.pool.remote import RemotePool, WorkerGroup, WorkerLost, WorkersConfig
from esper.pool.worker import Message, Worker

STEPS = 3


class Moody(Governor):
    """Rolls back the hosts whose loss happens to have certain digits."""

    def judge(self, health, train_loss_N, loss_N):
        cause_N = np.where((loss_N * 1e3).astype(np.int64) % 4 == 0, Cause.DECLINE, Cause.HEALTHY)
        return Verdict(cause_N=cause_N, suspect_N=np.zeros(len(loss_N), np.bool_), penalty=3.0)


@dataclass(kw_only=True)
class MoodyConfig(GovernorConfig):
    """Config of `Moody`."""

    def build(self, *, chance_loss):
        return Moody()


class Pickled(WorkerGroup):
    """A group in this process, of which a worker dies at a message of choice; messages are pickled like those of real workers."""

    def __init__(self, size, dies=None):
        super().__init__(WorkersConfig(workers=size))
        self.dies, self.seen, self.workers = dies, [], [Worker() for _ in range(size)]
        limit_cores(None)
        self.closed = []

    def encode(self, call):
        return Message(call.method, pickle.dumps(tuple(call)))

    def open(self, worker, key, parts, num_hosts):
        if self.workers[worker] is None:
            raise WorkerLost("died before it had hosts")
        self.workers[worker].open(key, parts, num_hosts)

    def send(self, worker, key, messages):
        reply = None
        for message in messages:
            number = len(self.seen)
            self.seen.append((worker, message.method))
            dies = self.dies is not None and self.dies(number, worker, message.method)
            if self.workers[worker] is None or (dies == "before"):
                self.workers[worker] = None
                return WorkerLost("killed")
            reply = self.workers[worker].run(key, [message])
            if dies == "after":
                self.workers[worker] = None
                return WorkerLost("killed")
        return pickle.dumps(reply)

    def receive(self, ticket):
        if isinstance(ticket, WorkerLost):
            raise ticket
        return pickle.loads(ticket)

    def replace(self, worker):
        self.workers[worker] = Worker()
        limit_cores(None)
        self._born[worker] += 1

    def close(self, key):
        for worker in filter(None, self.workers):
            worker.close(key)
        self.closed.append(key)


@dataclass(kw_only=True)
class InProcess(ClusterConfig):
    """Workers in this process."""

    group: Pickled
    replacements: int = 3

    def build(self, parts, meter=None):
        return RemotePool(parts, meter, self.group, key=len(self.group.closed), replacements=self.replacements)


def play(env, random_actions, episodes):
    """Return everything that an environment shows in some episodes of random actions, as bytes by name."""
    seen = []
    observation, _ = env.reset(seed=3)
    for step in range(episodes * STEPS):
        observation, reward, ended, _, info = env.step(random_actions(observation, step))
        shown = {**observation, "reward": reward, "ended": ended}
        shown |= {name: info[name] for name in ("op", "rolled_back", "training_flops", "measuring_flops")}
        if "test_accuracy" in info.get("final_info", ()):
            shown["test"] = info["final_info"]["test_accuracy"]
        seen.append({name: np.asarray(array).tobytes() for name, array in shown.items()})
        seen[-1]["rollbacks"] = int(info["rolled_back"].sum())
    return seen


@pytest.fixture
def played(make_env, random_actions):
    """Return a function that plays on a group, or with None in one process with shards of the same hosts."""

    def run(group=None, *, hosts=4, members=0, episodes=2, **others):
        if group is not None:
            others["cluster"] = InProcess(group=group, **{name: others.pop(name) for name in ("replacements",) if name in others})
        env = make_env(hosts, STEPS, governor=MoodyConfig(), members_per_shard=members, test_at_end=True, **others)
        return play(env, random_actions, episodes)

    return run


def test_workers_show_what_one_process_shows(played):
    """Including rollbacks, FLOPs and test accuracy; growth potential, measured at once for a device, up to float rounding."""
    whole = played(members=2)
    assert sum(step["rollbacks"] for step in whole) > 0
    for members in (2, 0):
        alone, shown = [dict(step) for step in whole], played(Pickled(2), members=members)
        slots = [np.array([np.frombuffer(step.pop("slots"), np.float32) for step in steps]) for steps in (alone, shown)]
        assert shown == alone
        np.testing.assert_allclose(slots[0], slots[1], atol=1e-3)


def test_twins_on_both_sides_of_a_border_are_alike(make_env, plan_actions):
    env = make_env(4, STEPS, cluster=InProcess(group=Pickled(3)), num_twins=2)  # workers have hosts 0, 1, and 2 to 3
    env.reset(seed=1)
    for _ in range(2):
        env.step(plan_actions(*[(0, 0, 0)] * 4))
        assert env.loss_N[0] == env.loss_N[1] != env.loss_N[2]


@pytest.mark.slow
def test_a_worker_that_dies_in_any_phase_changes_no_number(played):
    """At the first and the last message of every kind, before and after it is carried out."""
    groups = {episodes: Pickled(2) for episodes in (1, 2)}
    undisturbed = {episodes: played(group, episodes=episodes) for episodes, group in groups.items()}
    kinds = {method for _, method in groups[1].seen}
    assert kinds >= {"start", "potential", "validate", "arrange", "epoch", "save_snapshots", "restore", "plant", "clear"}
    assert kinds == {method for _, method in groups[2].seen}
    for kind in sorted(kinds):
        episodes = 2 if kind == "epoch" else 1  # the first episode, up to the start of the next, has messages of every kind
        numbers = [number for number, (_, method) in enumerate(groups[episodes].seen) if method == kind]
        for number, when in ((numbers[0], "before"), (numbers[-1], "after")):
            dying = Pickled(2, lambda seen, _, __, number=number, when=when: when if seen == number else None)
            with pytest.warns(UserWarning, match=r"worker \d of 2 was lost \(killed\): hosts \d to \d repeat \d epochs?") as told:
                assert played(dying, episodes=episodes) == undisturbed[episodes], (kind, when)
            assert dying.born(0) + dying.born(1) == 1
            assert len([one for one in told if "was lost" in str(one.message)]) == 1


def test_a_repeated_episode_leaves_out_what_only_reads(make_env, plan_actions):
    group = Pickled(1)
    env = make_env(2, STEPS, cluster=InProcess(group=group))
    env.reset()
    for _ in range(2):
        env.step(plan_actions((0, 0, 0), (0, 0, 0)))
    env.pool.machines()
    group.workers[0], before = None, len(group.seen)
    with pytest.warns(UserWarning, match="hosts 0 to 1 repeat 2 epochs"):
        env.pool.validate(env.state.alpha[None])
    again = [method for _, method in group.seen[before + 1 :]]
    assert again == ["start", "potential", "validate", *["save_snapshots", "arrange", "epoch"] * 2, "save_snapshots", "validate"]


def test_workers_that_keep_dying_end_the_run(played):
    said = r"worker 0 of 2 was lost \(killed\), and the 2 replacements of an episode are used up"
    with pytest.warns(UserWarning, match="was lost") as told, pytest.raises(ClusterError, match=said):
        played(Pickled(2, lambda *_: "before"), replacements=2)
    assert len(told) == 2


def test_an_error_of_a_call_is_raised_here(make_env):
    env = make_env(2, STEPS, cluster=InProcess(group=Pickled(2)))
    env.reset()
    env.pool.plant(1, 9, 0, (0, "seed_init"))
    with pytest.raises(IndexError):
        env.pool.validate(env.state.alpha[None])


def test_a_message_is_not_changed_by_what_happens_later(make_env):
    """Calls wait for the next message, and arrays of the environment change in the meantime."""
    group = Pickled(2)
    env = make_env(2, STEPS, cluster=InProcess(group=group))
    env.reset()
    failed_N = np.array([True, False])
    env.pool.restore(failed_N)
    failed_N[:] = False
    waiting = [pickle.loads(queue[-1].body) for queue in env.pool._waiting]
    assert [call[1][0].tolist() for call in waiting] == [[True], [False]]


def test_networks_and_latency_come_from_the_workers(make_env, plan_actions, played):
    pools = [make_env(3, STEPS, members_per_shard=1, **others) for others in ({}, {"cluster": InProcess(group=Pickled(2))})]
    for env in pools:
        env.reset(seed=2)
        env.step(plan_actions(*[(1, 0, 1)] * 3))
    seed = KeptSeed(slot=0, blueprint=1, blend=Blend.ADD, alpha=1.0)
    x = pools[0].task.data.inputs(pools[0].task.data.valid_x[:4])
    for number in range(3):
        a, b = (env.pool.grown(number, [seed]).eval()(x) for env in pools)
        assert a.equal(b)
    with pytest.raises(IndexError, match="no host 3"):
        pools[1].pool.grown(3, [])
    host, used_S = pools[1].task.host(0, pools[1].split, 0, 0), np.array([True, False, False])
    assert pools[1].pool.latency(host, used_S, x).host > 0
    (name, text), *rest = pools[1].pool.machines().items()
    assert (name, rest) == ("cpu", [])
    assert text == f"2 x {pools[0].pool.machines()['cpu']}"


def test_pools_of_one_process_share_workers(make_env, plan_actions):
    """A worker that dies under one pool is opened again by the other, which repeats its own hosts."""
    group = Pickled(2)
    first, second = (RemotePool(make_env(2, STEPS).pool.parts, None, group, key=key, replacements=1) for key in (0, 1))
    sampler = make_env(2, STEPS).sampler
    alpha_VNS = np.zeros((1, 2, 3), np.float32)
    for pool in (first, second):
        pool.start(sampler, sampler.views())
        pool.epoch(0, alpha_VNS)
    before = [second.grown(host, []).state_dict()["segments.0.0.weight"] for host in range(2)]
    group.workers[1] = None
    with pytest.warns(UserWarning, match="worker 1 of 2 was lost"):
        first.epoch(1, alpha_VNS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        after = [second.grown(host, []).state_dict()["segments.0.0.weight"] for host in range(2)]
    assert all(a.equal(b) for a, b in zip(before, after, strict=True))
    second.close()
    assert group.closed == [1]
