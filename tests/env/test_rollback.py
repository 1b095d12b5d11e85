"""Rollbacks: a faulty host is restored from its snapshot, without effect on the others."""

import copy

import numpy as np
import pytest
import torch

from esper.agent.ppo.advantages import gae
from esper.env.actions import Op
from esper.governor.base import Cause
from esper.governor.off import NoGovernorConfig
from esper.governor.watchdog import WatchdogConfig
from esper.lifecycle.roles import Incubation
from esper.lifecycle.slots import EveryBlockConfig
from esper.lifecycle.stages import Stage
from esper.optimisers.adamw import AdamWConfig
from esper.optimisers.sgd import SGDConfig
from esper.reward.modes import SparseConfig

HOSTS, STEPS, FAULTY = 4, 6, 1
FULL_AUTO = EveryBlockConfig(min_prune_age=1, auto_advance=["training", "blending", "holding"], embargo=1)


def network(env):
    return env.pool.shards[0].network


def poison_host(env):
    network(env).host.flat.data[FAULTY, 3] = np.nan


def blow_up_classifier(env):
    network(env).host.bind().get_submodule("segments")[-1][-1].weight.data[FAULTY] *= 1e4  # a view of the flat tensor


def poison_seed(env):
    """Write NaN into every live seed of the faulty host, or into the host if it has none."""
    live = [
        (int(slot), int(env.state.blueprint[FAULTY, slot]), False) for slot in np.flatnonzero(env.state.blueprint[FAULTY] >= 0)
    ]
    for key in live:
        network(env).banks[key].fleet.flat.data[FAULTY, -1] = np.nan
    if not live:
        poison_host(env)


def poison_activation(env):
    """Make one activation of the faulty host NaN in the first batch of training."""

    def spoil(module, inputs, output):
        if not module.training:
            return output
        hook.remove()
        output = output.clone()
        output.unflatten(1, (HOSTS, -1))[0, FAULTY, 0] = torch.nan
        return output

    hook = network(env).host.module.get_submodule("segments")[1].register_forward_hook(spoil)


FAULTS = {"weights": poison_host, "explosion": blow_up_classifier, "seed": poison_seed, "activation": poison_activation}
CAUSES = {name: Cause.DIVERGENCE if name == "explosion" else Cause.NONFINITE for name in FAULTS}


def rows_of(env, host):
    return {name: row[host].clone() for name, row in network(env).rows().items()}


def play(env, script, fault=None, at=-1):
    """Play a script of actions, and record every host after each step."""
    env.reset(seed=0)
    record = []
    for step in range(STEPS):
        kept = rows_of(env, FAULTY)
        if step == at:
            fault(env)
        observation, reward, terminated, _, info = env.step(script[step])
        signals = info["signals"]
        record.append(
            {
                "kept": kept,
                "rows": {name: row.clone() for name, row in network(env).rows().items()},
                "observation": observation,
                "reward": reward,
                "terminated": terminated,
                "info": info,
                "losses": (signals.train_loss_N, signals.loss_N, signals.accuracy_N, signals.effects.committed_accuracy_N),
                "state": copy.deepcopy(env.state),
            }
        )
    return record


@pytest.fixture
def script(plan_actions):
    """Two germinations per host, in different slots, and no other operation."""
    wait = plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS)
    first = plan_actions(*[(Op.GERMINATE, host % 3, host % 2) for host in range(HOSTS)])
    second = plan_actions(*[(Op.GERMINATE, (host + 1) % 3, 1) for host in range(HOSTS)])
    return [first, wait, second, wait, wait, wait]


@pytest.fixture
def faulty_env(make_env):
    return lambda **others: make_env(HOSTS, STEPS, slots=FULL_AUTO, governor=WatchdogConfig(penalty=7.0), **others)


CALM: list[dict] = []


@pytest.fixture
def calm(faulty_env, script):
    """The record without a fault, played once for all tests."""
    CALM.extend([] if CALM else play(faulty_env(), script))
    return CALM


ALL, ENDS = range(STEPS), (0, 2, STEPS - 1)  # germinations and the last step: what a step changes is the same for all faults
WHEN = {"weights": ALL, "explosion": ENDS, "seed": ALL, "activation": ENDS}


