"""Costs in the signals of a step, and FLOPs of an episode."""

import math

import numpy as np
import pytest
import torch

from esper.env.actions import Op
from esper.fusion.precision import Precision
from esper.governor.watchdog import WatchdogConfig
from esper.lifecycle.stages import BLENDED, Stage
from esper.measure.costs import Price
from esper.reward.modes import ShapedConfig
from esper.reward.terms import RentUnit

TIMED = ShapedConfig(rent_unit=RentUnit.latency)


def known_latency(env, host=1e-5):
    shape = env.costs.params.seed_KS.shape
    seed = 1e-6 * (1 + np.arange(shape[0] * shape[1], dtype=float).reshape(shape))
    return Price(host=host, seed_KS=seed, gate_S=np.full(shape[1], 1e-7))


def test_signals_hold_costs_before_and_after_a_step(make_env, plan_actions):
    env = make_env(2, 4)
    env.reset(seed=1)
    *_, info = env.step(plan_actions((Op.GERMINATE, 1, 1), (Op.WAIT, 0, 0)))
    signals, flops = info["signals"], env.costs.flops.forward
    assert signals.flops_NS.tolist() == [[0, flops.seed_KS[1, 1], 0], [0, 0, 0]]
    assert signals.flops_NS.dtype == signals.latency_NS.dtype == np.float32
    assert not signals.flops_before_NS.any()
    assert signals.host_flops == flops.host
    assert np.isnan(signals.latency_NS).tolist() == [[False, True, False], [False] * 3], "the reward does not need it"
    assert math.isnan(signals.host_latency)
    signals = env.step(plan_actions((Op.WAIT, 0, 0), (Op.WAIT, 0, 0)))[-1]["signals"]
    assert signals.flops_before_NS.tolist() == [[0, flops.seed_KS[1, 1], 0], [0, 0, 0]]


def test_latency_is_measured_once_if_the_reward_needs_it(make_env, plan_actions, monkeypatch):
    env = make_env(2, 2, reward=TIMED)
    assert math.isnan(env.costs.latency.host)
    calls = []

    def measure(host, blueprints, used_S, samples, device):
        calls.append((len(blueprints), used_S.tolist(), tuple(samples.shape), str(device)))
        return known_latency(env)

    monkeypatch.setattr("esper.pool.local.measure_latency", measure)
    env.reset(seed=1)
    env.reset(seed=2)
    *_, info = env.step(plan_actions((Op.GERMINATE, 1, 1), (Op.WAIT, 0, 0)))
    assert calls == [(2, [True] * 3, (50, 1, 8, 8), "cpu")]
    signals = info["signals"]
    assert signals.latency_NS.tolist() == [[0, np.float32(5e-6), 0], [0, 0, 0]]
    assert signals.latency_before_NS.tolist() == [[0] * 3] * 2
    assert signals.host_latency == 1e-5


@pytest.mark.parametrize("precision", [Precision.fp32, Precision.bf16])
def test_latency_is_measured_in_the_precision_of_the_device(make_env, monkeypatch, precision):
    env, half = make_env(1, 2, reward=TIMED, precision=precision), []
    monkeypatch.setattr(
        "esper.pool.local.measure_latency",
        lambda *_: half.append(torch.is_autocast_enabled("cpu")) or known_latency(env),
    )
    env.reset(seed=1)
    assert half == [precision is Precision.bf16]


def test_restored_latency_is_not_measured_again(make_env, monkeypatch):
    monkeypatch.setattr("esper.pool.local.measure_latency", lambda *_: pytest.fail("measured though known"))
    env = make_env(1, 2, reward=TIMED)
    env.time_inference(known_latency(env, host=3e-5))
    env.reset(seed=1)
    assert env.costs.latency.host == 3e-5


def test_latency_of_real_hosts_is_positive(make_env, monkeypatch):
    env = make_env(1, 2, reward=TIMED)
    env.reset(seed=1)
    assert 0 < env.costs.latency.host < 1e-2
    assert np.isfinite(env.costs.latency.seed_KS).all()


# ---- FLOPs of an episode


