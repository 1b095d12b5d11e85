"""A reward with a price for size in octaves: going from one to two times the host costs as much as from two to four."""

# N hosts

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from esper.reward.modes import RewardConfig
from esper.reward.table import TERMINAL, Pays, Term
from esper.reward.terms import rent


def doublings(signals):
    """Return how often the host has doubled its parameters, on the last step [N]; 0 before."""
    return np.log2(1 + rent(signals, at_end=True))  # without seeds that a rollback in the last step removes


DOUBLINGS = Term(
    name="doublings",
    unit="1",
    sign=-1,
    formula="log2(1 + parameters of all seeds / parameters of the host), at the end",
    make=lambda mode, gamma: doublings,
)


@dataclass(kw_only=True, slots=True)
class DoublingsConfig(RewardConfig):
    """Accuracy of the committed network, minus a price for each doubling of the host."""

    pays: ClassVar[Pays] = {"price": DOUBLINGS, "terminal": TERMINAL}
    price: float = 2.0
    """Points per doubling, at least 0. Higher: smaller networks."""
    terminal: float = 1.0
    """Points at the end per percentage point of accuracy of the committed network, at least 0."""
