"""The summary of a run on the console: what was learned, other results, and the commands to type next."""

from dataclasses import dataclass

from esper.telemetry.base import Command, Rows
from esper.telemetry.tags import in_terms_of, unit_of
from esper.telemetry.trend import JUDGED, History

GOOD, BAD, PLAIN, COMMAND, HEADING = "good", "bad", "plain", "command", "heading"
INDENT = 2


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a summary."""

    kind: str
    """`GOOD` for a result that improved, `BAD` for one that got worse, `COMMAND`, `HEADING`, or `PLAIN`."""
    text: str
    indent: int = INDENT
    """Columns by which the lines after the first are indented, where the text is broken."""


def summary_lines(rows: Rows, history: History, score: str) -> list[Line]:
    """Return the lines of the summary. A narrow console breaks each between words, except commands."""
    trends = {in_terms_of(score, JUDGED[tag]): (found.word, found.text(unit_of(tag))) for tag, found in history.trends().items()}
    facts = {name: text for name, text in rows if not isinstance(text, Command)}
    width = INDENT + max(map(len, [*trends, *facts]), default=0) + 2
    kinds = {"rising": GOOD, "falling": BAD, "worse than never growing": BAD}
    lines = [
        Line(kinds.get(word, PLAIN), f"{'':{INDENT}}{name:{width - INDENT}}{text}", width)
        for name, (word, text) in trends.items()
    ]
    lines += [Line(PLAIN, f"{'':{INDENT}}{name:{width - INDENT}}{text}", width) for name, text in facts.items()]
    for name, text in rows:
        if isinstance(text, Command):
            lines += [Line(HEADING, f"{name}:"), Line(COMMAND, f"{'':{INDENT}}{text}")]
    return lines


def summary_line(rows: Rows, history: History, score: str) -> str:
    """Return the summary of one of several runs as one line, without commands: those of the sweep follow."""
    parts = [f"{in_terms_of(score, JUDGED[tag])}, {found.text(unit_of(tag))}" for tag, found in history.trends().items()]
    return "; ".join([*parts, *(f"{name}: {text}" for name, text in rows if not isinstance(text, Command))])
