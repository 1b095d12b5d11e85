"""Settings of counterfactual validation, and the effects of seeds in pure functions and in the environment."""

import numpy as np
import pytest

from esper.env.actions import Op
from esper.lifecycle.slots import EveryBlockConfig
from esper.lifecycle.stages import SlotState, Stage, empty
from esper.measure.counterfactuals import CounterfactualsConfig, Measurement, seed_effects, settings
from esper.measure.plans import Plan
from esper.reward.modes import ShapedConfig

ALL = list(set(Plan) - {Plan.leave_one_out})


@pytest.fixture
def state():
    """Four hosts: a fossil, a seed in training and one that blends; no seed; one seed; three seeds."""
    state = empty(4, 3)
    state.stage[:] = [[Stage.FOSSILIZED, Stage.TRAINING, Stage.BLENDING], [0, 0, 0], [0, Stage.HOLDING, 0], [Stage.HOLDING] * 3]
    state.alpha[:] = [[1.0, 0.0, 0.5], [0, 0, 0], [0, 1.0, 0], [1.0, 0.5, 0.25]]
    return state


def noiseless(asked, accuracy_of):
    """Return a measurement without noise, given the accuracy as a function of host and alphas."""
    variants, hosts, _ = asked.alpha_VNS.shape
    accuracy = np.array([[accuracy_of(host, asked.alpha_VNS[v, host]) for host in range(hosts)] for v in range(variants)])
    nothing = np.zeros((variants, hosts), np.float32)
    covariance = np.zeros((variants, variants, hosts))
    return Measurement(accuracy_VM=accuracy.astype(np.float32), loss_VM=nothing, error_VM=nothing, covariance_VVM=covariance)


def test_each_seed_is_off_once_and_shorter_lists_are_padded_with_the_current_setting(state):
    asked = settings(state, frozenset())
    assert asked.alpha_VNS[:, 0].tolist() == [[1, 0, 0.5], [0, 0, 0.5], [1, 0, 0], [1, 0, 0.5]]
    assert asked.alpha_VNS[:, 1].tolist() == [[0, 0, 0]] * 4
    assert asked.alpha_VNS[:, 2].tolist() == [[0, 1, 0], [0, 0, 0], [0, 1, 0], [0, 1, 0]]
    assert asked.alpha_VNS[:, 3].tolist() == [[1, 0.5, 0.25], [0, 0.5, 0.25], [1, 0, 0.25], [1, 0.5, 0]]
    assert settings(empty(2, 3), frozenset()).alpha_VNS.shape == (1, 2, 3)
    assert len(settings(state, frozenset(Plan)).alpha_VNS) == 8  # settings that plans share are measured once


def test_a_host_may_have_more_than_64_slots():
    state, gain = empty(1, 70), np.zeros(70)
    state.stage[0, [5, 63, 66]], state.alpha[0, [5, 63, 66]] = Stage.HOLDING, 1.0
    gain[[5, 63, 66]] = 1.0, 2.0, 3.0
    seen = seed_effects(asked := settings(state, frozenset(Plan)), noiseless(asked, lambda _, alpha: 50 + (gain * alpha).sum()))
    assert seen.contribution_NS[0] == pytest.approx(np.where(gain, gain, np.nan), nan_ok=True)
    assert seen.committed_accuracy_N.tolist() == [50]


def test_additive_effects_are_recovered(state):
    gain = np.array([3.0, -1.0, 4.0])
    seen = seed_effects(asked := settings(state, frozenset(Plan)), noiseless(asked, lambda _, alpha: 50 + (gain * alpha).sum()))
    effect = np.where(state.alpha > 0, gain * state.alpha, np.nan)
    live = np.where(state.within(Stage.FOSSILIZED), np.nan, effect)
    assert seen.contribution_NS == pytest.approx(effect, nan_ok=True)
    assert seen.shapley_NS == pytest.approx(effect, nan_ok=True, abs=1e-5)
    assert seen.solo_NS == pytest.approx(live, nan_ok=True)
    assert seen.all_off_accuracy_N.tolist() == seen.committed_accuracy_N.tolist() == [53, 50, 50, 50]
    nan = np.nan
    assert seen.interaction_NSS[0] == pytest.approx(np.diag([nan, nan, 0]) + np.where(np.eye(3), 0, nan), nan_ok=True)
    assert np.isnan(seen.interaction_NSS[1]).all()
    assert seen.interaction_NSS[3] == pytest.approx(np.zeros((3, 3)), abs=1e-5)


