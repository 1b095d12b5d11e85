"""A host that falls ill is brought back from its snapshot; nobody else feels it."""

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
from esper.reward.modes import SparseConfig

HOSTS, STEPS, SICK = 4, 6, 1
FULL_AUTO = EveryBlockConfig(min_prune_age=1, auto_advance=["training", "blending", "holding"], embargo=1)


def network(env):
    return env.pool.shards[0].network


def poison_host(env):
    network(env).host.flat.data[SICK, 3] = np.nan


def blow_up_classifier(env):
    layer = network(env).host.bind().get_submodule("segments")[-1][-1]
    layer.weight.data[SICK] *= 1e4  # a view of the flat tensor


def poison_seed(env):
    """NaN in every live seed of the sick host; without one, in the host."""
    live = [(int(slot), int(env.state.blueprint[SICK, slot]), False) for slot in np.flatnonzero(env.state.blueprint[SICK] >= 0)]
    for key in live:
        network(env).banks[key].fleet.flat.data[SICK, -1] = np.nan
    if not live:
        poison_host(env)


def poison_activation(env):
    """One activation of the sick host in the first batch to be trained; all weights are well until then."""

    def spoil(module, inputs, output):
        if not module.training:
            return output
        hook.remove()
        output = output.clone()
        output.unflatten(1, (HOSTS, -1))[0, SICK, 0] = torch.nan
        return output

    hook = network(env).host.module.get_submodule("segments")[1].register_forward_hook(spoil)


FAULTS = {"weights": poison_host, "explosion": blow_up_classifier, "seed": poison_seed, "activation": poison_activation}
CAUSES = {name: Cause.DIVERGENCE if name == "explosion" else Cause.NONFINITE for name in FAULTS}


def rows_of(env, host):
    return {name: row[host].clone() for name, row in network(env).rows().items()}


def play(env, script, fault=None, at=-1):
    """Plays a script of actions; records what every host shows after each step."""
    env.reset(seed=0)
    record = []
    for step in range(STEPS):
        kept = rows_of(env, SICK)
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
                "losses": (signals.train_loss_N, signals.loss_N, signals.accuracy_N, signals.worth.committed_accuracy_N),
                "state": copy.deepcopy(env.state),
            }
        )
    return record


@pytest.fixture
def script(plan_actions):
    """Every host germinates in its own slot at once and another later; nobody fossilizes, nobody prunes."""
    wait = plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS)
    first = plan_actions(*[(Op.GERMINATE, host % 3, host % 2) for host in range(HOSTS)])
    second = plan_actions(*[(Op.GERMINATE, (host + 1) % 3, 1) for host in range(HOSTS)])
    return [first, wait, second, wait, wait, wait]


@pytest.fixture
def sick_env(make_env):
    return lambda **others: make_env(HOSTS, STEPS, slots=FULL_AUTO, governor=WatchdogConfig(penalty=7.0), **others)


@pytest.mark.parametrize("fault", list(FAULTS))
@pytest.mark.parametrize("at", range(STEPS))
def test_a_fault_at_any_step_is_one_host_s_affair(sick_env, script, fault, at):
    env = sick_env()
    calm, ill = play(sick_env(), script), play(env, script, FAULTS[fault], at)
    others = [host for host in range(HOSTS) if host != SICK]
    fallen = ill[at]

    # exactly that host, in exactly that step, with the penalty on that transition
    for step, seen in enumerate(ill):
        expected = np.zeros(HOSTS, dtype=bool)
        expected[SICK] = step == at
        assert (seen["info"]["signals"].rolled_back_N == expected).all()
        assert seen["info"]["components"]["governor"].tolist() == [-7.0 if wrong else 0.0 for wrong in expected]
        assert (seen["terminated"] == (expected | (step == STEPS - 1))).all()
        np.testing.assert_allclose(seen["reward"], np.sum(list(seen["info"]["components"].values()), axis=0), atol=1e-4)
    assert fallen["info"]["cause"][SICK] == CAUSES[fault]
    assert np.isfinite(fallen["reward"]).all()

    # the others: the same bits as without the fault (one thread, and two hosts or none left in every bank; see the last test)
    for well, seen in zip(calm, ill, strict=True):
        for one, two in zip(well["losses"], seen["losses"], strict=True):
            assert np.array_equal(one[others], two[others], equal_nan=True)
        assert np.array_equal(well["reward"][others], seen["reward"][others])
        assert all(
            np.array_equal(well["observation"][name][others], seen["observation"][name][others]) for name in ("features", "slots")
        )
        for name, rows in well["rows"].items():
            assert rows[others].equal(seen["rows"][name][others]), name

    # no advantage before the fall knows of what came after it, and that of the fall knows of the penalty
    reward_TN = torch.tensor(np.array([seen["reward"] for seen in ill]))
    end_TN = torch.tensor(np.array([seen["terminated"] for seen in ill]))
    value_TN = torch.linspace(-1, 1, STEPS * HOSTS).view(STEPS, HOSTS)

    def advantages(reward_TN, value_TN):
        return gae(reward_TN, value_TN, end_TN, gamma=0.9, lam=0.8)[: at + 1, SICK]

    other_TN, other_value_TN = reward_TN.clone(), value_TN.clone()
    other_TN[at + 1 :, SICK], other_value_TN[at + 1 :, SICK] = 100.0, 100.0
    assert advantages(reward_TN, value_TN).equal(advantages(other_TN, other_value_TN))
    other_TN[at, SICK] += 7.0
    assert (advantages(other_TN, other_value_TN) > advantages(reward_TN, value_TN)).all()

    # afterwards: finite, and its weights are numbers again
    for seen in ill[at + 1 :]:
        assert np.isfinite(seen["reward"]).all()
        assert np.isfinite(seen["losses"][1]).all()
        assert all(np.isfinite(seen["observation"][name]).all() for name in ("features", "slots"))
        assert all(rows.isfinite().all() for rows in seen["rows"].values())


