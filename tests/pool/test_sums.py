"""Members that have not changed are not measured again."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from esper.env.actions import Op
from esper.env.base import EnvParts
from esper.env.growth_env import GrowthConfig, GrowthEnv
from esper.governor.watchdog import StrictWatchdogConfig
from esper.hosts.cnn import CNNConfig
from esper.lifecycle.operations import roles
from esper.lifecycle.roles import Blend, Incubation
from esper.lifecycle.slots import EveryBlockConfig
from esper.lifecycle.stages import LIVE
from esper.pool.devices import DeviceConfig
from esper.pool.shard import Shard
from esper.pool.sums import KnownSums, Sums, measurement
from esper.reward.modes import OnlineConfig
from esper.task.digits import DigitsConfig
from esper.task.events import EventsConfig
from esper.task.loading import load_task
from tests.env_fixtures import BLUEPRINTS

DRIFTS = EventsConfig(kinds=["invert", "relabel", "leave"], count=[0, 1, 2], first=1, last=8, gap=1, lasts=[0, 2])
STEPS = 12


def env_of(incubation, *, frozen, hosts=5):
    task, host = DigitsConfig(batch_size=256, epoch_samples=256, valid_samples=100, events=DRIFTS), CNNConfig(frozen=frozen)
    parts = EnvParts(
        task=task,
        host=host,
        slots=EveryBlockConfig(incubation=incubation, learning_epochs=2),
        blueprints=BLUEPRINTS,
        reward=OnlineConfig(),
        governor=StrictWatchdogConfig(),
        devices={"cpu": DeviceConfig(members_per_shard=hosts)},
        gamma=0.9,
        num_hosts=hosts,
        num_steps=STEPS,
    )
    return GrowthEnv(load_task(task, host), parts, GrowthConfig())


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("incubation", list(Incubation))
def test_results_are_those_of_a_whole_measurement_and_unchanged_hosts_are_not_computed(
    incubation, frozen, random_actions, monkeypatch
):
    """Seeds are planted, learn, stop learning, are pruned and rolled back, and data drifts: nothing that counts may be missed."""
    computed, back, real = list[int](), 0, Shard._measured

    def counted(self, alpha, rows, **how):
        computed.append(len(rows))
        return real(self, alpha, rows, **how)

    monkeypatch.setattr(Shard, "_measured", counted)
    env = env_of(incubation, frozen=frozen)
    observation, once = env.reset(seed=3)[0], list[int]()
    (shard,) = env.pool.shards
    for step in range(STEPS - 1):
        if step > 5 and not back:  # broken seeds, which the governor removes
            for host, slot in np.argwhere(env.state.within(*LIVE) & (env.state.seed_age < 2)):
                kind, gated = int(env.state.blueprint[host, slot]), env.state.blend[host, slot] == Blend.GATE
                shard.network.bank(int(slot), kind, bool(gated)).fleet.flat.data[host] = np.nan
        observation, *_, info = env.step(random_actions(observation, step))
        back += int(info["rolled_back"].sum())
        alpha = np.stack([env.state.alpha, 0 * env.state.alpha])
        for test in (False, True):
            computed.clear()
            known = env.pool.validate(alpha, test=test)
            once.append(sum(computed))
            computed.clear()
            assert np.array_equal(known.loss_VM, env.pool.validate(alpha, test=test).loss_VM)
            assert not computed, "asked twice in a row, nothing is computed"
            whole = measurement(real(shard, alpha, np.arange(5), test=test), shard.task.objective.floor)
            np.testing.assert_array_equal(known.accuracy_VM, whole.accuracy_VM)
            np.testing.assert_allclose(known.loss_VM, whole.loss_VM, rtol=1e-5)
            np.testing.assert_allclose(known.covariance_VVM, whole.covariance_VVM, rtol=1e-6, atol=1e-9)
    assert back, "a rollback is among the changes"
    assert np.mean(once) < 4.7 and {1, 2, 3} & set(once) if frozen else set(once[1::2]) == {5}
    env.close()


def sums_like(values):
    """Sums that are one number for each member."""
    row = torch.tensor(values, dtype=torch.float64)
    return Sums(row, row, row, row[None], row[None], row[None], row[None, None])


def test_only_stale_members_are_updated():
    known = KnownSums()
    assert known.stale("abc") == [0, 1, 2]
    known.update("abc", [0, 1, 2], sums_like([1, 2, 3]))
    assert known.stale("abc") == []
    assert known.stale("aXY") == [1, 2]
    after = known.update("aXY", [1, 2], sums_like([20, 30]))
    assert after.targets.tolist() == after.points_points[0, 0].tolist() == [1, 20, 30]
    assert known.stale("aXc") == [2]


def swapped_roles(env):
    """The current roles, but with a seed that blends in another way."""
    now = roles(env.state, env.slots)
    return replace(now, blend=np.where(now.blend == Blend.MULTIPLY, Blend.ADD, Blend.MULTIPLY))


CHANGES = {
    "plant": lambda env, shard, slot: shard.plant(0, slot, 1, (0, "seed_init", 99), Blend.ADD),
    "clear": lambda env, shard, slot: shard.clear(0, slot, 1),
    "restore": lambda env, shard, slot: shard.restore(np.arange(5) == 0),
    "arrange": lambda env, shard, slot: shard.arrange(swapped_roles(env)),
    "drift": lambda env, shard, slot: shard.member_data.at(STEPS),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_a_member_makes_its_result_stale(change, plan_actions):
    env = env_of(Incubation.none, frozen=True)
    env.reset(seed=4)
    (shard,), slot = env.pool.shards, 1
    env.step(plan_actions((Op.GERMINATE, slot, 1), *[(Op.WAIT, 0, 0)] * 4))
    shard.save_snapshots(np.ones(5, np.bool_))
    (bank,) = shard.network.banks.values()
    bank.fleet.flat.data[0] += torch.randn(bank.fleet.flat.shape[1], generator=torch.Generator().manual_seed(1))
    alpha = np.ones((1, 5, env.layout.num_slots), np.float32)
    shard.forget()
    before = shard.validate(alpha)
    CHANGES[change](env, shard, slot)
    after = shard.validate(alpha)
    shard.forget()
    whole = shard.validate(alpha)
    np.testing.assert_allclose(after.loss_VM, whole.loss_VM, rtol=1e-5)
    member = [timetable != () for timetable in (view.timetable for view in env.views)].index(True) if change == "drift" else 0
    assert before.loss_VM[0, member] != after.loss_VM[0, member]
    env.close()