def test_interactions_of_pairs_are_recovered(state):
    def accuracy(host, alpha):
        on = alpha > 0
        return 40 + 2 * on[0] + 3 * on[1] + 5 * on[2] + 7 * (on[0] & on[2]) + 0.5 * on.all()

    for plans in ({Plan.pairs}, {Plan.factorial}):
        asked = settings(state, frozenset(plans))
        seen = seed_effects(asked, noiseless(asked, accuracy))
        assert seen.interaction_NSS[3] == pytest.approx(np.array([[0, 0, 7], [0, 0, 0], [7, 0, 0.0]]))
        assert np.isnan(seen.shapley_NS).all() == (plans == {Plan.pairs})
    state.stage[3, 1], state.alpha[3, 1] = Stage.DORMANT, 0.0  # exactly two
    asked = settings(state, frozenset({Plan.pairs}))
    seen = seed_effects(asked, noiseless(asked, accuracy))
    assert seen.interaction_NSS[3, 0, 2] == seen.interaction_NSS[3, 2, 0] == pytest.approx(7)
    assert np.isnan(seen.interaction_NSS[3, 1]).all()


def test_effects_without_a_plan_are_nan(state):
    asked = settings(state, frozenset())
    seen = seed_effects(asked, noiseless(asked, lambda *_: 50.0))
    for name in ("all_off_accuracy_N", "committed_accuracy_N", "solo_NS", "interaction_NSS", "shapley_NS", "shapley_error_NS"):
        assert np.isnan(getattr(seen, name)).all()
    assert (~np.isnan(seen.contribution_NS) == (state.alpha > 0)).all()


def test_shapley_values_of_many_seeds_come_from_orders_of_the_host_s_stream():
    state = empty(3, 6)
    state.stage[:], state.alpha[:] = Stage.HOLDING, 1.0
    plans, name = frozenset({Plan.shapley}), (3, "training", 0, 7)
    asked = settings(state, plans, name=name, pairs=4)
    assert [len(host.orders) for host in asked.hosts] == [8, 8, 8]
    assert asked.hosts[0].orders != asked.hosts[1].orders
    one = SlotState(**{key: array[:1] for key, array in state.arrays().items()})
    assert settings(one, plans, name=name, pairs=4).hosts[0].orders == asked.hosts[0].orders
    seen = seed_effects(asked, noiseless(asked, lambda host, alpha: 40 + 2 * alpha.sum() + host * alpha[:3].prod()))
    assert seen.shapley_NS.sum(axis=1) == pytest.approx([12, 13, 14], abs=1e-4)
    assert seen.shapley_error_NS[0] == pytest.approx(np.zeros(6), abs=1e-5)
    assert (seen.shapley_error_NS[2, :3] > 0).any()
    exact = settings(state, plans | {Plan.factorial}, name=name)
    assert not any(host.orders for host in exact.hosts)  # all subsets are measured anyway


# ---- in the environment


class Needy(ShapedConfig):
    """A reward that needs plans in every step."""

    def build(self, *, gamma):
        reward = ShapedConfig.build(self, gamma=gamma)
        reward.needs = frozenset({Plan.committed, Plan.pairs})
        return reward


def grow(env, plan_actions, steps, record):
    """Plant seeds in all slots, one after another; they advance automatically, and the first is fossilized."""
    env.reset(seed=0)
    for step in range(steps):
        op = (Op.GERMINATE, step, step % 2) if step < 3 else (Op.FOSSILIZE, 0, 0) if step == 6 else (Op.WAIT, 0, 0)
        record(env.step(plan_actions(*[op] * env.num_envs))[4])


def slots():
    return EveryBlockConfig(auto_advance=["training", "blending", "holding"])