@pytest.mark.parametrize(("fault", "at"), [(fault, at) for fault in FAULTS for at in WHEN[fault]])
def test_a_fault_at_any_step_affects_one_host_only(faulty_env, script, calm, fault, at):
    ill = play(faulty_env(), script, FAULTS[fault], at)
    others, fallen = [host for host in range(HOSTS) if host != FAULTY], ill[at]

    # only this host, only in this step, with the penalty on this transition
    for step, seen in enumerate(ill):
        expected = np.zeros(HOSTS, dtype=bool)
        expected[FAULTY] = step == at
        assert (seen["info"]["signals"].rolled_back_N == expected).all()
        assert seen["info"]["components"]["governor"].tolist() == [-7.0 if wrong else 0.0 for wrong in expected]
        assert (seen["terminated"] == (expected | (step == STEPS - 1))).all()
        np.testing.assert_allclose(seen["reward"], np.sum(list(seen["info"]["components"].values()), axis=0), atol=1e-4)
    assert fallen["info"]["cause"][FAULTY] == CAUSES[fault]
    assert np.isfinite(fallen["reward"]).all()

    # the host is its snapshot without its live seeds
    if at < STEPS - 1:
        for name, row in fallen["rows"].items():
            assert not row[FAULTY].any() if name.startswith("seed") else row[FAULTY].equal(fallen["kept"][name]), name
        after = fallen["state"]
        assert np.isin(after.stage[FAULTY], [Stage.DORMANT, Stage.PRUNED]).all()
        assert (after.blueprint[FAULTY] == -1).all()
        assert not after.alpha[FAULTY].any()

    # the others: equal bits (one thread, and two hosts or none in every bank; see the last test)
    for well, seen in zip(calm, ill, strict=True):
        for one, two in zip(well["losses"], seen["losses"], strict=True):
            assert np.array_equal(one[others], two[others], equal_nan=True)
        assert np.array_equal(well["reward"][others], seen["reward"][others])
        assert all(
            np.array_equal(well["observation"][name][others], seen["observation"][name][others]) for name in ("features", "slots")
        )
        for name, rows in well["rows"].items():
            assert rows[others].equal(seen["rows"][name][others]), name

    # advantages up to the rollback do not depend on what follows it; that of the rollback includes the penalty
    reward_TN = torch.tensor(np.array([seen["reward"] for seen in ill]))
    end_TN = torch.tensor(np.array([seen["terminated"] for seen in ill]))
    value_TN = torch.linspace(-1, 1, STEPS * HOSTS).view(STEPS, HOSTS)

    def advantages(reward_TN, value_TN):
        return gae(reward_TN, value_TN, end_TN, gamma=0.9, lam=0.8)[: at + 1, FAULTY]

    other_TN, other_value_TN = reward_TN.clone(), value_TN.clone()
    other_TN[at + 1 :, FAULTY], other_value_TN[at + 1 :, FAULTY] = 100.0, 100.0
    assert advantages(reward_TN, value_TN).equal(advantages(other_TN, other_value_TN))
    other_TN[at, FAULTY] += 7.0
    assert (advantages(other_TN, other_value_TN) > advantages(reward_TN, value_TN)).all()

    # afterwards everything is finite again
    for seen in ill[at + 1 :]:
        assert np.isfinite(seen["reward"]).all()
        assert np.isfinite(seen["losses"][1]).all()
        assert all(np.isfinite(seen["observation"][name]).all() for name in ("features", "slots"))
        assert all(rows.isfinite().all() for rows in seen["rows"].values())


def test_a_rolled_back_host_trains_like_a_host_without_seeds(faulty_env, plan_actions):
    """The next epoch equals that of a host that never grew: same snapshot, same sample order."""
    wait = plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS)
    germinate = plan_actions(*[(Op.GERMINATE if host == FAULTY else Op.WAIT, 0, 1) for host in range(HOSTS)])
    ill, bare = faulty_env(), faulty_env()
    for env in (ill, bare):
        env.reset(seed=0)
        env.step(wait)
    kept = rows_of(bare, FAULTY)
    poison_host(ill)
    ill.step(germinate)
    now = rows_of(ill, FAULTY)
    assert all(now[name].equal(row) for name, row in kept.items())
    bare.time += 1  # the epoch that the rollback undid
    one, two = (env.step(wait)[4]["signals"] for env in (ill, bare))
    np.testing.assert_allclose(one.train_loss_N[FAULTY], two.train_loss_N[FAULTY], rtol=1e-5)
    np.testing.assert_allclose(one.loss_N[FAULTY], two.loss_N[FAULTY], rtol=1e-5)


