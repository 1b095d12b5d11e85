"""Position of a run among those of a sweep over values, `-m` without `sweep=`: which of how many, and the time left for all."""

import os
import time

from esper.text import duration

VARIABLE = "ESPER_SWEEP"
"""Environment variable by which the processes of a sweep know its size and beginning."""
COMMAND = "ESPER_COMMAND"
"""Environment variable by which they know the process number of its command."""


def begin_sweep(runs: int) -> None:
    """Note that a sweep of `runs` runs begins now."""
    os.environ[VARIABLE] = f"{runs} {time.time()}"


def position_of(number: int, *, shared: bool) -> str:
    """Return the position of a run, as in `run 3 of 9, about 12 min left for all`; empty outside of a sweep.

    Args:
        number: number of the run, from 0.
        shared: true if other runs go on at the same time, so that those before it say little about the time left.
    """
    if VARIABLE not in os.environ:
        return ""
    runs, begun = os.environ[VARIABLE].split()
    left = (time.time() - float(begun)) / number * (int(runs) - number) if number and not shared else 0.0
    return f"run {number + 1} of {runs}" + (f", about {duration(left)} left for all" if left else "")
