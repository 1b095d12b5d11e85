"""Damaged files of an experiment: the right numbers, or one sentence. Each of these damages was once a traceback or silent."""

import pytest

from tests.faults.damages import Damage

CELL = "a/block-00"


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("design.json", "folder"),
        (f"{CELL}/run.json", "types"),
        (f"{CELL}/run.json", "deep"),
        (f"{CELL}/metrics.jsonl", "cut"),
        (f"{CELL}/times.jsonl", "empty"),
        (f"{CELL}/scored_000002_2_hosts.json", "deep"),
    ],
)
def test_a_damaged_file_is_one_sentence(file: str, kind: str) -> None:
    assert list(Damage(case="sweep", file=file, kind=kind).faults()) == []
