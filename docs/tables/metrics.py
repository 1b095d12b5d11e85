"""Tables of metrics.md: the metrics of each group, and the placeholders in their names."""

from collections.abc import Iterator

from docs.tables.markdown import table
from esper.telemetry import tags
from esper.telemetry.healthy import HEALTHY


def metric_names() -> Iterator[str]:
    """Yield the names that a placeholder in angle brackets stands for."""
    return (f"* `<{word}>` is one of {', '.join(names)}." for word, names in tags.WORDS.items())


def metrics() -> Iterator[str]:
    """Yield a section for each group of metrics."""
    for group in tags.groups():
        rows = (
            (f"`{row.tag}`", "+" if row.detail else "", row.unit, row.meaning, HEALTHY[row.tag])
            for row in tags.METRICS
            if row.tag.startswith(f"{group}/")
        )
        yield from (f"## {group}", "", *table(("tag", "", "unit", "meaning", "healthy"), rows), "")
