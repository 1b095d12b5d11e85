"""Intervals against scipy's own, and against the share of repetitions that they promise."""

import numpy as np
import pytest
from scipy import stats

from esper.stats.intervals import Interval, mean_interval


def test_it_is_scipys_interval():
    sample = np.random.default_rng(0).normal(3, 2, 17)
    low, high = stats.t.interval(0.95, 16, loc=sample.mean(), scale=stats.sem(sample))
    interval = mean_interval(sample)
    assert (interval.mean, interval.low, interval.high) == pytest.approx((sample.mean(), low, high))
    assert interval.half_width == pytest.approx((high - low) / 2)


def test_it_covers_the_true_mean_as_often_as_it_says():
    rng = np.random.default_rng(1)
    intervals = [mean_interval(rng.normal(1, 1, 8)) for _ in range(1000)]
    assert np.mean([interval.low <= 1 <= interval.high for interval in intervals]) == pytest.approx(0.95, abs=0.02)


def test_one_value_says_nothing_of_the_spread():
    assert mean_interval([4.0]).half_width == np.inf


@pytest.mark.parametrize(("mean", "text"), [(13.94, "+13.9 ± 2.5"), (-0.06, "-0.1 ± 2.5"), (-0.04, "0.0 ± 2.5")])
def test_a_difference_has_a_sign_unless_it_rounds_to_zero(mean, text):
    assert Interval(mean, mean - 2.5, mean + 2.5).signed == text


@pytest.mark.parametrize("sample", [[], [1.0, np.nan], [np.inf], [[1.0], [2.0]]])
def test_what_has_no_interval_is_refused(sample):
    with pytest.raises(ValueError, match="at least one value, and finite"):
        mean_interval(sample)
