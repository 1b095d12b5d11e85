"""Tables of observation.md: the features of a host and of a slot."""

from collections.abc import Iterator, Sequence

from docs.tables.markdown import table, ticked
from esper.env.observation import Feature, RunScale


def features(some: Sequence[Feature]) -> Iterator[str]:
    """Yield the features of a host or of a slot."""

    def cells(one: Feature) -> tuple[str, ...]:
        known = f"{one.fill:g}, flagged by {ticked(one.indicators)}" if one.indicators else ""
        if not one.unit:
            return f"`{one.name}`", one.meaning, "", "", "0 or 1", known
        scale = str(one.scale) if isinstance(one.scale, RunScale) else f"{one.scale:g}"
        return f"`{one.name}`", one.meaning, one.unit, scale, f"{one.low:g} to {one.high:.3g}", known

    return table(("feature", "meaning", "unit", "scale", "range", "if never measured"), map(cells, some))
