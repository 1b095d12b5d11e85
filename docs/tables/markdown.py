"""Markdown tables, and texts for their cells."""

import ast
import inspect
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import pairwise


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield the lines of a Markdown table; bars within cells are escaped."""
    yield _row(head)
    yield "|" + "---|" * len(head)
    yield from map(_row, rows)


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(str(cell).strip().replace("|", "\\|") for cell in cells) + " |"


def ticked(names: Iterable[object]) -> str:
    """Return names in backticks, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


def lower(member: Enum) -> str:
    """Return the name of a member in lower case."""
    return member.name.lower()


def yes(fact: bool) -> str:
    """Return yes or no."""
    return "yes" if fact else "no"


def class_doc(node: type) -> str:
    """Return the docstring of a class as one line."""
    return " ".join((node.__doc__ or "").split())


def member_docs(kind: type[Enum]) -> dict[str, str]:
    """Return the string under each member of an enum, as one line each; members without one are left out."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        here.targets[0].id: " ".join(str(below.value.value).split())
        for here, below in pairwise(body.body)
        if isinstance(here, ast.Assign) and isinstance(here.targets[0], ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    }
