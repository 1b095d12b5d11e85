"""docs/recurrence.md: its snippet runs, and the tests that it names are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "recurrence.md").read_text()
TESTS = {path.name: path.read_text() for path in Path(__file__).parent.glob("test_*.py")}


def test_the_snippet_runs() -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert snippet.count("assert ") == 4
    exec(compile(snippet, "docs/recurrence.md", "exec"), {})


def test_every_named_test_exists() -> None:
    named = set(re.findall(r"\btest_\w+(?!\.py|\w)", PAGE))
    functions = {name for text in TESTS.values() for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}
    assert len(named) > 8
    assert not named - functions
    assert not set(re.findall(r"\btest_\w+\.py", PAGE)) - set(TESTS)
