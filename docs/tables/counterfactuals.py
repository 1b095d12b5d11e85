"""Tables of counterfactuals.md: the settings of each plan, and what they cost."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from docs.tables.markdown import table
from esper.cli.help import docs_below
from esper.measure.attribution import draw_orders
from esper.measure.plans import Plan, coalitions
from esper.seeding import stream


class PlanCost(NamedTuple):
    """Number of times each part of a host is computed."""

    settings: int
    """Distinct settings, the current one included."""
    segments: tuple[int, ...]
    """Passes through each segment of the host, one more than there are slots."""
    seeds: tuple[int, ...]
    """Passes through the seed of each slot."""


def plan_cost(settings: Iterable[int], inside: int, slots: int) -> PlanCost:
    """Count the passes of one host under the current setting and others, if shared prefixes are computed once.

    Settings that agree in the first s slots enter segment s as one. A seed is computed once for each of those in which it is on.

    Args:
        settings: coalitions of seeds, as bits.
        inside: the seeds whose alpha is above 0, as bits.
        slots: number of slots.
    """
    every = {inside, *settings}
    into = [{coalition & ((1 << slot) - 1) for coalition in every} for slot in range(slots + 1)]
    on = [{coalition & ((1 << slot) - 1) for coalition in every if coalition >> slot & 1} for slot in range(slots)]
    return PlanCost(settings=len(every), segments=tuple(map(len, into)), seeds=tuple(map(len, on)))


def plans() -> Iterator[str]:
    """Yield the settings of each plan."""
    docs = docs_below(Plan)
    return table(("plan", "settings besides the current one"), ((f"`{plan}`", docs[plan.name]) for plan in Plan))


def plan_costs() -> Iterator[str]:
    """Yield the cost of each plan for hosts with 1 to 6 live seeds."""

    def rows() -> Iterator[Sequence[object]]:
        for seeds in (1, 2, 3, 4, 6):
            inside = (1 << seeds) - 1
            orders = draw_orders(inside, 8, stream(0, "page", seeds))
            for plan in Plan:
                cost = plan_cost(coalitions(plan, inside, 0, orders), inside, seeds)
                segments, branches = (f"{'+'.join(map(str, some))} = {sum(some)}" for some in (cost.segments, cost.seeds))
                yield seeds, f"`{plan}`", cost.settings, segments, branches, cost.settings * (seeds + 1)

    return table(("seeds", "plan", "settings", "segments", "seed branches", "segments without sharing"), rows())
