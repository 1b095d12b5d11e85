"""Paired comparisons of two arms against other libraries and known properties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import DescrStatsW

from esper.stats.paired import (
    MIN_BLOCKS,
    blocks_needed,
    equivalence,
    improvement,
    iqm_interval,
    likely_spread,
    paired_difference,
    t_test_power,
)
from esper.stats.sign_flip import sign_flip

NUMBERS = st.floats(-100, 100).map(lambda number: round(number, 3))


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


PAIRS = st.integers(4, 30).flatmap(lambda n: arrays(np.float64, (2, n), elements=NUMBERS))


@settings(max_examples=30, deadline=None)
@given(PAIRS)
def test_iqm_and_improvement_match_rliable(pair: np.ndarray) -> None:
    rliable = pytest.importorskip("rliable.metrics", reason="the extra oracles is not installed")
    first, second = pair
    assert iqm_interval(first).mean == pytest.approx(rliable.aggregate_iqm(first[:, None]))
    assert improvement(first, second, np.zeros(len(first))) == pytest.approx(
        rliable.probability_of_improvement(first[:, None], second[:, None])
    )


@settings(max_examples=30, deadline=None)
@given(PAIRS)
def test_iqm_and_improvement_match_their_definitions(pair: np.ndarray) -> None:
    first, second = pair
    cut = len(first) // 4
    assert iqm_interval(first).mean == pytest.approx(np.sort(first)[cut : len(first) - cut].mean())
    ahead = np.mean([(one > other) + 0.5 * (one == other) for one in first for other in second])
    assert improvement(first, second, np.zeros(len(first))) == pytest.approx(ahead)


@pytest.mark.slow
@pytest.mark.parametrize("count", [10, 12, 20])
def test_iqm_interval_has_nominal_coverage(count: int) -> None:
    samples = generator(2).standard_t(3, (1000, count))
    covered = np.mean([interval.low <= 0 <= interval.high for interval in map(iqm_interval, samples)])
    assert covered == pytest.approx(0.96, abs=0.02)


def test_differences_without_variance() -> None:
    found = paired_difference(("a", "b"), np.ones(12), np.ones(12), margin=0.5, strata=np.zeros(12))
    assert (found.p, found.p_equivalence, found.spread) == (1, 0, 0)
    assert (found.mean.low, found.mean.high, found.iqm.low, found.improvement) == (0, 0, 0, 0.5)
    differences = paired_difference(("a", "b"), np.full(12, 3.0), np.ones(12), margin=0.5, strata=np.zeros(12))
    assert differences.p == 2 / 2**12
    assert differences.p_equivalence == 1
    assert differences.mean.low == differences.mean.high == 2


@pytest.mark.filterwarnings("error")
def test_equal_differences_but_for_rounding_are_equal() -> None:
    differences = np.full(11, -66.407) + 1e-15 * np.arange(11)
    assert differences.std() > 0
    assert [equivalence(differences, margin) for margin in (66, 67)] == [1.0, 0.0]


def test_equivalence_matches_two_one_sided_t_tests() -> None:
    differences = generator(2).standard_normal(15) * 0.3
    assert equivalence(differences, 0.4) == pytest.approx(DescrStatsW(differences).ttost_mean(-0.4, 0.4)[0], rel=1e-9)
    assert equivalence(differences, 0.1) > 0.05


@pytest.mark.parametrize(("effect", "blocks"), [(1.0, 10), (0.5, 34), (0.25, 128)])
def test_blocks_needed_matches_textbooks(effect: float, blocks: int) -> None:
    assert blocks_needed(1.0, effect) == blocks
    assert blocks_needed(2.0, 2 * effect) == blocks


@pytest.mark.parametrize("ratio", [0.01, 0.05, 0.3, 0.5, 0.9, 1.0, 1.3])
def test_blocks_needed_is_the_smallest_count_with_power(ratio: float) -> None:
    count = blocks_needed(1.0, ratio)
    power = TTestPower().power  # of statsmodels
    assert power(ratio, count, 0.05) >= 0.8
    assert count == MIN_BLOCKS or power(ratio, count - 1, 0.05) < 0.8


@pytest.mark.parametrize("ratio", [3.7, 5.0, 9.99, 10.01, 1e6])
def test_blocks_needed_is_never_below_that_of_a_verdict(ratio: float) -> None:
    assert blocks_needed(1.0, ratio) == blocks_needed(0.0, ratio) == MIN_BLOCKS
    assert blocks_needed(1.0, 1e-4) == pytest.approx((2.8016 / 1e-4) ** 2, rel=1e-3)


@pytest.mark.parametrize("pairs", [3, 6, 28, 66])
def test_blocks_needed_grows_with_the_number_of_pairs(pairs: int) -> None:
    count = blocks_needed(1.0, 0.5, alpha=0.05 / pairs)
    power = TTestPower().power
    assert power(0.5, count, 0.05 / pairs) >= 0.8 > power(0.5, count - 1, 0.05 / pairs)
    least = blocks_needed(1.0, 1e6, alpha=0.05 / pairs)  # can p be small enough for any effect?
    rng = generator()
    assert sign_flip(100 + rng.standard_normal(least)).p < 0.05 / pairs
    assert least == MIN_BLOCKS or sign_flip(100 + rng.standard_normal(least - 1)).p >= 0.05 / pairs


def test_power_is_that_of_statsmodels_and_never_nan() -> None:
    reference, failed = TTestPower().power, 0
    for alpha in (0.05, 0.05 / 6, 1e-3, 1e-5):
        for ratio in (0.02, 0.2, 0.5, 1, 2, 5, 10, 100):
            powers = np.array([t_test_power(ratio, blocks, alpha) for blocks in (5, 10, 12, 24, 80, 200, 2000, 20_000)])
            expected = np.array([reference(ratio, blocks, alpha) for blocks in (5, 10, 12, 24, 80, 200, 2000, 20_000)])
            known = np.isfinite(expected)
            assert powers[known] == pytest.approx(expected[known], abs=5e-6)
            assert (np.diff(powers) >= 0).all(), "more blocks, more power; False for nan"
            failed += (~known).sum()
        assert t_test_power(100, 10, alpha) == pytest.approx(1)
    assert failed, "there are cases that statsmodels cannot compute"
    assert t_test_power(1.0, 10, 0.0) == 0


def test_blocks_needed_gives_the_promised_power(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.stats.sign_flip.HALVINGS", 1)  # the interval is not read
    rng, count = generator(7), blocks_needed(1.0, 0.8)
    found = [sign_flip(rng.standard_normal(count) + 0.8).p < 0.05 for _ in range(400)]
    assert np.mean(found) == pytest.approx(0.8, abs=0.06)


def test_likely_spread_is_a_60_percent_bound() -> None:
    samples = generator(9).standard_normal((4000, 12))
    assert np.mean([likely_spread(sample) > 1 for sample in samples]) == pytest.approx(0.6, abs=0.03)
    assert likely_spread(generator().standard_normal(10_000)) == pytest.approx(1, abs=0.03)


def test_fewer_than_two_blocks_give_no_numbers() -> None:
    one = paired_difference(("a", "b"), [1.0], [2.0], margin=1, strata=[0])
    assert (one.blocks, one.p, one.p_equivalence) == (1, 1, 1)
    assert np.isnan([one.mean.mean, one.iqm.low, one.improvement, one.spread]).all()


def test_improvement_is_the_mean_over_strata() -> None:
    strata = np.array([0, 0, 0, 1])
    first, second = np.array([1.0, 2.0, 3.0, 100.0]), np.array([2.5, 2.5, 2.5, 99.0])
    found = improvement(first, second, strata)
    assert found == pytest.approx((1 / 3 + 1) / 2)
    assert improvement(first, second, np.zeros(4)) != pytest.approx(found)


def test_pairing_cancels_the_variance_between_blocks() -> None:
    rng = generator(8)
    block = 10 * rng.standard_normal(12)
    one, other = block + rng.standard_normal(12) + 2, block + rng.standard_normal(12)
    found = paired_difference(("a", "b"), one, other, margin=1, strata=np.zeros(12))
    low, high = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    assert found.mean.half_width < (high - low) / 8
    assert found.p < 0.01
