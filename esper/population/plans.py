"""What may be asked of a counterfactual validation, by name."""

from enum import StrEnum


class Plan(StrEnum):
    """A set of settings of the alphas beside the real one. A live seed is one that takes part and is not yet a fossil."""

    leave_one_out = "leave_one_out"
    """Each seed off, fossils included: what it contributes."""
    solo_on = "solo_on"
    """Each live seed on, the other live seeds off."""
    all_off = "all_off"
    """All live seeds off."""
    pairs = "pairs"
    """Each pair of live seeds on, the other live seeds off."""
    committed = "committed"
    """The host with its fossils alone, each at the alpha it has."""
    factorial = "factorial"
    """Every subset of the live seeds on."""
    shapley = "shapley"
    """Subsets along random orders of the live seeds and their reverses; every subset up to four seeds."""
