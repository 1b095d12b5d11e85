"""Which runs count as collapsed, and how often arms collapse."""

import numpy as np
import pytest
from scipy import stats

from esper.stats.collapse import CollapseRate, collapsed, collapsed_pair, irregular

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


def paired_runs(seed: int, *, hard: int = 0, count: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Return the runs of two equal arms, of which the first `hard` blocks lower both by 12 standard deviations."""
    rng = np.random.default_rng(seed)
    block = rng.standard_normal(count) - 12 * (np.arange(count) < hard)
    one, other = block + rng.standard_normal((2, count))
    return one, other


@pytest.mark.parametrize(("hard", "most"), [(1, 9), (3, 30)])
def test_runs_of_hard_blocks_have_not_collapsed(hard: int, most: int) -> None:
    alone = pairs = 0
    for seed in range(300):
        one, other = paired_runs(seed, hard=hard)
        alone += bool((collapsed(one, np.zeros(12), margin=0.5) & collapsed(other, np.zeros(12), margin=0.5)).any())
        pairs += any(down.any() for down in collapsed_pair(one, other, np.zeros(12), margin=0.5))
    assert alone > 250, "by their arm alone, they would count as collapsed"
    assert pairs <= most, "of 300 experiments"


@pytest.mark.parametrize("hard", [0, 1])
@pytest.mark.parametrize("arm", [0, 1])
def test_a_collapse_of_one_arm_is_found_beside_hard_blocks(hard: int, arm: int) -> None:
    found = 0
    for seed in range(300):
        runs = paired_runs(seed, hard=hard)
        runs[arm][[5, 8]] -= 20
        down = collapsed_pair(*runs, np.zeros(12), margin=0.5)
        found += np.flatnonzero(down[arm]).tolist() == [5, 8] and not down[1 - arm].any()
    assert found > 280


def test_a_control_in_the_two_hardest_blocks_has_not_collapsed() -> None:
    shaped = [72.29, 67.34, 71.49, 69.39, 70.08, 70.37, 71.40, 71.88, 75.47, 72.34]
    control = [73.90, 71.40, 74.35, 66.39, 67.05, 71.39, 72.27, 74.35, 74.13, 74.05]
    assert np.flatnonzero(collapsed(control, np.zeros(10), margin=1)).tolist() == [3, 4], "low for their arm"
    assert not np.any(collapsed_pair(shaped, control, np.zeros(10), margin=1))


def test_a_low_run_beside_a_missing_one_is_judged_by_its_arm() -> None:
    one, other = paired_runs(0)
    one[4], other[4] = -60, np.nan
    down = collapsed_pair(one, other, np.zeros(12), margin=0.5)
    assert np.flatnonzero(down[0]).tolist() == [4]
    assert not down[1].any()


def test_blocks_are_judged_within_their_stratum() -> None:
    one, other = paired_runs(0, count=24)
    strata = np.arange(24) % 2
    one, other = one + 30 * strata, other + 60 * strata
    other[3] -= 40
    down = collapsed_pair(one, other, strata, margin=0.5)
    assert not down[0].any()
    assert np.flatnonzero(down[1]).tolist() == [3]


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
    assert some.at_most == pytest.approx(stats.beta.ppf(0.95, 4, 9))
    assert CollapseRate(arm="a", collapsed=0, runs=0).at_most == 1
    assert CollapseRate(arm="a", collapsed=2, runs=9, blocks=(3, 4)).where == "blocks 3, 4"