@pytest.mark.parametrize("fault", list(FAULTS))
@pytest.mark.parametrize("at", range(STEPS - 1))
def test_the_host_is_its_snapshot_without_its_live_seeds(sick_env, script, fault, at):
    env = sick_env()
    fallen = play(env, script, FAULTS[fault], at)[at]
    for name, row in fallen["rows"].items():
        if name.startswith("seed"):
            assert not row[SICK].any(), name
        else:
            assert row[SICK].equal(fallen["kept"][name]), name
    after = fallen["state"]
    assert np.isin(after.stage[SICK], [Stage.DORMANT, Stage.PRUNED]).all()
    assert (after.blueprint[SICK] == -1).all()
    assert not after.alpha[SICK].any()


def test_a_rolled_back_host_trains_on_as_a_host_without_seeds_would(sick_env, plan_actions):
    """Its next epoch is that of a healthy host that never grew: same snapshot, same order of samples."""
    wait = plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS)
    germinate = plan_actions(*[(Op.GERMINATE if host == SICK else Op.WAIT, 0, 1) for host in range(HOSTS)])
    ill, bare = sick_env(), sick_env()
    for env in (ill, bare):
        env.reset(seed=0)
        env.step(wait)
    kept = rows_of(bare, SICK)
    poison_host(ill)
    ill.step(germinate)
    now = rows_of(ill, SICK)
    assert all(now[name].equal(row) for name, row in kept.items())
    bare.time += 1  # the epoch that the sick host lost
    one, two = (env.step(wait)[4]["signals"] for env in (ill, bare))
    np.testing.assert_allclose(one.train_loss_N[SICK], two.train_loss_N[SICK], rtol=1e-5)
    np.testing.assert_allclose(one.loss_N[SICK], two.loss_N[SICK], rtol=1e-5)


def to_holding(env, plan_actions, slot=0):
    """All hosts with a holding, measured seed of blueprint 1 in the slot."""
    env.step(plan_actions(*[(Op.GERMINATE, slot, 1)] * HOSTS))
    for _ in range(3):
        env.step(plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS))
    assert (env.state.stage[:, slot] == Stage.HOLDING).all()


@pytest.mark.parametrize("fault", list(FAULTS))
def test_fossils_are_kept_and_live_seeds_go(make_env, plan_actions, fault):
    env = make_env(HOSTS, 12, slots=FULL_AUTO)
    env.reset(seed=0)
    to_holding(env, plan_actions)
    env.step(plan_actions(*[(Op.FOSSILIZE, 0, 0)] * HOSTS))
    env.step(plan_actions(*[(Op.GERMINATE, 2, 0)] * HOSTS))
    kept = rows_of(env, SICK)
    state = copy.deepcopy(env.state)
    FAULTS[fault](env)
    info = env.step(plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS))[4]
    assert info["signals"].rolled_back_N.tolist() == [host == SICK for host in range(HOSTS)]
    assert env.state.stage[SICK].tolist() == [Stage.FOSSILIZED, Stage.DORMANT, Stage.PRUNED]
    assert env.state.alpha[SICK].tolist() == [1.0, 0.0, 0.0]
    assert env.state.contribution[SICK, 0] == state.contribution[SICK, 0]
    now = rows_of(env, SICK)
    assert all(row.equal(now[name]) for name, row in kept.items() if not name.endswith("2/0"))
    assert kept["seed/0/1"].any()
    assert not now["seed/2/0"].any()
    assert not now["seed_momentum/2/0"].any()


