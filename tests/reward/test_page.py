"""docs/rewards.md is what the code says."""

from pathlib import Path

import pytest

from esper.reward.modes import MODES
from esper.reward.page import page


def test_the_page_is_up_to_date():
    """Write it anew with: python -m esper.reward.page > docs/rewards.md"""
    assert (Path(__file__).parents[2] / "docs" / "rewards.md").read_text() == page()


@pytest.mark.parametrize("name", list(MODES))
def test_the_page_lists_every_term_of_every_mode(name):
    section = page().split(f"\n## {name}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| `")]
    assert rows == [f"`{key}`" for key in MODES[name].pays]


def test_charges_are_shown_as_such():
    assert "| `rent` | -0.5 | host sizes | `rent` |" in page()
    assert "| `shock` | 0 | host sizes | `shock` |" in page()
