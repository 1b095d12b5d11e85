"""Drift is a factor from the running mean, and a resumed run measures the same."""

import math

import pytest

from esper.telemetry.drift import DRIFTS, LATEST, LEAST, GradientDrift
from esper.telemetry.tags import metric

NORM = "host/gradient_norm"


def test_drifts_are_metrics_of_the_table() -> None:
    assert all(metric(norm) and metric(drift) for norm, drift in DRIFTS.items())


def test_a_halving_counts_as_much_as_a_doubling() -> None:
    for factor in (4.0, 0.25):
        drift = GradientDrift()
        assert [drift.measure({NORM: 3.0}) for _ in range(LEAST)] == [{}] * LEAST
        assert drift.measure({NORM: 3.0 * factor}) == {"host/gradient_drift": pytest.approx(4.0)}


def test_a_new_level_becomes_usual() -> None:
    drift = GradientDrift()
    for _ in range(LATEST):
        drift.measure({NORM: 1.0})
    found = [drift.measure({NORM: 100.0})["host/gradient_drift"] for _ in range(40)]
    assert found == sorted(found, reverse=True)
    assert found[:2] == [pytest.approx(100.0), pytest.approx(100.0**0.9)]
    assert found[-1] < 1.1


@pytest.mark.parametrize("value", [0.0, math.inf, math.nan])
def test_what_has_no_logarithm_is_left_out(value: float) -> None:
    drift = GradientDrift()
    for norm in (1.0, value, 1.0, 1.0, 1.0, 1.0):
        assert drift.measure({NORM: norm}) == {}
    assert drift.measure({NORM: 1.0}) == {"host/gradient_drift": pytest.approx(1.0)}


def test_a_restored_drift_goes_on() -> None:
    norms = [2.0**step for step in range(12)]
    whole, first = GradientDrift(), GradientDrift()
    expected = [whole.measure({NORM: norm}) for norm in norms]
    found = [first.measure({NORM: norm}) for norm in norms[:7]]
    second = GradientDrift()
    second.load_state_dict(first.state_dict())
    assert found + [second.measure({NORM: norm}) for norm in norms[7:]] == expected
