"""The guard: suspicion and veto, collapse to chance, retirement, and errors in a blueprint."""

import dataclasses
import traceback

import numpy as np
import pytest
import torch

from esper.env.actions import Op
from esper.env.growth_env import PROBE_EVERY
from esper.env.guard import MEASURED
from esper.governor.base import Cause
from esper.governor.watchdog import WatchdogConfig
from esper.lifecycle.roles import Incubation
from esper.lifecycle.slots import EveryBlockConfig
from esper.lifecycle.stages import Stage
from esper.seeds.blueprints.plain import NormBranch
from esper.seeds.errors import SeedError

HOSTS, FAULTY = 4, 1
OTHERS = [host for host in range(HOSTS) if host != FAULTY]
FULL_AUTO = EveryBlockConfig(min_prune_age=1, auto_advance=["training", "blending", "holding"], embargo=1)


def network(env):
    return env.pool.shards[0].network


def rows_of(env, host):
    return {name: row[host].clone() for name, row in network(env).rows().items()}


def same_rows(one, two):
    return all(row.equal(two[name]) for name, row in one.items())


@pytest.fixture
def wait(plan_actions):
    return plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS)


def test_an_infinite_batch_variance_is_detected(make_env, wait):
    """An infinite variance is unused in training and makes every feature 0 in validation, so no loss shows it."""
    env = make_env(HOSTS, 4)
    env.reset(seed=0)
    env.step(wait)
    kept = rows_of(env, FAULTY)
    name = next(name for name in network(env).host.buffers if name.endswith("running_var"))
    network(env).host.buffers[name][FAULTY] = torch.inf
    info = env.step(wait)[4]
    assert np.isfinite([info["signals"].loss_N, info["signals"].train_loss_N]).all()
    assert info["cause"].tolist() == [Cause.NONFINITE if host == FAULTY else Cause.HEALTHY for host in range(HOSTS)]
    assert same_rows(kept, rows_of(env, FAULTY))


# ---- collapse to chance


def forget(env):
    """Zero the weights of the faulty host between training and measurement."""

    def wipe(module, inputs, output):
        if not module.training:
            hook.remove()
            network(env).host.flat.data[FAULTY] = 0.0

    hook = network(env).host.module.get_submodule("segments")[0].register_forward_hook(wipe)


CALM = []
"""Steps of an episode without a fault."""


@pytest.mark.parametrize("at", range(6))
def test_a_collapse_to_chance_is_detected_after_learning(make_env, small_task, plan_actions, wait, monkeypatch, at):
    monkeypatch.setattr(small_task, "batch_size", 8)
    governor = WatchdogConfig(good_share=0.98, chance_share=1e-3, penalty=7.0, patience=1)
    env = make_env(HOSTS, 6, slots=FULL_AUTO, governor=governor)
    germinate = plan_actions(*[(Op.GERMINATE, 1, host % 2) for host in range(HOSTS)])
    best = np.inf
    if not CALM:
        calm = make_env(HOSTS, 6, slots=FULL_AUTO, governor=governor)
        calm.reset(seed=0)
        CALM.extend(calm.step(germinate if step == 0 else wait) for step in range(6))
    env.reset(seed=0)
    for step in range(at + 1):
        kept, best = rows_of(env, FAULTY), min(best, float(env.loss_N[FAULTY]))
        if step == at:
            forget(env)
        _, reward, terminated, _, info = env.step(germinate if step == 0 else wait)
    _, well, _, _, untouched = CALM[at]
    was_good = best < 0.98 * np.log(10)
    assert was_good == (at >= 3), "both cases occur"
    assert info["signals"].loss_N[FAULTY] == pytest.approx(np.log(10), abs=1e-4)
    assert info["cause"].tolist() == [Cause.LOBOTOMY if was_good and host == FAULTY else Cause.HEALTHY for host in range(HOSTS)]
    assert not (terminated & ~info["signals"].ended_N).any()
    assert info["components"]["governor"].tolist() == [-7.0 if was_good and host == FAULTY else 0.0 for host in range(HOSTS)]
    assert np.array_equal(reward[OTHERS], well[OTHERS])
    assert np.array_equal(info["signals"].loss_N[OTHERS], untouched["signals"].loss_N[OTHERS])
    if was_good and at < 5:  # the last step makes new hosts
        now = rows_of(env, FAULTY)
        assert all(row.equal(now[name]) for name, row in kept.items() if not name.startswith("seed"))


