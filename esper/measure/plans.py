"""Plans of counterfactual validation: named sets of settings. docs/counterfactuals.md lists them with their costs."""

# S slots

from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import combinations

from esper.measure.attribution import FULL, members, prefixes, subsets


class Plan(StrEnum):
    """A set of alpha settings measured besides the current one. docs/lifecycle.md defines which seeds are live."""

    leave_one_out = "leave_one_out"
    """Each seed off in turn, fossils included: its contribution."""
    solo_on = "solo_on"
    """Each live seed on with the other live seeds off, and all of them off as the baseline."""
    all_off = "all_off"
    """All live seeds off."""
    pairs = "pairs"
    """Each pair of live seeds on with the other live seeds off, plus `solo_on`, which interactions need."""
    committed = "committed"
    """The host with its fossils only, each at its current alpha: the same setting as `all_off`."""
    factorial = "factorial"
    """Every subset of the seeds on, fossils included."""
    shapley = "shapley"
    """Subsets along random orders of the seeds and their reverses, fossils included; every subset up to four seeds."""


def coalitions(plan: Plan, inside: int, fossils: int, orders: Iterable[Sequence[int]] = ()) -> list[int]:
    """Return the settings of a plan for one host as bit masks: bit s is set where the seed of slot s is on.

    Args:
        inside: seeds with alpha above 0.
        fossils: fossils among them.
        orders: orders of the slots, for `shapley` with more than `FULL` seeds.
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
