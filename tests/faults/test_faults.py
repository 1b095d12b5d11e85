"""Whatever strikes a run, a sweep or a comparison, starting it again gives the numbers of one that nothing struck.

A few trials of each case; `python -m tests.faults` runs as many as asked.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.injector import FAULTS
from tests.faults.nonfinite import Nan
from tests.faults.trial import Reference, reference, trial

OPERATIONS = {"window": ("line", "disk", "step"), "growth": ("line", "disk", "epoch"), "compare": ("line",)}
"""Classes of operations at which faults strike, by case. `workers` takes as long as all these, and is left to the command."""


@pytest.fixture(scope="module", autouse=True)
def no_figures() -> Iterator[None]:
    """Reports without figures, which take most of the time of a report, and on which no number depends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("esper.lab.report.draw", lambda *_: [])
        yield


@pytest.fixture(scope="module", params=OPERATIONS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Reference]:
    case = request.param
    return case, reference(case, tmp_path_factory.mktemp(case), OPERATIONS[case])


@pytest.mark.slow
def test_a_disturbed_case_ends_with_the_numbers_of_a_whole_one(whole: tuple[str, Reference], tmp_path: Path) -> None:
    case, expected = whole
    generator = random.Random(case)
    able = [fault for fault, (operation, _) in FAULTS.items() if operation in OPERATIONS[case]]
    faults = [(fault, generator.randint(1, expected.counts[FAULTS[fault][0]] // 6)) for fault in able]
    outcome = trial(case, faults, tmp_path / "run", expected)
    assert outcome.problem == ""
    assert len(outcome.struck) >= len(faults) - 1  # a full disk can pass unnoticed, as where a file is cut that is empty


@pytest.mark.slow
@pytest.mark.parametrize("whole", ["growth"], indirect=True)
@pytest.mark.parametrize("nan", [Nan(1, 1, host=2), Nan(1, 1, host=None)], ids=str)
def test_a_nan_leaves_other_hosts_as_they_were_and_resumed_runs_meet_it_again(
    nan: Nan, whole: tuple[str, Reference], tmp_path: Path
) -> None:
    case, expected = whole
    outcome = trial(case, [("kill", expected.counts["line"] // 2), ("kill_disk", 20)], tmp_path / "run", expected, nan)
    assert outcome.problem == ""
    assert [struck.partition("@")[0] for struck in outcome.struck] == [nan.name, "kill", "kill_disk"]
