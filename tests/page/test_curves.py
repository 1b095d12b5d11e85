"""Curves of metrics: what they mark besides the values."""

import re

import pytest

from esper.page.curves import IMITATES, LEFT, RIGHT, WIDTH, curves, short, taught


def records(imitating: int, updates: int = 5) -> list[dict[str, float]]:
    """Return records of a run that imitates a teacher at first; the metric is NaN later, as in a resumed run."""
    return [
        {"update": u, "policy/return": float(u), IMITATES: 1 / u if u <= imitating else float("nan")}
        for u in range(1, updates + 1)
    ]


@pytest.mark.parametrize(("imitating", "share"), [(1, 0.125), (3, 0.625), (5, 1.0)])
def test_the_updates_of_imitation_are_shaded(imitating: int, share: float) -> None:
    found = records(imitating)
    assert taught(found) == imitating
    (chart,) = curves(found, ["policy/return"], "accuracy")
    (width,) = re.findall(r'class="taught" x="\d+" y="\d+" width="([\d.]+)"', chart.svg)
    assert float(width) == pytest.approx(share * (WIDTH - RIGHT - LEFT), abs=0.1)


def test_nothing_is_shaded_without_a_teacher() -> None:
    found = records(0)
    assert taught(found) == 0
    assert [chart.tag for chart in curves(found, ["policy/return", IMITATES], "accuracy")] == ["policy/return"]
    assert "taught" not in curves(found, ["policy/return"], "accuracy")[0].svg


def test_numbers_have_three_digits_and_no_exponent_unless_they_are_tiny() -> None:
    assert [short(value) for value in (0.0, 0.00012, 0.123456, 12.34, 999.4, 999.6, -999.9, 12345.0)] == [
        "0",
        "1.2e-04",
        "0.123",
        "12.3",
        "999",
        "1,000",
        "-1,000",
        "12,345",
    ]
