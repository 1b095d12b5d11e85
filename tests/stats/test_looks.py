"""Levels of planned looks against published tables and simulated experiments."""

import numpy as np
import pytest
from scipy import stats

from esper.stats.looks import levels, repeated_p


@pytest.mark.parametrize(
    "bounds",
    [
        (1.9600,),
        (2.9626, 1.9686),
        (3.7103, 2.5114, 1.9930),
        (4.3326, 2.9631, 2.3590, 2.0141),
        (4.8769, 3.3569, 2.6803, 2.2898, 2.0310),
    ],
)
def test_boundaries_match_the_tables_of_lan_and_demets(bounds: tuple[float, ...]) -> None:
    """Two-sided level of 5 %, equal steps, O'Brien-Fleming-type spending: Reboussin, DeMets, Kim, Lan (2000)."""
    found = levels(tuple(range(1, len(bounds) + 1)), 0.025)
    assert stats.norm.isf(found) == pytest.approx(bounds, abs=2e-4)


@pytest.mark.parametrize("looks", [(10, 20, 30), (12, 13, 40), tuple(range(10, 31))])
def test_all_looks_together_reject_with_the_overall_level(looks: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    sums = rng.standard_normal((100_000, looks[-1])).cumsum(axis=1)[:, np.array(looks) - 1]
    p = stats.norm.sf(sums / np.sqrt(looks))
    assert (p <= levels(looks, 0.05)).any(axis=1).mean() == pytest.approx(0.05, abs=0.002)
    repeated = np.array([[repeated_p(one, looks, look) for look, one in enumerate(row)] for row in p[:3000]])
    for alpha in (0.01, 0.05, 0.3):
        assert (repeated.min(axis=1) <= alpha).mean() == pytest.approx(alpha, abs=4 * np.sqrt(alpha * (1 - alpha) / 3000))


@pytest.mark.parametrize("alpha", [1e-6, 0.005, 0.025, 0.2, 0.7])
def test_a_repeated_p_value_is_the_level_at_which_its_look_rejects(alpha: float) -> None:
    looks = (10, 24, 30)
    assert [repeated_p(p, looks, look) for look, p in enumerate(levels(looks, alpha))] == pytest.approx([alpha] * 3, rel=1e-3)


def test_repeated_p_values_grow_with_p_and_end_at_1() -> None:
    values = [repeated_p(p, (10, 20, 30), 1) for p in np.geomspace(1e-12, 1, 400)]
    assert (np.diff(values) >= 0).all()
    assert values[0] > 0
    assert values[-1] == 1


def test_the_first_of_two_looks_may_be_far_from_the_last() -> None:
    assert repeated_p(1e-4, (10, 400), 0) > repeated_p(1e-4, (10, 40), 0)


def test_a_single_look_changes_nothing() -> None:
    assert levels((12,), 0.05) == (0.05,)
    assert repeated_p(0.0123, (12,), 0) == 0.0123