def test_flops_of_an_episode_without_seeds(make_env, plan_actions):
    env, steps = make_env(2, 3), 3
    env.reset(seed=1)
    for _ in range(steps):
        *_, info = env.step(plan_actions((Op.WAIT, 0, 0), (Op.WAIT, 0, 0)))
    host = env.costs.flops.forward.host
    assert info["training_flops"].tolist() == [steps * 96 * 3 * host] * 2
    assert (
        info["measuring_flops"].tolist() == [(1 + steps) * 50 * host] * 2
    )  # the setting of fossils alone equals the committed one
    assert env.meter.training_N.tolist() == [0, 0], "counters start from 0 in the next episode"
    assert env.meter.measuring_N.tolist() == [50 * host] * 2


def test_flops_of_seeds_count_from_training_on(make_env, plan_actions):
    env = make_env(2, 9)
    env.reset(seed=1)
    flops, waits = env.costs.flops, plan_actions((Op.WAIT, 0, 0), (Op.WAIT, 0, 0))
    host, seed, after = flops.forward.host, flops.forward.seed_KS[1, 1], flops.segment_R[2:].sum()
    env.step(plan_actions((Op.GERMINATE, 1, 1), (Op.WAIT, 0, 0)))
    stages = []
    for turn in range(6):
        spent, measured = env.meter.training_N.copy(), env.meter.measuring_N.copy()
        env.step(plan_actions((Op.ADVANCE, 1, 0), (Op.WAIT, 0, 0)) if turn == 3 else waits)
        stage = Stage(env.state.stage[0, 1])
        stages.append(stage)
        # A seed in training adds a closed-loop pass of the later segments; an active seed is measured with and without.
        more = 3 * seed + 2 * after * (stage is Stage.TRAINING)
        assert (env.meter.training_N - spent).tolist() == [96 * (3 * host + more), 96 * 3 * host]
        assert (env.meter.measuring_N - measured).tolist() == [50 * (host + (seed + after) * (stage in BLENDED)), 50 * host]
    assert stages[0] is Stage.TRAINING
    assert stages[-1] in BLENDED


@pytest.mark.parametrize("steps", [2, 8])
def test_flops_of_a_host_do_not_depend_on_rollbacks_of_others(make_env, plan_actions, steps):
    """A host that lost a seed in a rollback is measured again, and in the last step without its live seeds too."""
    measured = []
    for fails in (False, True):
        env = make_env(2, steps)
        env.reset(seed=1)
        env.autoreset = False
        env.step(plan_actions((Op.GERMINATE, 1, 1), (Op.GERMINATE, 1, 1)))
        if fails:
            env.pool.shards[0].network.host.flat.data[1, 0] = torch.nan
        *_, info = env.step(plan_actions((Op.WAIT, 0, 0), (Op.WAIT, 0, 0)))
        assert info["rolled_back"].tolist() == [False, fails]
        measured.append(info["measuring_flops"])
    assert measured[0][0] == measured[1][0]
    assert measured[0][1] < measured[1][1]


def test_a_retired_host_spends_nothing_on_training(make_env, plan_actions):
    env = make_env(2, 8, governor=WatchdogConfig(max_falls=1))
    env.reset(seed=1)
    env.pool.shards[0].network.host.flat.data[1, 0] = torch.nan
    waits, host = plan_actions((Op.WAIT, 0, 0), (Op.WAIT, 0, 0)), env.costs.flops.forward.host
    before = env.step(waits)[-1]
    assert before["retired"].tolist() == [False, True]
    assert (env.step(waits)[-1]["training_flops"] - before["training_flops"]).tolist() == [96 * 3 * host, 0]


def test_the_cost_table_is_keyed_by_name_and_omits_unmeasured_costs(make_env):
    env = make_env(1, 2)
    table = env.costs.table(env.layout.blueprint_names, env.layout.slot_names)
    assert table["host"] == {"params": env.host_params, "flops": env.costs.flops.forward.host, "latency": None}
    assert list(table["seeds"]) == ["norm", "conv_light"]
    assert table["seeds"]["conv_light"]["r0c2"]["params"] == env.costs.params.seed_KS[1, 2]
    assert table["gates"]["r0c1"]["params"] == env.costs.params.gate_S[1]
    env.time_inference(known_latency(env, host=math.pi))
    assert env.costs.table(env.layout.blueprint_names, env.layout.slot_names)["host"]["latency"] == math.pi
