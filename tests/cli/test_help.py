"""The help text of a command."""

import pytest

from esper import compare
from esper.cli.help import USAGE, groups, help_text
from esper.cli.keyvalue import help_of


def test_help_shows_every_group_and_the_keys_of_every_run() -> None:
    text = help_text("About.")
    for group, options in groups().items():
        assert f"\n  {group}" in text
        assert all(option in text for option in options)
    assert all(f"\n  {key}" in text for key in ("seed=0", "updates=50", "resume=null", "plugins"))
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("width", [50, 80])
def test_help_fits_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    commands = [line for line in USAGE.splitlines() if "python -m" in line]
    for text in (help_text(" ".join(["About."] * 30)), help_of(compare.__doc__, compare.CompareConfig())):
        long = [line for line in text.splitlines() if len(line) > width]
        assert all("python -m" in line or "=" in line for line in long), "a command is copied, and is not broken"
    assert all(" ".join(line.split()[:3]) in help_text("") for line in commands)
