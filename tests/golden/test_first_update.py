"""The first update of small runs, compared with committed numbers within tolerances for other processors.

Bits differ between kinds of processor, so bits are compared between two trees on one machine only: `python -m tests.golden`.
`python tests/golden/test_first_update.py` rewrites the numbers after a change that is meant to change them.
"""

import json
import math
import tempfile
from pathlib import Path

import pytest

from esper.cli.overrides import check
from esper.telemetry.jsonl import read_records
from esper.training.trainer import Trainer

FILE = Path(__file__).with_name("first_update.json")
CASES = {
    "ppo": "hosts=8 steps=10 updates=1 agent.minibatches=2",
    "schedule": "hosts=4 steps=12 updates=1 agent=schedule agent.blueprint=conv_heavy agent.slot=1",
    "all_slots": "hosts=4 steps=12 updates=1 agent=random slots=all reward=basic_plus",
    "digits_mlp": "hosts=4 steps=8 updates=1 agent=random task=digits_mlp blueprint=[norm,lora,mlp_small]",
    "sandbox": "env=sandbox hosts=16 steps=8 updates=1",
}
TOLERANCE = {"host/accuracy": 6.0, "host/committed_accuracy": 6.0, "host/loss": 0.15, "policy/return": 6.0, "policy/kl": 0.05}
"""Largest difference, by tag: about twice the largest between two kinds of processor. Counts must be equal."""
COUNTS = ("host/seeds_germinated", "host/seeds_fossilized", "host/training_flops", "governor/rollbacks_nonfinite")


def first_update(overrides: str, folder: Path) -> dict[str, float]:
    """Return metrics of the first update of a run."""
    Trainer(check([*overrides.split(), "telemetry=quiet"]), folder).run()
    record = read_records(folder / "metrics.jsonl")[0]
    return {tag: record[tag] for tag in (*TOLERANCE, *COUNTS) if tag in record}


@pytest.mark.parametrize("name", CASES)
def test_first_update_equals_the_committed_numbers(name: str, tmp_path: Path) -> None:
    expected, found = json.loads(FILE.read_text())[name], first_update(CASES[name], tmp_path)
    assert found.keys() == expected.keys()
    for tag, value in found.items():
        assert math.isclose(value, expected[tag], rel_tol=1e-6, abs_tol=TOLERANCE.get(tag, 0.0)), tag


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        numbers = {name: first_update(overrides, Path(place, name)) for name, overrides in CASES.items()}
    FILE.write_text(json.dumps(numbers, indent=1) + "\n")