def test_a_fossil_made_in_the_lost_step_was_never_made(make_env, plan_actions):
    env = make_env(HOSTS, 12, slots=FULL_AUTO)
    env.reset(seed=0)
    to_holding(env, plan_actions)
    poison_host(env)
    env.step(plan_actions(*[(Op.FOSSILIZE, 0, 0)] * HOSTS))
    assert env.state.stage[:, 0].tolist() == [Stage.PRUNED if host == SICK else Stage.FOSSILIZED for host in range(HOSTS)]
    assert not rows_of(env, SICK)["seed/0/1"].any()
    info = env.step(plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS))[4]
    assert not info["signals"].rolled_back_N.any()
    assert np.isfinite(info["signals"].loss_N).all()


def test_a_seed_pruned_in_the_lost_step_stays_away(make_env, plan_actions):
    env = make_env(HOSTS, 12, slots=FULL_AUTO)
    env.reset(seed=0)
    to_holding(env, plan_actions)
    poison_host(env)
    env.step(plan_actions(*[(Op.PRUNE, 0, 0)] * HOSTS))
    assert (env.state.stage[:, 0] == Stage.PRUNED).all()
    assert not rows_of(env, SICK)["seed/0/1"].any()


def test_a_host_may_fall_ill_again_and_again(make_env, plan_actions):
    """Snapshots are taken of healthy hosts only: two faults in a row lead back to the same place."""
    env = make_env(HOSTS, 12, slots=FULL_AUTO)
    env.reset(seed=0)
    wait = plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS)
    env.step(wait)
    kept = rows_of(env, SICK)
    for _ in range(3):
        poison_host(env)
        assert env.step(wait)[2].tolist() == [host == SICK for host in range(HOSTS)]
        assert all(row.equal(kept[name]) for name, row in rows_of(env, SICK).items())
    assert not env.step(wait)[2].any()


def test_a_host_that_a_rollback_robs_of_its_seeds_is_measured_anew(make_env, plan_actions):
    """Judged by what it showed with them, it would be rolled back to the same place for ever."""
    env = make_env(HOSTS, 40, slots=FULL_AUTO)
    env.reset(seed=0)
    to_holding(env, plan_actions)
    wait = plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS)
    env.guard.health.best_loss_N[SICK] = 1e-6  # as if the seed were all that the host lives by
    poison_host(env)
    assert env.step(wait)[2][SICK]
    bare = env.pool.validate(env.state.alpha[None])
    assert env.state.alpha[SICK].max() == 0
    assert env.accuracy_NH[SICK, 0] == bare.accuracy_VM[0, SICK]
    assert (env.state.accuracy[SICK] == bare.accuracy_VM[0, SICK]).all()
    assert env.loss_N[SICK] == env.guard.health.best_loss_N[SICK] == bare.loss_VM[0, SICK]
    signals = env.step(wait)[4]["signals"]
    assert signals.accuracy_before_N[SICK] == bare.accuracy_VM[0, SICK]
    assert not signals.rolled_back_N.any()


@pytest.mark.parametrize("incubation", ["closed_loop", "straight_through"])
def test_a_fault_in_a_seed_behind_the_host_is_seen_at_once(make_env, plan_actions, incubation):
    """Nothing of it shows in the host's losses yet."""
    slots = EveryBlockConfig(incubation=Incubation[incubation], auto_advance=[], min_prune_age=1)
    env = make_env(HOSTS, 12, slots=slots)
    env.reset(seed=0)
    wait = plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS)
    env.step(plan_actions(*[(Op.GERMINATE, 1, 1)] * HOSTS))
    env.step(plan_actions(*[(Op.ADVANCE, 1, 0)] * HOSTS))
    assert (env.state.stage[:, 1] == Stage.TRAINING).all()
    poison_seed(env)
    *_, terminated, _, info = env.step(wait)
    assert terminated.tolist() == [host == SICK for host in range(HOSTS)]
    assert info["cause"].tolist() == [Cause.NONFINITE if host == SICK else Cause.HEALTHY for host in range(HOSTS)]
    assert env.state.stage[:, 1].tolist() == [Stage.PRUNED if host == SICK else Stage.TRAINING for host in range(HOSTS)]
    assert not env.step(wait)[2].any()


