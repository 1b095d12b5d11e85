"""Tables of lifecycle.md: the stages."""

from collections.abc import Iterator

from docs.tables.markdown import lower, table, yes
from esper.cli.help import docs_below
from esper.lifecycle.stages import LIVE, TAKES_PART, Stage


def stages() -> Iterator[str]:
    """Yield the stages with their properties."""
    docs = docs_below(Stage)
    rows = ((lower(stage), docs.get(stage.name, ""), yes(stage in LIVE), yes(stage in TAKES_PART)) for stage in Stage)
    return table(("stage", "meaning", "live", "in the forward pass"), rows)
