"""Damaged files of an experiment: the right numbers, or one sentence. Each of these damages was once a traceback or silent."""

from collections.abc import Iterator

import pytest

from tests.faults.damages import Damage

CELL = "a/block-00"


@pytest.fixture(scope="module", autouse=True)
def no_figures() -> Iterator[None]:
    """Reports without figures, which take most of the time of a report, and on which no number depends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("esper.lab.report.draw", lambda *_: [])
        yield


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("design.json", "folder"),
        (f"{CELL}/metrics.jsonl", "cut"),
        (f"{CELL}/run.json", "types"),
        (f"{CELL}/run.json", "deep"),
        (f"{CELL}/times.jsonl", "empty"),
        (f"{CELL}/scored_000002_2_hosts.json", "deep"),
    ],
)
def test_a_damaged_file_is_one_sentence(file: str, kind: str) -> None:
    assert list(Damage(case="sweep", file=file, kind=kind).faults()) == []
