"""Markdown tables, and texts for their cells."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum

MARKED = re.compile(r"<!-- generated: (\S+) -->\n.*?<!-- end -->", re.DOTALL)
"""A table within a text, between marks of which the first has its name."""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield the lines of a Markdown table; bars within cells are escaped."""
    yield _row(head)
    yield "|" + "---|" * len(head)
    yield from map(_row, rows)


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(str(cell).strip().replace("|", "\\|") for cell in cells) + " |"


def filled(text: str, tables: Mapping[str, Callable[[], Iterator[str]]]) -> str:
    """Return a text with its tables rewritten."""

    def fill(match: re.Match[str]) -> str:
        body = "\n".join(tables[match[1]]()).strip()
        return f"<!-- generated: {match[1]} -->\n\n{body}\n\n<!-- end -->"

    return MARKED.sub(fill, text)


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
