"""Whatever strikes a run, resuming it gives the numbers of a run that nothing struck."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.faults.injector import FAULTS
from tests.faults.trial import count, numbers, trial

TRIALS = 1
"""Trials of each case and fault here; `python -m tests.faults` runs as many as asked."""


@pytest.fixture(scope="module", params=["window", "diverging"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], dict[str, int]]:
    folder = tmp_path_factory.mktemp(request.param)
    operations = {operation for operation, _ in FAULTS.values()}
    counts = {operation: count(request.param, operation, folder / operation) for operation in operations}
    expected = [numbers(folder / operation) for operation in operations]
    assert all(one == expected[0] for one in expected)
    return request.param, expected[0], counts


@pytest.mark.parametrize("fault", FAULTS)
def test_a_disturbed_run_ends_with_the_numbers_of_a_whole_one(
    whole: tuple[str, dict[str, Any], dict[str, int]], fault: str, tmp_path: Path
) -> None:
    case, expected, counts = whole
    most = counts[FAULTS[fault][0]]
    if not most:
        pytest.skip(f"{case} has no such operation")
    places = random.Random(f"{case} {fault}").sample(range(1, most + 1), min(TRIALS, most))
    outcomes = {place: trial(case, fault, place, tmp_path / str(place), expected) for place in places}
    assert all(outcome.struck for outcome in outcomes.values())
    assert {place: outcome.problem for place, outcome in outcomes.items() if outcome.problem} == {}
