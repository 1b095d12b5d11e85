"""Events: the timetable of what happens to the data of a host while it trains.

An event has a kind and a strength in [0, 1] at every host epoch, a function of the epoch alone:

    strength
       1            ___________
                 __/           \\__
       0   _____/                 \\______
                |ramp|  lasts  |ramp|
              start           end

Drifts of the data (`esper.task.drifts`) replace each other, and so do changes of the learning rates; classes come and go. Only
`Instance.describe` names the timetable; no observation contains it.
"""

# K classes

import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from esper.ranges import check_ranges

RATES = {"slow": 0.1, "fast": 3.0}
"""Kind -> factor on all learning rates of a host and its seeds."""
CLASSES = ("arrive", "leave")
"""Kinds that change the classes of a host."""
Stream = Callable[[str], np.random.Generator]
"""Returns a random stream for a purpose."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One event of a timetable."""

    kind: str
    """What happens."""
    start: int
    """First host epoch with any effect."""
    ramp: int = 0
    """Host epochs from no effect to the full effect, less one; 0 is sudden."""
    end: int | None = None
    """First host epoch in which the effect wanes, over the same ramp; None if it stays."""
    classes: tuple[int, ...] = ()
    """Classes that arrive or leave, ascending."""

    def strength(self, epoch: int) -> float:
        """Return the strength of the effect in a host epoch, from 0 to 1."""
        risen = min(max(epoch - self.start + 1, 0) / (self.ramp + 1), 1.0)
        return risen if self.end is None else risen - min(max(epoch - self.end + 1, 0) / (self.ramp + 1), 1.0)

    def describe(self) -> str:
        """Return a short name, such as "invert@5", "invert@5+3" with a ramp, "invert@5-9" if it passes, or "arrive(0,7)@5"."""
        classes = f"({','.join(map(str, self.classes))})" if self.classes else ""
        ramp, end = f"+{self.ramp}" if self.ramp else "", "" if self.end is None else f"-{self.end}"
        return f"{self.kind}{classes}@{self.start}{ramp}{end}"


def before_events(timetable: Sequence[Event], epochs: int) -> tuple[Event, ...]:
    """Return the timetable for `epochs` epochs of pretraining, before all events: classes that will arrive are absent."""
    arrivals = (event for event in timetable if event.kind == "arrive")
    return tuple(replace(event, start=epochs, ramp=0, end=None) for event in arrivals)


class Change(NamedTuple):
    """The state of kinds that replace each other: between the kind that held before and a new one."""

    old: str
    new: str
    share: float
    """Share of the new kind, from 0 to 1."""


def change(timetable: Sequence[Event], epoch: int, kinds: Collection[str]) -> Change:
    """Return the state of kinds that replace each other; the empty kind is the state without events.

    Args:
        timetable: all events, in order; each begins after the change by the one before is complete.
        epoch: host epoch.
        kinds: kinds that replace each other.
    """
    old = ""
    begun = [event for event in timetable if event.start <= epoch and event.kind in kinds]
    for event in begun[:-1]:
        old = event.kind if event.end is None else old
    return Change(old, begun[-1].kind, begun[-1].strength(epoch)) if begun else Change("", "", 0.0)


def pace(timetable: Sequence[Event], epoch: int) -> float:
    """Return the factor on the learning rates in a host epoch."""
    state = change(timetable, epoch, RATES)
    old, new = RATES.get(state.old, 1.0), RATES.get(state.new, 1.0)
    return old + (new - old) * state.share


def class_shares(timetable: Sequence[Event], epoch: int, num_classes: int, replay: float = 1.0) -> npt.NDArray[np.float64] | None:
    """Return the share of the samples of each class that is present `[K]`; None if no class ever comes or goes.

    Args:
        timetable: all events.
        epoch: host epoch.
        num_classes: K.
        replay: factor for all classes but those of the latest arrival.
    """
    moves = [event for event in timetable if event.classes]
    if not moves:
        return None
    share_K, older_K = np.ones(num_classes), np.zeros(num_classes, np.bool_)
    for event in moves:
        strength, classes = event.strength(epoch), list(event.classes)
        share_K[classes] = strength if event.kind == "arrive" else 1.0 - strength
        if event.kind == "arrive" and strength:
            older_K[:] = True
            older_K[classes] = False
    return np.where(older_K, replay * share_K, share_K)


