"""Plans of counterfactual validation: named sets of settings. docs/counterfactuals.md lists them with their costs."""

# S slots

from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import combinations

from esper.measure.attribution import FULL, members, prefixes, subsets


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