def to_holding(env, plan_actions, slot=0):
    """Return hosts with a holding, measured seed of blueprint 1 in the slot."""
    env.step(plan_actions(*[(Op.GERMINATE, slot, 1)] * HOSTS))
    for _ in range(3):
        env.step(plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS))
    assert (env.state.stage[:, slot] == Stage.HOLDING).all()


@pytest.mark.parametrize("optimiser", [SGDConfig(), AdamWConfig()], ids=["sgd", "adamw"])
@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_rollback_keeps_fossils_and_removes_live_seeds(make_env, plan_actions, fault, optimiser):
    env = make_env(HOSTS, 12, slots=FULL_AUTO, optimiser=optimiser)
    env.reset(seed=0)
    to_holding(env, plan_actions)
    env.step(plan_actions(*[(Op.FOSSILIZE, 0, 0)] * HOSTS))
    env.step(plan_actions(*[(Op.GERMINATE, 2, 0)] * HOSTS))
    kept = rows_of(env, FAULTY)
    state = copy.deepcopy(env.state)
    FAULTS[fault](env)
    info = env.step(plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS))[4]
    assert info["signals"].rolled_back_N.tolist() == [host == FAULTY for host in range(HOSTS)]
    assert env.state.stage[FAULTY].tolist() == [Stage.FOSSILIZED, Stage.DORMANT, Stage.PRUNED]
    assert env.state.alpha[FAULTY].tolist() == [1.0, 0.0, 0.0]
    assert env.state.contribution[FAULTY, 0] == state.contribution[FAULTY, 0]
    now = rows_of(env, FAULTY)
    assert all(row.equal(now[name]) for name, row in kept.items() if not name.endswith("2/0"))
    assert kept["seed/0/1"].any()
    own = [name for name in now if name.startswith("seed") and name.endswith("/2/0")]
    assert len(own) == (2 if isinstance(optimiser, SGDConfig) else 4), "parameters and optimiser state"
    assert all(kept[name].any() and not now[name].any() for name in own)


def test_a_rollback_undoes_a_fossilisation_of_the_same_step(make_env, plan_actions):
    env = make_env(HOSTS, 12, slots=FULL_AUTO)
    env.reset(seed=0)
    to_holding(env, plan_actions)
    poison_host(env)
    env.step(plan_actions(*[(Op.FOSSILIZE, 0, 0)] * HOSTS))
    assert env.state.stage[:, 0].tolist() == [Stage.PRUNED if host == FAULTY else Stage.FOSSILIZED for host in range(HOSTS)]
    assert not rows_of(env, FAULTY)["seed/0/1"].any()
    info = env.step(plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS))[4]
    assert not info["signals"].rolled_back_N.any()
    assert np.isfinite(info["signals"].loss_N).all()


def test_a_seed_pruned_in_a_rolled_back_step_stays_removed(make_env, plan_actions):
    env = make_env(HOSTS, 12, slots=FULL_AUTO)
    env.reset(seed=0)
    to_holding(env, plan_actions)
    poison_host(env)
    env.step(plan_actions(*[(Op.PRUNE, 0, 0)] * HOSTS))
    assert (env.state.stage[:, 0] == Stage.PRUNED).all()
    assert not rows_of(env, FAULTY)["seed/0/1"].any()


def test_a_host_can_be_rolled_back_repeatedly(make_env, plan_actions):
    """Only healthy hosts get snapshots: two faults in a row restore the same one."""
    env = make_env(HOSTS, 12, slots=FULL_AUTO)
    env.reset(seed=0)
    wait = plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS)
    env.step(wait)
    kept = rows_of(env, FAULTY)
    for _ in range(3):
        poison_host(env)
        assert env.step(wait)[2].tolist() == [host == FAULTY for host in range(HOSTS)]
        assert all(row.equal(kept[name]) for name, row in rows_of(env, FAULTY).items())
    assert not env.step(wait)[2].any()


