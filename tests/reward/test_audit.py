"""Reward-hacking checks: shares of suspicious seeds, and the rank correlation of return and outcome."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from esper.reward.audit import Auditor, rank_correlation
from tests.reward.reward_steps import NAN, D, H, floats, signals_of, state_of

EMPTY = state_of([D, D])


def short(metrics):
    """Return metrics by the names of their tags."""
    return SimpleNamespace(**{tag.removeprefix("audit/"): value for tag, value in metrics.items()})


def audited(*steps, hosts=1):
    """(before, after, accuracy before, accuracy) of one host each."""
    auditor = Auditor()
    for before, after, was, now in steps:
        signals = signals_of(before, after, accuracy_before_N=floats(was), accuracy_N=floats(now))
        auditor.add(signals, {"shaping": floats(1.0), "rent": floats(-3.0)})
    return short(auditor.report(np.zeros(hosts), np.zeros(hosts), {}))


def one(contribution, error=0.0):
    state = state_of([H, D], contribution=[[contribution, 0]])
    state.contribution_error[:] = error
    return state


@pytest.mark.parametrize(
    ("contribution", "error", "now", "leans", "ransom"),
    [
        (6, 0, 30, 0, 0),  # helps
        (6, 0, 11.3, 0, 0),  # 6 of 1.3 gained: not five times
        (6, 0, 11.2, 1, 0),  # five times
        (6, 0, 9.9, 0, 0),  # worse, but hardly
        (6, 0, 9.7, 0, 1),  # cannot do without it, and worse than before
        (0.9, 0, 9.0, 0, 0),  # can do without it
        (6, 4, 9.0, 0, 0),  # cannot be told from noise
        (6, 1, 8.5, 0, 0),  # nor can the loss
        (6, 1, 7.5, 0, 1),
    ],
)
def test_a_single_seed_can_trigger_each_check(contribution, error, now, leans, ransom):
    seen = audited((EMPTY, one(contribution, error), 10, now))
    assert (seen.seed_epochs, seen.attribution_ratio, seen.ransomware) == (1, leans, ransom)


def test_helpful_neighbours_do_not_hide_a_harmful_seed():
    """The host gained 30 since the first seed came, all of it by the second."""
    both = state_of([H, H], contribution=[[8, 31]])
    seen = audited((EMPTY, one(2.0), 10, 20), (one(2.0), both, 20, 40))
    assert (seen.seed_epochs, seen.ransomware) == (3, 1 / 3)


def test_without_seeds_every_check_is_nan():
    seen = audited((EMPTY, EMPTY, 10, 20))
    assert seen.seed_epochs == 0
    assert math.isnan(seen.attribution_ratio)
    assert math.isnan(seen.ransomware)


def test_inactive_seeds_and_rolled_back_hosts_are_not_checked():
    behind = one(6)
    behind.alpha[:] = 0
    assert audited((EMPTY, behind, 10, 5)).seed_epochs == 0
    auditor = Auditor()
    auditor.add(
        signals_of(EMPTY, one(6), accuracy_before_N=floats(10), accuracy_N=floats(NAN), rolled_back_N=np.array([True])), {}
    )
    assert auditor.report(np.zeros(1), np.zeros(1), {})["audit/seed_epochs"] == 0


def test_shaped_ratio_by_hand():
    assert audited((EMPTY, EMPTY, 10, 20), (EMPTY, EMPTY, 10, 20)).shaped_ratio == 0.5
    assert math.isnan(Auditor().report(np.zeros(1), np.zeros(1), {})["audit/shaped_ratio"])


def test_rank_correlation_is_scipys_within_each_mode():
    rng = np.random.default_rng(0)
    paid, outcome = rng.normal(size=12).astype(np.float32), rng.integers(5, size=12).astype(np.float32)
    assert rank_correlation(paid, outcome, {}) == pytest.approx(stats.spearmanr(paid, outcome)[0])
    groups = {"a": slice(0, 8), "b": slice(8, 12)}
    parts = [stats.spearmanr(paid[rows], outcome[rows])[0] for rows in groups.values()]
    assert rank_correlation(paid, outcome, groups) == pytest.approx((8 * parts[0] + 4 * parts[1]) / 12)
    # what one mode pays more than another says nothing
    assert rank_correlation(np.concatenate([paid[:8], paid[8:] + 90]), outcome, groups) == pytest.approx(
        rank_correlation(paid, outcome, groups)
    )


def test_rank_correlation_is_nan_where_undefined():
    assert math.isnan(rank_correlation(floats(1, 1, 1), floats(1, 2, 3), {}))
    assert math.isnan(rank_correlation(floats(1), floats(1), {}))
    assert rank_correlation(floats(1, 2, 3, 4), floats(1, 2, NAN, 3), {}) == pytest.approx(1)
    assert rank_correlation(floats(4, 3, 2, 1), floats(1, 2, 3, 4), {}) == pytest.approx(-1)
