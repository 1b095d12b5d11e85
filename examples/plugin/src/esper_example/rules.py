"""Slots and gates: which slots are used, and when a seed may enter its next stage."""

from dataclasses import dataclass

from esper.lifecycle.gates import GatesConfig
from esper.lifecycle.slots import SlotsConfig


@dataclass(kw_only=True, slots=True)
class LastConfig(SlotsConfig):
    """The last slot of the host only, next to the classifier."""

    def default_slots(self, names):
        return list(names[-1:])


@dataclass(kw_only=True, slots=True)
class ProvenConfig(GatesConfig):
    """Other defaults: seeds are kept only if they contribute at least half a point."""

    min_contribution: float | None = 0.5
