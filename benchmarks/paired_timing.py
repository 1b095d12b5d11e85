"""Paired timing: candidates run in turn in one process, and are compared round by round.

A machine that others use is slow at some times and fast at others. Candidates that run right after each other meet the same
machine, so their ratio within a round varies much less than their times do. Two clocks are read: wall time is what a user waits,
process time (of all threads) does not count the time that other processes took.
"""

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Timing:
    """The duration of one run."""

    wall: float
    """Wall time [s]."""
    process: float
    """Processor time of all threads of this process, and of commands that it ran to their end [s]."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of two candidates over all rounds."""

    median: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f}, {self.rounds} rounds)"


def timed(run: Callable[[], object]) -> Timing:
    """Run once and return the duration."""
    wall, process = time.perf_counter(), _processor_time()
    run()
    return Timing(time.perf_counter() - wall, _processor_time() - process)


def _processor_time() -> float:
    commands = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + commands.ru_utime + commands.ru_stime


def in_turn(candidates: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[Timing]]:
    """Time each candidate once per round; every second round runs them in reverse order."""
    timings: dict[str, list[Timing]] = {name: [] for name in candidates}
    for index in range(rounds):
        for name in candidates if index % 2 == 0 else reversed(candidates):
            timings[name].append(timed(candidates[name]))
    return timings


@dataclass(frozen=True, slots=True)
class Claim:
    """A figure that a benchmark stands for."""

    what: str
    """Candidates and clock, as in `one by one / fused, process`, or a quantity with its unit in brackets."""
    median: float
    low: float
    high: float
    rounds: int


CLAIMS: list[Claim] = []
"""Every figure that this process has measured, for the record of `python -m benchmarks`."""


def claim(what: str, values: Sequence[float]) -> None:
    """Record the median and the range of a figure over all rounds."""
    each = np.array(values)
    CLAIMS.append(Claim(what, float(np.median(each)), float(each.min()), float(each.max()), len(each)))


def ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Return the median and the range of the ratios of all rounds."""
    each = np.array(above) / np.array(below)
    return Ratio(float(np.median(each)), float(each.min()), float(each.max()), len(each))


def print_comparison(timings: Mapping[str, Sequence[Timing]], baseline: str, case: str = "") -> None:
    """Print a table of all rounds, and the ratio of every other candidate to the baseline; `case` tells claims apart."""
    print("| round | " + " | ".join(f"{name} [s]" for name in timings) + " |")
    print("|---" * (len(timings) + 1) + "|")
    for index in range(len(timings[baseline])):
        cells = (f"{some[index].wall:.3f} ({some[index].process:.3f})" for some in timings.values())
        print(f"| {index + 1} | " + " | ".join(cells) + " |")
    print("Seconds of wall time; process time in brackets.")
    for name in timings:
        if name != baseline:
            clocks = ("wall", "process")
            pairs = [[[getattr(one, clock) for one in timings[which]] for which in (name, baseline)] for clock in clocks]
            for clock, (above, below) in zip(clocks, pairs, strict=True):
                claim(f"{name} / {baseline}, {clock}{f', {case}' if case else ''}", np.array(above) / np.array(below))
            wall, process = (ratio(above, below) for above, below in pairs)
            print(f"{name} / {baseline}, median (range): wall {wall}, process {process}")
