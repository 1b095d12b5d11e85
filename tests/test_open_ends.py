"""The README's table of other people's software is that of the recorded results, and these are of the examples that exist."""

from pathlib import Path

from docs.tables import open_ends
from docs.tables.markdown import filled
from esper.evaluation.exported import FORMATS
from tests.outside.example import PARTS

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_table_is_that_of_the_results() -> None:
    text = open_ends.README.read_text()
    assert filled(text, open_ends.TABLES) == text, "run python docs/open_ends.py"
    assert text.count("<!-- generated: works_with -->") == 1


def test_the_results_are_of_all_examples_and_all_work() -> None:
    found = open_ends.json.loads(open_ends.RECORD.read_text())
    assert {kind: set(works) for kind, works in found.items()} == {
        "drivers": {path.stem for path in EXAMPLES.glob("*.py")},
        "training loops": {path.stem for path in (EXAMPLES / "grow").glob("*.py")},
        "exports": set(FORMATS),
        "trackers": {path.stem.removesuffix("_runs") for path in (EXAMPLES / "trackers").glob("*.py")},
        "launchers": {path.stem for path in (EXAMPLES / "launchers").glob("*.sh")},
        "outside parts": set(PARTS),
    }
    assert all(one for works in found.values() for one in works.values())
