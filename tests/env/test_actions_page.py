"""docs/actions.md is what the code says."""

from pathlib import Path

import pytest

from esper.env.actions import FREE, RELEVANT, VALUES, Head, HeadsConfig, Op
from esper.env.actions_page import DOES, MEANS, page


def row(start):
    """The cells of the one row that begins so."""
    (line,) = [line for line in page().splitlines() if line.startswith(f"| {start} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_page_is_up_to_date():
    """Write it anew with: python -m esper.env.actions_page > docs/actions.md"""
    assert (Path(__file__).parents[2] / "docs" / "actions.md").read_text() == page()


def test_it_lacks_no_operation_and_no_head():
    assert list(DOES) == list(Op)
    assert list(MEANS) == list(Head)
    assert max(map(len, page().splitlines())) < 400


@pytest.mark.parametrize("op", list(Op), ids=lambda op: op.name)
def test_arguments_are_those_that_matter(op):
    taken = [head for head in Head if RELEVANT[op, head]][1:]
    assert row(op.name)[2] == ", ".join(f"`{head.name.lower()}`" for head in taken)


@pytest.mark.parametrize("head", list(VALUES), ids=lambda head: head.name)
def test_every_value_has_a_meaning_and_the_one_it_is_held_at_is_told(head):
    name = head.name.lower()
    assert all(row(f"`{name}` | `{value}`")[2] for value in VALUES[head])
    assert row(f"`{name}`" + " | " + MEANS[head])[3] == f"`{getattr(HeadsConfig(), name)}`"
    assert head not in HeadsConfig(**{"alpha_speed": FREE, name: FREE}).pinned