def test_a_host_is_measured_again_after_a_rollback_removed_seeds(make_env, plan_actions):
    """Judged by its losses with those seeds, it would be rolled back for ever."""
    env = make_env(HOSTS, 40, slots=FULL_AUTO)
    env.reset(seed=0)
    to_holding(env, plan_actions)
    wait = plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS)
    env.guard.health.best_loss_N[FAULTY] = 1e-6  # as if the host were good only because of the seed
    poison_host(env)
    assert env.step(wait)[2][FAULTY]
    bare = env.pool.validate(env.state.alpha[None])
    assert env.state.alpha[FAULTY].max() == 0
    assert env.accuracy_NH[FAULTY, 0] == bare.accuracy_VM[0, FAULTY]
    assert (env.state.accuracy[FAULTY] == bare.accuracy_VM[0, FAULTY]).all()
    assert env.loss_N[FAULTY] == env.guard.health.best_loss_N[FAULTY] == bare.loss_VM[0, FAULTY]
    signals = env.step(wait)[4]["signals"]
    assert signals.accuracy_before_N[FAULTY] == bare.accuracy_VM[0, FAULTY]
    assert not signals.rolled_back_N.any()


@pytest.mark.parametrize("incubation", ["closed_loop", "straight_through"])
def test_a_fault_in_a_seed_behind_the_host_is_detected_at_once(make_env, plan_actions, incubation):
    """The host's losses do not show it yet."""
    slots = EveryBlockConfig(incubation=Incubation[incubation], auto_advance=[], min_prune_age=1)
    env = make_env(HOSTS, 12, slots=slots)
    env.reset(seed=0)
    wait = plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS)
    env.step(plan_actions(*[(Op.GERMINATE, 1, 1)] * HOSTS))
    env.step(plan_actions(*[(Op.ADVANCE, 1, 0)] * HOSTS))
    assert (env.state.stage[:, 1] == Stage.TRAINING).all()
    poison_seed(env)
    *_, terminated, _, info = env.step(wait)
    assert terminated.tolist() == [host == FAULTY for host in range(HOSTS)]
    assert info["cause"].tolist() == [Cause.NONFINITE if host == FAULTY else Cause.HEALTHY for host in range(HOSTS)]
    assert env.state.stage[:, 1].tolist() == [Stage.PRUNED if host == FAULTY else Stage.TRAINING for host in range(HOSTS)]
    assert not env.step(wait)[2].any()


def test_a_rollback_restores_the_health_record(make_env, plan_actions):
    env = make_env(HOSTS, 12)
    env.reset(seed=0)
    wait = plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS)
    env.step(wait)
    kept = [getattr(env, name)[FAULTY].copy() for name in ("accuracy_NH", "loss_N", "potential_NSK")]
    health = env.guard.health
    poison_host(env)
    env.step(wait)
    for name, row in zip(("accuracy_NH", "loss_N", "potential_NSK"), kept, strict=True):
        assert np.array_equal(getattr(env, name)[FAULTY], row, equal_nan=True)
    assert np.array_equal(env.guard.health.loss_NW[FAULTY], health.loss_NW[FAULTY], equal_nan=True)
    assert env.guard.health.best_loss_N[FAULTY] == health.best_loss_N[FAULTY]
    signals = env.step(wait)[4]["signals"]
    assert signals.accuracy_before_N[FAULTY] == kept[0][0]


