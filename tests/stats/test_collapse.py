"""Which runs count as collapsed, and how often arms collapse."""

import numpy as np
import pytest
from scipy import stats

from esper.stats.collapse import CollapseRate, collapse_p, collapsed, irregular

ONE = np.zeros(20)


def runs(count: int = 20, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count)


@pytest.mark.parametrize("share", [0, 1, 4, 8])
def test_deep_collapse_is_found_in_up_to_two_runs_of_five(share: int) -> None:
    values = runs() - 12 * (np.arange(20) < share)
    assert (collapsed(values, ONE, margin=0.5) == (np.arange(20) < share)).all()


def test_normal_runs_seldom_count_as_collapsed() -> None:
    found = [collapsed(runs(12, seed), np.zeros(12), margin=0.1).any() for seed in range(1000)]
    assert np.mean(found) < 0.06


@pytest.mark.parametrize("count", [3, 9, 10])
def test_few_runs_show_no_collapse(count: int) -> None:
    values = np.append(runs(11), np.nan)
    values[0] -= 50
    values[count:-1] = np.nan
    assert collapsed(values, np.zeros(12), margin=0.1).sum() == (count == 10)


def test_a_deviation_within_the_margin_is_no_collapse() -> None:
    values = np.array([80.0] * 11 + [79.2])
    assert collapsed(values, np.zeros(12), margin=0.5).sum() == 1
    assert not collapsed(values, np.zeros(12), margin=1).any()


def test_runs_are_compared_within_their_stratum() -> None:
    strata = np.arange(20) % 2
    values = runs() + 50 * strata
    assert not collapsed(values, strata, margin=0.5).any()
    values[3] -= 30
    assert np.flatnonzero(collapsed(values, strata, margin=0.5)).tolist() == [3]


def test_missing_runs_have_not_collapsed() -> None:
    values = runs()
    values[[2, 5]] = -20, np.nan
    assert np.flatnonzero(collapsed(values, ONE, margin=0.5)).tolist() == [2]
    assert not collapsed([np.nan] * 3, [0] * 3, margin=0.5).any()


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("share", [1, 4, 7, 10])
def test_outliers_and_two_groups_are_irregular(share: int, sign: int) -> None:
    values = runs() + 6 * sign * (np.arange(20) < share)
    assert irregular(values, ONE, margin=0.5)
    assert irregular(np.append(values, np.nan), np.zeros(21), margin=0.5)
    assert not irregular(values, ONE, margin=30)


def test_normal_differences_are_seldom_irregular() -> None:
    strata = np.arange(20) % 2
    found = [irregular(runs(seed=seed) + 9 * strata, strata, margin=0.1) for seed in range(1000)]
    assert 0.03 < np.mean(found) < 0.07
    assert not irregular([5.0, np.nan, -5.0], np.zeros(3), margin=0.1)  # two differences show nothing


def test_rates_are_exact() -> None:
    none, some = CollapseRate(arm="a", collapsed=0, runs=12), CollapseRate(arm="b", collapsed=3, runs=12)
    assert none.at_most == pytest.approx(1 - 0.05 ** (1 / 12))
    assert str(none) == "a 0 of 12 (at most 22 %)"
    assert (some.rate.mean, some.rate.low) == pytest.approx((0.25, stats.beta.ppf(0.025, 3, 10)))
    assert some.rate.high == pytest.approx(stats.beta.ppf(0.975, 4, 9))
    assert np.isnan(CollapseRate(arm="a", collapsed=0, runs=0).rate.mean)


def test_rates_of_two_arms_are_compared_block_by_block() -> None:
    first, second = np.arange(12) < 8, np.arange(12) < 2
    assert collapse_p(first, second) == pytest.approx(2 / 2**6)  # six blocks in which only the first arm collapsed
    assert collapse_p(first, first) == 1
