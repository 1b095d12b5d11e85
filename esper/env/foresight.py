"""Features that tell the timetable of a host, for oracles: what happens in the coming epoch, and for how long."""

# T steps, N hosts, E kinds of events

from collections.abc import Iterator, Sequence

import numpy as np

from esper.env.observation import HOST_FEATURES, Feature, FeatureTable, slot_table
from esper.lifecycle.stages import FloatArray
from esper.task.events import CLASSES, RATES, Event, change

MOST_MOVES = 10
"""Arrivals, or departures, of classes that the features can count."""


def foresight_names(kinds: Sequence[str]) -> list[str]:
    """Return the names of the features, in the order of their columns."""
    return [f"{what}_{kind}" for what in ("event", "event_ahead") for kind in kinds]


def foresight(timetables: Sequence[Sequence[Event]], kinds: Sequence[str], steps: int) -> FloatArray:
    """Return the features of all hosts at every step `[T + 1, N, 2 E]`; other kinds of events are left out.

    The first E are the strength of each kind in the coming epoch, the others its sum over the epochs that are left, as a share of
    the episode. Drifts replace each other, and so do learning rates, so the strength of the earlier kind falls as that of the
    new one rises. Arrivals of classes add up, and so do departures.
    """
    strength_TNE = np.zeros((steps + 1, len(timetables), len(kinds)), np.float32)
    for host, events in enumerate(timetables):
        for epoch in range(steps):
            for kind, strength in _strengths(events, epoch):
                if kind in kinds:
                    strength_TNE[epoch, host, kinds.index(kind)] += strength
    ahead_TNE = (strength_TNE[::-1].cumsum(axis=0)[::-1] / steps).astype(np.float32)
    return np.concatenate([strength_TNE, ahead_TNE], axis=2)


def _strengths(events: Sequence[Event], epoch: int) -> Iterator[tuple[str, float]]:
    """Yield the kinds in force in a host epoch, and their strengths; a kind may come several times."""
    drifts = {event.kind for event in events} - {*RATES, *CLASSES}
    for group in (drifts, RATES):
        state = change(events, epoch, group)
        yield state.old, 1 - state.share
        yield state.new, state.share
    yield from ((event.kind, event.strength(epoch)) for event in events if event.kind in CLASSES)


def foresight_table(kinds: Sequence[str]) -> tuple[Feature, ...]:
    """Return the features as rows of the table of host features."""

    def feature(rank: int, name: str, meaning: str) -> Feature:
        high = MOST_MOVES if kinds[rank % len(kinds)] in CLASSES else 1
        return Feature(name, meaning, lambda v: v.foresight_NF[:, rank], high=high)

    meanings = [
        *(f"strength of {kind} in the coming host epoch" for kind in kinds),
        *(f"mean strength of {kind} from now on, times the share of the episode that is left" for kind in kinds),
    ]
    return tuple(feature(rank, *row) for rank, row in enumerate(zip(foresight_names(kinds), meanings, strict=True)))


def feature_tables(kinds: Sequence[str], blueprints: Sequence[str]) -> tuple[FeatureTable, FeatureTable]:
    """Return the features of a host and those of a slot.

    Args:
        kinds: events that the observation tells in advance; none for all but oracles.
        blueprints: names of the available blueprints.
    """
    return FeatureTable((*HOST_FEATURES, *foresight_table(kinds))), FeatureTable(slot_table(blueprints))