@dataclass(kw_only=True, slots=True)
class EventsConfig:
    """Events during the training of a host. Each host draws its own, from lists of numbers uniformly."""

    kinds: list[str] = field(default_factory=lambda: list[str]())
    """Kinds of events, each at most once; empty: no events. Drifts of images are invert, rotate (by 90 degrees), turn
    (by 180), mirror, shift (by a quarter of the width), blur and noise (added); of tables and diabetes, noise; of python_text,
    prose and swapcase; of all data with classes, relabel (the classes are permuted) and mislabel (40 % of the training labels
    become wrong). A drift replaces the one before it. Classes of images and of table_classes can arrive (they are absent before)
    and leave. Learning rates can become slow (times 0.1) and fast (times 3)."""
    count: list[int] = field(default_factory=lambda: [1])
    """Number of events of a host, each at least 0. Higher: more to react to."""
    first: int = 3
    """Earliest host epoch in which an event may start, at least 0."""
    last: int = 16
    """Latest host epoch in which an event may start, at least `first` and below `steps`."""
    gap: int = 3
    """Host epochs from the full effect of an event, or from its end if it passes, to the start of the next, at least 1."""
    ramp: list[int] = field(default_factory=lambda: [0])
    """Length of a gradual start or end of an event [host epochs], each at least 0; 0 is sudden. During a ramp, a growing share of
    the samples has drifted, arrived or left."""
    lasts: list[int] = field(default_factory=lambda: [0])
    """Host epochs of full effect after which an event passes, each at least 0; 0 is forever."""
    passing: list[str] = field(default_factory=lambda: list[str]())
    """Kinds out of `kinds` that pass after `lasts`; any other stays, and no event follows it. Empty: all pass if `lasts` is above
    0."""
    recurs: int = 0
    """Number of kinds that a host cycles through, at least 0: 1 repeats one kind, 2 alternates between two; 0: all kinds."""
    group: int = 2
    """Classes that arrive or leave in one event, at least 1. A class does so at most once, and at least two always remain."""
    replay: float = 1.0
    """Share of the training samples that remains of all earlier classes once others have arrived, in (0, 1]. Lower: easier to
    forget."""

    def check(self, known: Sequence[str]) -> None:
        """Raise ValueError for values out of range; `known` are the kinds that the task offers."""
        check_ranges("task.events", self, {"[0, inf]": ["first", "recurs"], "[1, inf]": ["gap", "group"], "(0, 1]": ["replay"]})
        for name in ("count", "ramp", "lasts"):
            values: list[int] = getattr(self, name)
            if not values or min(values) < 0:
                raise ValueError(f"task.events.{name} must list at least one value, each at least 0, got {values}")
        wrong = [kind for kind in self.kinds if kind not in known or self.kinds.count(kind) > 1]
        if wrong:
            listed = ",".join(dict.fromkeys(wrong))
            raise ValueError(f"task.events.kinds must list kinds out of {', '.join(known)}, each at most once, got [{listed}]")
        if self.kinds and (strange := [kind for kind in self.passing if kind not in self.kinds]):
            listed, rest = ",".join(strange), ",".join(kind for kind in self.passing if kind in self.kinds)
            remedy = f"list it in task.events.kinds too, or set task.events.passing=[{rest}]"
            raise ValueError(f"task.events.passing names {listed}, which never happens: {remedy}")
        if self.passing and min(self.lasts) < 1:
            raise ValueError(
                "task.events.passing needs every task.events.lasts to be at least 1, the number of host epochs after which these "
                "kinds end"
            )
        usual = EventsConfig()
        idle = [part.name for part in fields(self) if getattr(self, part.name) != getattr(usual, part.name)]
        if idle and not self.kinds:
            listed = ", ".join(f"task.events.{name}" for name in idle)
            warnings.warn(
                f"{listed} {'have' if len(idle) > 1 else 'has'} no effect, since task.events.kinds is empty", stacklevel=3
            )
        if self.replay != 1 and self.kinds and "arrive" not in self.kinds:
            warnings.warn(f"task.events.replay={self.replay:g} has no effect, since no classes arrive", stacklevel=3)
        if self.group != usual.group and self.kinds and not set(self.kinds) & set(CLASSES):
            warnings.warn(f"task.events.group={self.group} has no effect, since no classes arrive or leave", stacklevel=3)
        if self.last < self.first:
            raise ValueError(f"task.events.last={self.last} is before task.events.first={self.first}: raise it")
        most = max(self.count)
        needed = (most - 1) * (max(self.ramp) + (max(self.lasts) + max(self.ramp) if max(self.lasts) else 0) + self.gap)
        if needed > self.last - self.first:
            raise ValueError(
                f"task.events.count={most} needs {needed} host epochs from task.events.first to task.events.last, and there are "
                f"{self.last - self.first}: raise task.events.last, or lower task.events.count, gap, ramp or lasts"
            )
        if 0 in self.lasts and self._repeats():
            text = (
                "task.events.lasts=0 is forever, and a second event of the same kind would change nothing: list more kinds in "
                "task.events.kinds, raise task.events.recurs, lower task.events.count, or leave 0 out of task.events.lasts"
            )
            if 1 in (self.recurs, len(self.kinds)):
                raise ValueError(text)
            warnings.warn(text, stacklevel=3)  # only some hosts may have such events

    def _repeats(self) -> bool:
        """Return whether a host can have the same drift, or the same change of learning rates, twice in a row, or with only one
        between them that passes."""
        kinds = len(self.kinds)
        used = min(self.recurs or kinds, kinds)
        rates = sum(kind in RATES for kind in self.kinds)
        drifts = kinds - rates - sum(kind in CLASSES for kind in self.kinds)
        apart = kinds if max(self.lasts) else kinds - used + 1
        return max(self.count) > used and any(0 < of_a_sort <= apart for of_a_sort in (rates, drifts))

    def check_steps(self, steps: int) -> None:
        """Raise ValueError if events can start after the end of an episode of `steps` steps."""
        if self.kinds and self.last >= steps:
            raise ValueError(
                f"task.events.last={self.last} must be below steps={steps}, since no event can start after the end: lower it or "
                "raise steps"
            )

    def draw(self, stream: Stream, classes: Sequence[int], origin: Stream | None = None) -> tuple[Event, ...]:
        """Return the timetable of a host.

        Args:
            stream: returns the host's random stream for a purpose.
            classes: classes of the host.
            origin: the same for its pretrained host, if it has one. If classes can arrive, this stream determines what happens
                but not when, since a pretrained host must not have seen them; see `unknown`.
        """
        if not self.kinds:
            return ()
        what = origin if origin and "arrive" in self.kinds else stream

        def chosen(purpose: str, values: list[int], size: int, source: Stream = stream) -> list[int]:
            return [values[int(one)] for one in source(f"instance_event_{purpose}").integers(len(values), size=size)]

        (count,) = chosen("count", self.count, 1, what)
        ramps, lasts = chosen("ramps", self.ramp, count), chosen("lasts", self.lasts, count)
        order = [self.kinds[int(one)] for one in what("instance_event_kinds").permutation(len(self.kinds))]
        order = order[: self.recurs or None]
        spans = [ramp + (last + ramp if last else 0) + self.gap for ramp, last in zip(ramps, lasts, strict=True)]
        spare = self.last - self.first - sum(spans[:-1])
        offsets = np.sort(stream("instance_event_starts").integers(spare + 1, size=count))
        starts = [self.first + int(offset) + sum(spans[:event]) for event, offset in enumerate(offsets)]
        events = [
            Event(kind=order[event % len(order)], start=start, ramp=ramp, end=start + ramp + last if last else None)
            for event, (start, ramp, last) in enumerate(zip(starts, ramps, lasts, strict=True))
        ]
        if self.passing:
            stays = [event.kind not in self.passing for event in events]
            events = [replace(event, end=None) if stay else event for event, stay in zip(events, stays, strict=True)]
            events = events[: stays.index(True) + 1 if True in stays else None]
        moved = what("instance_event_classes").permutation(classes).tolist()
        return tuple(
            replace(event, classes=tuple(sorted(moved.pop() for _ in range(self.group)))) if event.kind in CLASSES else event
            for event in events
        )