def test_signals_equal_one_validation_for_each_setting(make_env, plan_actions):
    env = make_env(2, 9, slots=slots(), counterfactuals=CounterfactualsConfig(each_step=ALL))
    seen = []

    def check(info):
        signals, found = info["signals"], info["signals"].effects
        if signals.last:
            return
        state, brute = signals.after, {}
        for bits in range(8):
            alpha = state.alpha * np.array([bits >> slot & 1 for slot in range(3)], np.float32)
            brute[bits] = env.pool.validate(alpha[None]).accuracy_VM[0]
        fossil, inside = state.within(Stage.FOSSILIZED), state.alpha > 0
        for host in range(2):
            base = int(fossil[host] @ [1, 2, 4])
            f = {bits: accuracy[host] for bits, accuracy in brute.items()}
            assert signals.effects.all_off_accuracy_N[host] == pytest.approx(f[base])
            assert signals.effects.committed_accuracy_N[host] == pytest.approx(f[base])
            live = np.flatnonzero(inside[host] & ~fossil[host])
            assert (~np.isnan(found.solo_NS[host])).nonzero()[0].tolist() == live.tolist()
            for a in live:
                assert found.solo_NS[host, a] == pytest.approx(f[base | 1 << a] - f[base], abs=1e-4)
                for b in live:
                    both = f[base | 1 << a | 1 << b] - f[base | 1 << a] - f[base | 1 << b] + f[base]
                    assert signals.effects.interaction_NSS[host, a, b] == pytest.approx(both if a != b else 0, abs=1e-4)
            everyone = int(inside[host] @ [1, 2, 4])
            assert np.nansum(found.shapley_NS[host]) == pytest.approx(f[everyone] - f[0], abs=1e-4)
        seen.append((len(live), fossil.any()))

    grow(env, plan_actions, 9, check)
    assert {count for count, _ in seen} >= {0, 1, 2, 3}
    assert any(kept for _, kept in seen)


def test_more_plans_change_no_weight_and_no_contribution(make_env, plan_actions):
    rows = []
    for config in (CounterfactualsConfig(), CounterfactualsConfig(each_step=ALL)):
        env, record = make_env(3, 8, slots=slots(), counterfactuals=config), []
        grow(env, plan_actions, 7, record.append)
        state = [info["signals"].after for info in record]
        rows.append(({name: row.clone() for name, row in env.pool.shards[0].network.rows().items()}, state))
    (plain, states), (rich, others) = rows
    assert any("running_mean" in name for name in plain)
    assert all(row.equal(rich[name]) for name, row in plain.items())
    for one, other in zip(states, others, strict=True):
        np.testing.assert_allclose(one.contribution, other.contribution, atol=1e-4)


def test_plans_of_the_reward_and_of_the_end_are_measured_when_needed(make_env, plan_actions):
    infos = []
    env = make_env(1, 8, slots=slots(), reward=Needy(), counterfactuals=CounterfactualsConfig(at_end=[Plan.shapley]))
    grow(env, plan_actions, 8, infos.append)
    assert not any(np.isnan(info["signals"].effects.committed_accuracy_N).any() for info in infos)
    assert np.isfinite(infos[5]["signals"].effects.interaction_NSS).all()
    assert [np.isfinite(info["signals"].effects.shapley_NS).any() for info in infos] == [False] * 7 + [True]
    plain = []
    grow(make_env(1, 8, slots=slots()), plan_actions, 8, plain.append)
    assert [np.isfinite(info["signals"].effects.committed_accuracy_N).all() for info in plain] == [False] * 7 + [True]
    assert all(np.isnan(info["signals"].effects.interaction_NSS).all() for info in plain)


def test_a_seed_that_is_off_keeps_its_last_contribution(make_env, plan_actions):
    env = make_env(1, 9, slots=slots())
    env.reset(seed=0)
    env.step(plan_actions((Op.GERMINATE, 0, 0)))
    env.state.measured[:], env.state.contribution[:], env.state.alpha[:] = True, 3.0, 0.0  # measured once, and off again
    env.state.stage[0, 0], env.state.ramp_target[:], env.state.ramp_total[:] = Stage.BLENDING, 0.0, 0
    after = env.step(plan_actions((Op.WAIT, 0, 0)))[4]["signals"].after
    assert after.measured[0, 0]
    assert after.contribution[0, 0] == 3


@pytest.mark.parametrize("others", [{"members_per_shard": 1}, {"members_per_shard": 2}, {"hosts": 2}])
def test_effects_do_not_depend_on_shards_and_other_hosts(make_env, plan_actions, others):
    found = []
    for given in ({}, others):
        env, record = make_env(given.get("hosts", 4), 6, slots=slots(), counterfactuals=CounterfactualsConfig(each_step=ALL),
                               members_per_shard=given.get("members_per_shard", 0)), []  # fmt: skip
        grow(env, plan_actions, 5, record.append)
        found.append([info["signals"].effects for info in record])
    for one, other in zip(*found, strict=True):
        for name in ("contribution_NS", "solo_NS", "shapley_NS", "all_off_accuracy_N"):
            a, b = getattr(one, name), getattr(other, name)
            np.testing.assert_allclose(a[: len(b)], b, atol=4.01)  # one image of 50 in either accuracy
            apart = np.abs(a[: len(b)] - b)[~np.isnan(b)]
            assert (apart < 1e-3).sum() >= 0.8 * apart.size
