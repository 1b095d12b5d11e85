"""Verdicts of the watchdog."""

import math

import numpy as np
import pytest

from esper.governor.base import Cause, Governor, GovernorConfig
from esper.governor.health import newborn
from esper.governor.off import NoGovernorConfig
from esper.governor.watchdog import TolerantWatchdogConfig, WatchdogConfig

NAN, INF = math.nan, math.inf


def judge(train, valid, best, **fields):
    train_N, loss_N, best_N = (np.array(values, dtype=np.float32) for values in (train, valid, best))
    governor = WatchdogConfig(**fields).build(chance_loss=math.log(10))
    return governor.judge(governor.start(best_N), train_N, loss_N)


def test_each_host_is_judged_independently():
    verdict = judge([1.0, NAN, 1.0, INF, 1.0], [2.0, 1.0, NAN, 1.0, INF], [1.0] * 5)
    assert verdict.cause_N.tolist() == [Cause.HEALTHY] + [Cause.NONFINITE] * 4
    assert verdict.rollback_N.tolist() == [False, True, True, True, True]
    assert verdict.penalty == 10.0


def test_divergence_requires_both_limits():
    chance = math.log(10)
    losses = [3 * chance - 0.01, 3 * chance + 0.01, 10.0, 15.1, 1e30]
    best = [0.1, 0.1, 5.0, 5.0, 2.0]
    causes = judge([1.0] * 5, losses, best).cause_N.tolist()
    assert causes == [Cause.HEALTHY, Cause.DIVERGENCE, Cause.HEALTHY, Cause.DIVERGENCE, Cause.DIVERGENCE]


def test_the_limits_follow_the_config():
    assert judge([1.0], [5.0], [1.0], chance_multiple=2.0).cause_N[0] == Cause.DIVERGENCE
    assert judge([1.0], [5.0], [1.0], chance_multiple=2.2).cause_N[0] == Cause.HEALTHY
    assert judge([1.0], [8.0], [3.0], best_multiple=2.0).cause_N[0] == Cause.DIVERGENCE
    assert judge([1.0], [8.0], [3.0], best_multiple=3.0).cause_N[0] == Cause.HEALTHY
    assert judge([1.0], [1.0], [1.0], penalty=2.5).penalty == 2.5


def test_the_tolerant_watchdog_takes_a_drift_for_healthy():
    for config, suspect, causes in (
        (WatchdogConfig(patience=1), False, [Cause.DECLINE, Cause.LOBOTOMY, Cause.DIVERGENCE, Cause.DIVERGENCE, Cause.NONFINITE]),
        (WatchdogConfig(), True, [Cause.HEALTHY, Cause.HEALTHY, Cause.DIVERGENCE, Cause.DIVERGENCE, Cause.NONFINITE]),
        (TolerantWatchdogConfig(), False, [Cause.HEALTHY] * 3 + [Cause.DIVERGENCE, Cause.NONFINITE]),
    ):
        governor = config.build(chance_loss=math.log(10))
        loss_N = np.full(5, 0.1, dtype=np.float32)
        health = governor.start(loss_N)
        for _ in range(5):
            health = governor.after(health, governor.judge(health, loss_N, loss_N), loss_N)
        after_N = np.array([2.0, math.log(10), 9.0, 30.0, NAN], dtype=np.float32)
        verdict = governor.judge(health, loss_N, after_N)
        assert verdict.cause_N.tolist() == causes
        assert verdict.suspect_N[:2].tolist() == [suspect] * 2


@pytest.mark.filterwarnings("error")
def test_a_constant_loss_has_no_limit_where_none_is_wanted():
    governor = TolerantWatchdogConfig(least_spread=0.0).build(chance_loss=math.log(10))
    loss_N = np.full(2, 0.5, dtype=np.float32)
    health = governor.start(loss_N)
    for _ in range(4):
        verdict = governor.judge(health, loss_N, loss_N)
        health = governor.after(health, verdict, loss_N)
    assert verdict.cause_N.tolist() == [Cause.HEALTHY] * 2


def test_a_high_training_loss_alone_is_no_divergence():
    assert judge([1e6], [2.0], [1.0]).cause_N[0] == Cause.HEALTHY


def test_without_a_governor_non_finite_hosts_raise_an_error():
    governor = NoGovernorConfig().build(chance_loss=math.log(10))
    fine = np.ones(3, dtype=np.float32)
    health = governor.start(fine)
    assert not governor.judge(health, fine, 1e9 * fine).rollback_N.any()
    sick = np.array([1.0, NAN, INF], dtype=np.float32)
    with pytest.raises(FloatingPointError, match=r"hosts 1, 2 .* governor=off .* start a new run with governor=watchdog"):
        governor.judge(health, sick, fine)
    with pytest.raises(FloatingPointError, match="hosts 1, 2"):
        governor.judge(health, fine, sick)


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("chance_multiple", 1.0, "finite and above 1"),
        ("chance_multiple", NAN, "finite and above 1"),
        ("best_multiple", 0.5, "finite and above 1"),
        ("penalty", -1.0, "finite and at least 0"),
        ("penalty", float("nan"), "finite and at least 0"),
    ],
)
def test_invalid_config_is_refused(field, value, rule):
    with pytest.raises(ValueError, match=rf"governor\.{field} must be {rule}, got {value}"):
        WatchdogConfig(**{field: value})


def test_abstract_governors_name_the_missing_method():
    with pytest.raises(TypeError, match="define build"):
        GovernorConfig().build(chance_loss=1.0)
    with pytest.raises(TypeError, match="define judge"):
        Governor().judge(newborn(np.ones(1, dtype=np.float32), 1), *[np.ones(1, dtype=np.float32)] * 2)