def test_the_record_of_a_rolled_back_host_goes_back_too(make_env, plan_actions):
    env = make_env(HOSTS, 12)
    env.reset(seed=0)
    wait = plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS)
    env.step(wait)
    kept = [getattr(env, name)[SICK].copy() for name in ("accuracy_NH", "loss_N", "potential_NSK")]
    health = env.guard.health
    poison_host(env)
    env.step(wait)
    for name, row in zip(("accuracy_NH", "loss_N", "potential_NSK"), kept, strict=True):
        assert np.array_equal(getattr(env, name)[SICK], row, equal_nan=True)
    assert np.array_equal(env.guard.health.loss_NW[SICK], health.loss_NW[SICK], equal_nan=True)
    assert env.guard.health.best_loss_N[SICK] == health.best_loss_N[SICK]
    signals = env.step(wait)[4]["signals"]
    assert signals.accuracy_before_N[SICK] == kept[0][0]


@pytest.mark.parametrize("reward", [None, SparseConfig()], ids=["shaped", "sparse"])
def test_nothing_measured_of_a_sick_host_is_paid(make_env, plan_actions, reward):
    env = make_env(HOSTS, 1, reward=reward)  # the fault comes in the last step, which pays most
    env.reset(seed=0)
    before = env.accuracy_NH[SICK, 0]
    poison_host(env)
    _, paid, _, _, info = env.step(plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS))
    expected = -10.0 - (before if reward is None else 0.0)  # shaping takes the potential of the state back
    assert paid[SICK] == pytest.approx(expected, abs=1e-4)
    assert info["components"]["terminal"][SICK] == 0.0


def test_what_was_signalled_stays_as_it_was(make_env, plan_actions):
    """The state in the signals is that of the step, not that of the snapshot which is laid over it."""
    env = make_env(HOSTS, 4)
    env.reset(seed=0)
    poison_host(env)
    signals = env.step(plan_actions(*[(Op.GERMINATE, 0, 1)] * HOSTS))[4]["signals"]
    held = signals.after.within(Stage.GERMINATED, Stage.TRAINING)
    assert np.array_equal(held, signals.params_NS > 0)


def test_features_stay_of_order_one_in_the_last_sight_of_a_sick_host(make_env, plan_actions):
    for fault in FAULTS.values():
        env = make_env(HOSTS, 4)
        env.reset(seed=0)
        fault(env)
        seen = env.step(plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS))[4]["final_obs"]
        assert all(np.abs(one[name]).max() < 100 for one in seen if one is not None for name in ("features", "slots"))


def test_without_a_governor_a_sick_host_ends_the_run_with_a_sentence(make_env, plan_actions):
    env = make_env(HOSTS, 4, governor=NoGovernorConfig())
    env.reset(seed=0)
    wait = plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS)
    env.step(wait)
    poison_host(env)
    with pytest.raises(FloatingPointError, match=r"hosts 1 .* governor=off .* use governor=watchdog"):
        env.step(wait)


@pytest.mark.parametrize("members", [1, 2])
def test_a_fault_stays_within_its_host_in_any_shard(make_env, plan_actions, members):
    env = make_env(HOSTS, 3, members_per_shard=members)
    calm = make_env(HOSTS, 3, members_per_shard=members)
    wait = plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS)
    for each in (env, calm):
        each.reset(seed=0)
    shard, member = env.pool._of(SICK)
    shard.network.host.flat.data[member] = torch.inf
    one, two = env.step(wait), calm.step(wait)
    assert one[2].tolist() == [host == SICK for host in range(HOSTS)]
    others = [host for host in range(HOSTS) if host != SICK]
    assert np.array_equal(one[1][others], two[1][others])


@pytest.mark.parametrize("cores", [1, 2])
def test_with_few_seeds_in_a_bank_or_many_threads_the_others_keep_their_numbers_to_rounding(
    make_env, plan_actions, monkeypatch, cores
):
    """A bank computes its live rows only. When a rollback takes one of two, or on many threads, sums change their order."""
    monkeypatch.setattr("esper.env.shard_pool.os.cpu_count", lambda: cores)
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