# ---- suspicion


def make_suspect(env, host=FAULTY):
    """Pretend that the host's losses have been much lower."""
    env.guard.health.loss_NW[host, :5] = 0.01


def test_a_suspect_host_gets_no_snapshot_and_may_not_grow(make_env, plan_actions, wait):
    env = make_env(HOSTS, 12, slots=FULL_AUTO)
    env.reset(seed=0)
    env.step(wait)
    make_suspect(env)
    kept, record = rows_of(env, FAULTY), {name: getattr(env, name)[FAULTY].copy() for name in MEASURED}
    germinate = plan_actions(*[(Op.GERMINATE, 2, 1)] * HOSTS)
    observation, _, terminated, _, info = env.step(wait)
    assert info["suspect"].tolist() == [host == FAULTY for host in range(HOSTS)]
    assert not info["vetoed"].any(), "the host became suspect in this epoch"
    assert not terminated.any()
    assert observation["legal_slots"][:, Op.GERMINATE].any(axis=1).tolist() == [host != FAULTY for host in range(HOSTS)]
    assert observation["legal_slots"][:, Op.WAIT].all()

    observation, _, terminated, _, info = env.step(germinate)
    assert info["vetoed"].tolist() == [host == FAULTY for host in range(HOSTS)]
    assert info["signals"].op_N.tolist() == [Op.WAIT if host == FAULTY else Op.GERMINATE for host in range(HOSTS)]
    refused = env.layout.feature_names.index("last_refused")
    assert observation["features"][:, refused].tolist() == [float(host == FAULTY) for host in range(HOSTS)]
    assert not terminated.any()
    assert not same_rows(kept, rows_of(env, FAULTY)), "the host was trained"

    _, _, terminated, _, info = env.step(wait)  # the third epoch in a row
    assert info["cause"].tolist() == [Cause.DECLINE if host == FAULTY else Cause.HEALTHY for host in range(HOSTS)]
    assert terminated.tolist() == [host == FAULTY for host in range(HOSTS)]
    assert not info["suspect"].any()
    assert same_rows(kept, rows_of(env, FAULTY)), "the snapshot is from before the suspicion"
    for name, row in record.items():
        assert np.array_equal(getattr(env, name)[FAULTY], row, equal_nan=True)
    assert not env.guard.health.veto_NO.any()


def test_a_passing_suspicion_has_no_effect(make_env, wait):
    env, calm = make_env(HOSTS, 12), make_env(HOSTS, 12)
    for each in (env, calm):
        each.reset(seed=0)
        each.step(wait)
    usual = env.guard.health.loss_NW[FAULTY].copy()
    make_suspect(env)
    assert env.step(wait)[4]["suspect"][FAULTY]
    env.guard.health.loss_NW[FAULTY] = usual
    calm.step(wait)
    for _ in range(2):
        one, two = env.step(wait), calm.step(wait)
        assert np.array_equal(one[1], two[1])
        assert not one[4]["suspect"].any()
    assert same_rows(network(env)._snapshots._kept, network(calm)._snapshots._kept), "snapshots are saved again"
    env.step(wait)


def test_a_fault_of_a_suspect_host_restores_the_last_healthy_state(make_env, wait):
    env = make_env(HOSTS, 12)
    env.reset(seed=0)
    env.step(wait)
    make_suspect(env)
    kept = rows_of(env, FAULTY)
    env.step(wait)
    network(env).host.flat.data[FAULTY, 0] = torch.nan
    assert env.step(wait)[4]["cause"][FAULTY] == Cause.NONFINITE
    assert same_rows(kept, rows_of(env, FAULTY))


