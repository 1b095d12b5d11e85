"""Tables of lifecycle.md: the stages."""

from collections.abc import Iterator

from docs.tables.markdown import lower, member_docs, table, yes
from esper.lifecycle.stages import LIVE, TAKES_PART, Stage


def stages() -> Iterator[str]:
    """Yield the stages with their properties."""
    docs = member_docs(Stage)
    rows = ((lower(stage), docs.get(stage.name, ""), yes(stage in LIVE), yes(stage in TAKES_PART)) for stage in Stage)
    return table(("stage", "meaning", "live", "computed"), rows)
