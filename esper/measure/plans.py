"""What may be asked of a counterfactual validation, by name, and what it costs.

`python -m esper.measure.plans > docs/counterfactuals.md` writes the page anew.
"""

# S slots

import ast
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from itertools import combinations, pairwise

from esper.measure.attribution import FULL, draw_orders, members, prefixes, subsets
from esper.seeding import stream


class Plan(StrEnum):
    """A set of settings of the alphas beside the real one. Which seeds are live is said in docs/lifecycle.md."""

    leave_one_out = "leave_one_out"
    """Each seed off, fossils included: what it contributes."""
    solo_on = "solo_on"
    """Each live seed on, the other live seeds off; and all of them off, to compare with."""
    all_off = "all_off"
    """All live seeds off."""
    pairs = "pairs"
    """Each pair of live seeds on, the other live seeds off; and `solo_on` with it, as interactions ask for."""
    committed = "committed"
    """The host with its fossils alone, each at the alpha it has: the same setting as `all_off`."""
    factorial = "factorial"
    """Every subset of the seeds on, fossils among them."""
    shapley = "shapley"
    """Subsets along random orders of the seeds and their reverses, fossils among them; every subset up to four seeds."""


def coalitions(plan: Plan, inside: int, fossils: int, orders: Iterable[Sequence[int]] = ()) -> list[int]:
    """The settings of a plan for one host, as bits: bit s is on where the seed of slot s is.

    Args:
        inside: the seeds that are in, at an alpha above 0.
        fossils: those of them that are kept for good.
        orders: for `shapley` above `FULL` seeds, orders of the slots.
    """
    live = members(inside & ~fossils)
    match plan:
        case Plan.leave_one_out:
            return [inside & ~(1 << slot) for slot in members(inside)]
        case Plan.all_off | Plan.committed:
            return [fossils]
        case Plan.solo_on:
            return [fossils, *(fossils | 1 << slot for slot in live)]
        case Plan.pairs:
            pairs = [fossils | 1 << a | 1 << b for a, b in combinations(live, 2)]
            return [*coalitions(Plan.solo_on, inside, fossils), *pairs]
        case Plan.shapley if inside.bit_count() > FULL:
            return [prefix for order in orders for prefix in prefixes(order)]
        case Plan.factorial | Plan.shapley:
            return subsets(inside)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """How often each part of one host is computed."""

    settings: int
    """Distinct settings, the real one among them."""
    segments: tuple[int, ...]
    """Of each segment, one more than there are slots."""
    seeds: tuple[int, ...]
    """Of the seed of each slot."""


def cost(asked: Iterable[int], inside: int, slots: int) -> Cost:
    """What the real setting and those asked for cost one host when all that they share is computed once.

    Settings that agree in the first s slots enter segment s as one. A seed is computed once for each of those that it is on in.

    Args:
        asked: coalitions.
        inside: the seeds that are in.
        slots: S.
    """
    every = {inside, *asked}
    into = [{coalition & ((1 << slot) - 1) for coalition in every} for slot in range(slots + 1)]
    on = [{coalition & ((1 << slot) - 1) for coalition in every if coalition >> slot & 1} for slot in range(slots)]
    return Cost(settings=len(every), segments=tuple(map(len, into)), seeds=tuple(map(len, on)))


# ---- docs/counterfactuals.md

_ABOUT = """\
Generated from `esper/measure/plans.py` by `python -m esper.measure.plans > docs/counterfactuals.md`; do not edit by hand.

After each host epoch every host is measured as it is, and with each of its seeds off: the difference is what that seed
contributes. `counterfactuals.each_step` and `counterfactuals.at_end` ask for more plans, and a reward may need some. Every plan
uses the alphas that the seeds have, on the same validation samples, so that effects come with an error bar that knows how far the
settings agree. Nothing is changed by it, the statistics of batch norm included.

A seed is *on* at the alpha it has, and *off* at 0. Which seeds are live is said in [lifecycle.md](lifecycle.md); one that is at
alpha 0 anyhow, newborn or behind its host, is off in every setting and makes none of its own.

All settings are measured in one forward in which each thing is computed once: settings of a host that agree in the first slots
share all that lies before they part. Hosts do not pay for each other. The results are
those of one forward for each setting, up to float rounding."""


def member_docs(kind: type[Enum]) -> dict[str, str]:
    """The string under each member of an enum, as one line each."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for here, below in pairwise(body.body):
        if isinstance(here, ast.Assign) and isinstance(here.targets[0], ast.Name) and isinstance(below, ast.Expr):
            assert isinstance(below.value, ast.Constant)
            docs[here.targets[0].id] = " ".join(str(below.value.value).split())
    return docs


def page() -> str:
    """docs/counterfactuals.md."""
    docs = member_docs(Plan)
    lines = ["# Counterfactuals", "", _ABOUT, "", "## Plans", "", "| plan | settings beside the real one |", "|---|---|"]
    lines += [f"| `{plan}` | {docs[plan.name]} |" for plan in Plan]
    lines += [
        "",
        "## Costs",
        "",
        "How often each part of a host is computed, for a host with as many slots as seeds, none of them a fossil. Segments are",
        "what lies before, between and after the slots. One at a time, every segment is computed for each setting. `shapley`",
        f"above {FULL} seeds is for 8 pairs of orders (`counterfactuals.orders`), and depends a little on which are drawn.",
        "",
        "| seeds | plan | settings | segments | seeds' branches | segments one at a time |",
        "|---|---|---|---|---|---|",
    ]
    for seeds in (1, 2, 3, 4, 6):
        inside = (1 << seeds) - 1
        orders = draw_orders(inside, 8, stream(0, "page", seeds))
        for plan in Plan:
            one = cost(coalitions(plan, inside, 0, orders), inside, seeds)
            segments, branches = (f"{'+'.join(map(str, some))} = {sum(some)}" for some in (one.segments, one.seeds))
            lines.append(f"| {seeds} | `{plan}` | {one.settings} | {segments} | {branches} | {one.settings * (seeds + 1)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
