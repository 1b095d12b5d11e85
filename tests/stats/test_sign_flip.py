"""The sign-flip test against scipy, the t test and its own definition."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from esper.stats import sign_flip as module
from esper.stats.sign_flip import sign_flip

NUMBERS = st.floats(-100, 100).map(lambda number: round(number * 1024) / 1024)
"""Numbers whose sums are exact in every order, so that equal sums are equal."""


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@settings(max_examples=12, deadline=None)
@given(arrays(np.float64, st.integers(3, 12), elements=NUMBERS))
def test_exact_p_values_match_scipy(differences: np.ndarray) -> None:
    theirs = stats.permutation_test(
        (differences, np.zeros_like(differences)),
        lambda one, other, axis: np.mean(one - other, axis=axis),
        permutation_type="samples",
        n_resamples=10_000,
    )
    assert sign_flip(differences).p == pytest.approx(theirs.pvalue, abs=1e-12)


def test_sign_flips_of_many_blocks_agree_with_the_t_test() -> None:
    differences = generator(3).standard_normal(40) + 0.3
    test = sign_flip(differences)
    assert test.p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, abs=0.002)
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert (test.interval.low, test.interval.high) == pytest.approx((low, high), abs=0.02)


@settings(max_examples=40, deadline=None)
@given(arrays(np.float64, st.integers(7, 20), elements=NUMBERS), st.floats(-20, 20))
def test_the_interval_holds_what_the_test_does_not_reject(differences: np.ndarray, theta: float) -> None:
    interval = sign_flip(differences).interval
    assert interval.low <= interval.mean <= interval.high
    if min(abs(theta - interval.low), abs(theta - interval.high)) > 1e-3 * np.ptp(differences) > 0:
        rejected = sign_flip(differences - theta).p <= 0.05
        assert rejected == (not interval.low < theta < interval.high)


def test_the_interval_shifts_and_scales_with_its_data() -> None:
    differences = generator(5).exponential(size=12)
    one, other = sign_flip(differences).interval, sign_flip(-3 * differences + 2).interval
    assert (other.low, other.high) == pytest.approx((2 - 3 * one.high, 2 - 3 * one.low))


@settings(max_examples=40, deadline=None)
@given(arrays(np.float64, st.integers(2, 13), elements=NUMBERS))
def test_counts_in_cells_are_an_upper_bound_that_is_close(differences: np.ndarray) -> None:
    exact = sign_flip(differences).p
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ENUMERATED", 0)
        rounded = sign_flip(differences).p
    ties = np.unique(np.abs(differences)).size < len(differences)  # a pattern that just misses may be counted
    assert exact - 1e-12 <= rounded
    assert ties or rounded <= 1.02 * exact + 2.0 ** (2 - len(differences))


@pytest.mark.parametrize("outlier", [30.0, 1e4, 1e6])
def test_one_large_difference_hides_no_small_ones(outlier: float) -> None:
    """As where a run collapses."""
    rest = 1 + 0.1 * generator(1).standard_normal(12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ENUMERATED", 0)
        assert sign_flip(np.append(rest, outlier)).p == pytest.approx(2.0**-12)
        mixed = sign_flip(np.append(rest * np.tile([1, 1, -1], 4), outlier)).p
    assert mixed == pytest.approx(sign_flip(np.append(rest * np.tile([1, 1, -1], 4), outlier)).p, rel=0.02)
    many = np.append(1 + 0.1 * generator(2).standard_normal(19), outlier)
    found = sign_flip(many)
    assert found.p == pytest.approx(2.0**-19)
    assert found.interval.low > 0


@pytest.mark.parametrize("count", [14, 30, 200])
def test_a_large_difference_has_the_smallest_possible_p(count: int) -> None:
    """So that an early look, whose level is far below 1 / 10,000, can decide."""
    test = sign_flip(20 + generator().standard_normal(count), confidence=1 - 1e-6)
    assert test.p == pytest.approx(2.0 ** (1 - count))
    assert (test.interval.low > 0) == (count > 20)


def test_differences_that_are_not_finite_are_refused() -> None:
    for count in (5, 20):
        with pytest.raises(ValueError, match="a test of differences needs finite ones"):
            sign_flip([math.nan] + [1.0] * count)


def test_an_interval_of_few_blocks_has_no_ends() -> None:
    for values in (np.array([1.0]), np.ones(5), np.arange(5.0)):
        interval = sign_flip(values).interval
        assert (interval.low, interval.high) == (-np.inf, np.inf)
    assert np.isfinite(sign_flip(np.arange(6.0)).interval.low)