def test_an_episode_that_ends_in_a_rollback_reports_what_the_snapshot_holds(make_env, plan_actions, wait):
    """The fossil is younger: it was kept when the host was suspect already."""
    env = make_env(HOSTS, 6, slots=FULL_AUTO)
    env.reset(seed=0)
    episode = env.record()

    def go(actions):
        _, reward, _, _, info = env.step(actions)
        episode.add(info, reward)
        return info

    go(plan_actions(*[(Op.GERMINATE, 0, 1)] * HOSTS))
    for _ in range(3):
        go(wait)
    make_suspect(env)
    assert go(plan_actions(*[(Op.FOSSILIZE, 0, 0)] * HOSTS))["suspect"][FAULTY]
    network(env).host.flat.data[FAULTY, 0] = torch.nan
    info = go(wait)
    episode.close(info)
    episode.seconds = 1.0
    assert info["rolled_back"].tolist() == [host == FAULTY for host in range(HOSTS)]
    assert (episode.kept_NS[:, 0] >= 0).tolist() == [host != FAULTY for host in range(HOSTS)]
    assert (episode.kept_params_N > 0).tolist() == (episode.params_N > 0).tolist() == [host != FAULTY for host in range(HOSTS)]
    assert [seed.fate for seed in episode.log.seeds] == ["rolled_back" if host == FAULTY else "kept" for host in range(HOSTS)]
    assert episode.metrics()["host/stage_fossilized"] == 0.75
    assert np.isfinite(episode.metrics()["host/loss"])


# ---- repeated rollbacks


def test_a_diverging_host_retires_after_three_penalties(make_env, plan_actions, wait):
    """The host diverges because of its learning rate, which no rollback changes."""
    env, calm = (make_env(HOSTS, 14, slots=FULL_AUTO) for _ in range(2))
    for each in (env, calm):
        each.reset(seed=0)
        network(each).pace(torch.ones(HOSTS, 1))
        each.step(wait)
    kept = rows_of(env, FAULTY)
    network(env).pace(torch.where(torch.arange(HOSTS)[:, None] == FAULTY, 1e8, 1.0))
    penalties, shown = [], []
    for step in range(8):
        one, two = env.step(wait), calm.step(wait)
        penalties.append(one[4]["components"]["governor"][FAULTY])
        shown.append((env.accuracy_NH[FAULTY, 0], env.loss_N[FAULTY]))
        assert one[4]["retired"].tolist() == [host == FAULTY and step >= 2 for host in range(HOSTS)]
        assert one[2].tolist() == [host == FAULTY and step < 3 for host in range(HOSTS)]
        assert np.array_equal(one[1][OTHERS], two[1][OTHERS])
        assert np.isfinite(one[1]).all()
        assert all(np.isfinite(one[0][name]).all() for name in ("features", "slots"))
        assert same_rows(kept, rows_of(env, FAULTY))
    assert penalties == [-10.0] * 3 + [0.0] * 5
    assert len(set(shown)) == 1
    legal = env.legal_slots()
    assert legal[FAULTY].any(axis=1).tolist() == [op == Op.WAIT for op in Op]
    assert legal[OTHERS, Op.GERMINATE].any(axis=1).all()
    _, _, _, _, info = env.step(plan_actions(*[(Op.GERMINATE, 0, 1)] * HOSTS))
    assert info["vetoed"].tolist() == [host == FAULTY for host in range(HOSTS)]
    assert info["signals"].op_N[FAULTY] == Op.WAIT
    assert np.isnan(info["signals"].train_loss_N).tolist() == [host == FAULTY for host in range(HOSTS)]
    env.reset()
    assert not env.guard.health.retired_N.any()


def test_a_retired_host_keeps_its_fossils_and_its_reward(make_env, plan_actions, wait):
    env = make_env(HOSTS, 12, slots=FULL_AUTO, governor=WatchdogConfig(max_falls=1))
    env.reset(seed=0)
    env.step(plan_actions(*[(Op.GERMINATE, 0, 1)] * HOSTS))
    for _ in range(3):
        env.step(wait)
    env.step(plan_actions(*[(Op.FOSSILIZE, 0, 0)] * HOSTS))
    kept = rows_of(env, FAULTY)
    network(env).host.flat.data[FAULTY] = torch.nan
    assert env.step(wait)[4]["retired"][FAULTY]
    for _ in range(5):
        info = env.step(wait)[4]
        assert not info["signals"].ended_N.any()
        assert same_rows(kept, rows_of(env, FAULTY))
        assert info["signals"].after.stage[FAULTY, 0] == Stage.FOSSILIZED
    assert env.time == 11
    info = env.step(wait)[4]
    assert info["signals"].effects.committed_accuracy_N[FAULTY] == info["signals"].accuracy_N[FAULTY]
    assert info["components"]["terminal"][FAULTY] == info["signals"].effects.committed_accuracy_N[FAULTY]