@pytest.mark.parametrize("reward", [None, SparseConfig()], ids=["shaped", "sparse"])
def test_a_host_rolled_back_in_the_last_step_is_paid_for_its_snapshot(make_env, plan_actions, reward):
    env = make_env(HOSTS, 7, slots=FULL_AUTO, reward=reward)
    env.reset(seed=0)
    to_holding(env, plan_actions)
    env.step(plan_actions(*[(Op.FOSSILIZE, 0, 0)] * HOSTS))
    env.step(plan_actions(*[(Op.GERMINATE, 2, 0)] * HOSTS))
    fossil, before = env.state.within(Stage.FOSSILIZED), env.accuracy_NH[FAULTY, 0]
    snapshot = env.pool.validate(np.where(fossil, env.state.alpha, 0.0)[None].astype(np.float32)).accuracy_VM[0, FAULTY]
    poison_host(env)
    _, paid, _, _, info = env.step(plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS))
    parts = {name: values[FAULTY] for name, values in info["components"].items()}
    assert parts["terminal"] == info["signals"].effects.committed_accuracy_N[FAULTY] == pytest.approx(snapshot, abs=1e-4)
    assert parts["governor"] == -10.0
    assert parts.get("attribution", 0.0) == 0.0, "what was measured in this step is void"
    if reward is None:
        assert parts["shaping"] == pytest.approx(-before - 0.2 * (6.0 + 2.0), abs=0.01), "a fossil and a seed in training"
    assert paid[FAULTY] == pytest.approx(sum(parts.values()), abs=1e-4)


def test_a_rollback_leaves_the_signals_unchanged(make_env, plan_actions):
    """Signals hold the state of the step, not of the restored snapshot."""
    env = make_env(HOSTS, 4)
    env.reset(seed=0)
    poison_host(env)
    signals = env.step(plan_actions(*[(Op.GERMINATE, 0, 1)] * HOSTS))[4]["signals"]
    held = signals.after.within(Stage.GERMINATED, Stage.TRAINING)
    assert np.array_equal(held, signals.params_NS > 0)


def test_final_obs_of_a_rolled_back_host_is_in_range(make_env, plan_actions):
    for fault in FAULTS.values():
        env = make_env(HOSTS, 4)
        env.reset(seed=0)
        fault(env)
        seen = env.step(plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS))[4]["final_obs"]
        assert all(np.abs(one[name]).max() < 100 for one in seen if one is not None for name in ("features", "slots"))


def test_without_a_governor_a_non_finite_host_ends_the_run(make_env, plan_actions):
    env = make_env(HOSTS, 4, governor=NoGovernorConfig())
    env.reset(seed=0)
    wait = plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS)
    env.step(wait)
    poison_host(env)
    with pytest.raises(FloatingPointError, match=r"hosts 1 .* governor=off .* start a new run with governor=watchdog"):
        env.step(wait)


@pytest.mark.parametrize("members", [1, 2])
def test_a_fault_affects_one_host_only_in_any_shard(make_env, plan_actions, members):
    env, calm = make_env(HOSTS, 3, members_per_shard=members), make_env(HOSTS, 3, members_per_shard=members)
    wait = plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS)
    for each in (env, calm):
        each.reset(seed=0)
    shard, member = env.pool._of(FAULTY)
    shard.network.host.flat.data[member] = torch.inf
    one, two = env.step(wait), calm.step(wait)
    assert one[2].tolist() == [host == FAULTY for host in range(HOSTS)]
    others = [host for host in range(HOSTS) if host != FAULTY]
    assert np.array_equal(one[1][others], two[1][others])


@pytest.mark.parametrize("cores", [1, 2])
def test_other_hosts_agree_to_rounding_with_few_seeds_or_many_threads(make_env, plan_actions, monkeypatch, cores):
    """A bank computes live rows only: when a rollback removes one of two, or with many threads, the order of sums changes."""
    monkeypatch.setattr("esper.pool.local.os.cpu_count", lambda: cores)
    env, calm = make_env(2, 6, slots=FULL_AUTO), make_env(2, 6, slots=FULL_AUTO)
    wait = plan_actions((Op.WAIT, 0, 0), (Op.WAIT, 0, 0))
    for each in (env, calm):
        each.reset(seed=0)
        each.step(plan_actions((Op.GERMINATE, 1, 1), (Op.GERMINATE, 1, 1)))
    poison_host(env)
    for _ in range(4):
        one, two = env.step(wait)[4]["signals"], calm.step(wait)[4]["signals"]
        np.testing.assert_allclose(one.loss_N[0], two.loss_N[0], rtol=1e-4)
        np.testing.assert_allclose(one.train_loss_N[0], two.train_loss_N[0], rtol=1e-4)
        assert np.array_equal(one.after.stage[0], two.after.stage[0])