def test_a_shard_without_finite_hosts_stops_training(make_env, wait, monkeypatch, small_task):
    monkeypatch.setattr(small_task, "batch_size", 8)  # 12 batches an epoch
    env = make_env(2, 8, members_per_shard=1, governor=WatchdogConfig(max_falls=2))
    env.reset(seed=0)
    counts = [0, 0]

    def counted(index, backward):
        def count(*args, **kwargs):
            counts[index] += 1
            return backward(*args, **kwargs)

        return count

    for index, shard in enumerate(env.pool.shards):
        monkeypatch.setattr(shard.network, "backward", counted(index, shard.network.backward))
    env.pool.shards[1].network.host.flat.data[0, 0] = torch.nan
    assert env.step(wait[:2])[2].tolist() == [False, True]
    assert counts == [12, 5], "four batches, then only the last, which the hooks watch"
    env.step(wait[:2])
    assert counts == [24, 17], "finite again"
    env.pool.shards[1].network.host.flat.data[0, 0] = torch.nan
    assert env.step(wait[:2])[4]["retired"].tolist() == [False, True]
    env.step(wait[:2])
    assert counts == [48, 23], "a retired host needs the last batch only"


def test_a_retired_host_keeps_its_growth_potential(make_env, wait):
    """Beside others it is trained, and restored; alone in its shard it is not."""
    env = make_env(2, 8, members_per_shard=2, governor=WatchdogConfig(max_falls=1))
    env.reset(seed=0)
    env.pool.shards[0].network.host.flat.data[1, 0] = torch.nan
    assert env.step(wait[:2])[4]["retired"].tolist() == [False, True]
    other, kept = env.potential_NSK.copy()
    for _ in range(PROBE_EVERY):
        env.step(wait[:2])
    np.testing.assert_array_equal(env.potential_NSK[1], kept)
    assert (env.potential_NSK[0] != other).any()
    assert np.isfinite(kept).any()


def test_every_array_of_hosts_is_restored_or_listed(make_env, wait):
    """A new array of the environment must be added to MEASURED, or here with a reason."""
    env = make_env(7, 3)
    env.reset(seed=0)
    env.step(wait[[0] * 7])
    of_the_step = {"op_N", "refused_N"}  # WAIT after a rollback; refused is about the action
    fixed = {"_legal_values", "foresight_NF"}  # what is known of the future depends on the time alone
    summed = {"online_N"}  # over all epochs, also those of a host that was rolled back
    found = {name for name, value in vars(env).items() if isinstance(value, np.ndarray) and value.shape[:1] == (7,)}
    assert found == set(MEASURED) | of_the_step | fixed | summed
    health = {field.name for field in dataclasses.fields(env.guard.health)}
    assert set(env.guard._kept) == set(MEASURED) | {"loss_NW", "best_loss_N"} | set(env.state.arrays())
    assert health == {"loss_NW", "best_loss_N", "suspect_N", "well_N", "falls_N", "retired_N"}


# ---- errors in a blueprint


class Broken(Exception):
    pass


@pytest.mark.parametrize("where", ["training", "measuring"])
@pytest.mark.parametrize("incubation", ["closed_loop", "straight_through"])
def test_an_error_in_a_blueprint_names_blueprint_slot_and_hosts(make_env, plan_actions, monkeypatch, where, incubation):
    slots = EveryBlockConfig(incubation=Incubation[incubation], auto_advance=["training", "blending", "holding"])
    env = make_env(HOSTS, 12, slots=slots, members_per_shard=2)
    env.reset(seed=0)
    forward = NormBranch.forward

    def fails(self, x):
        if torch.is_grad_enabled() == (where == "training"):
            raise Broken("no such thing")
        return forward(self, x)

    monkeypatch.setattr(NormBranch, "forward", fails)
    actions = plan_actions((Op.WAIT, 0, 0), (Op.GERMINATE, 1, 1), (Op.GERMINATE, 1, 0), (Op.GERMINATE, 1, 0))
    slot = env.layout.slot_names[1]

    def play():
        env.step(actions)
        for _ in range(6):
            env.step(np.zeros_like(actions))

    with pytest.raises(SeedError, match=rf"^blueprint NormConfig failed in slot {slot} with Broken: no such") as error:
        play()
    assert isinstance(error.value.__cause__, Broken)
    assert traceback.extract_tb(error.value.__cause__.__traceback__)[-1].name == "fails"
