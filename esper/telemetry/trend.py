"""How a metric has developed over the updates of a run: first, last, mean of the last tenth, and one word for it."""

# U updates

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from esper.text import counted, number

JUDGED = {
    "sandbox/share_of_optimum": "share of optimum",
    "policy/return": "return",
    "host/committed_accuracy": "committed accuracy",
}
"""Metrics whose trend the summary tells; more is better."""
PLANTED = "host/seeds_germinated"
"""Metric that is 0 in an update in which nothing grew."""
MIN_UPDATES = 10
"""Updates from which a trend is told. With fewer, the noise of an update is not known well enough."""
ERRORS = 2.0
"""A difference counts if it exceeds this many standard errors, as in a 95 % interval."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trend:
    """The development of a metric."""

    first: float
    last: float
    mean: float
    """Mean of the last tenth of the updates, at least one."""
    error: float
    """Standard error of that mean; NaN for fewer than `MIN_UPDATES`."""
    count: int
    """Number of updates in the last tenth."""
    waiting: float
    """Mean of the updates in which nothing grew; NaN if something grew in all."""
    idle: int
    """Number of these updates."""
    word: str
    """Rising, falling or no clear trend; worse than never growing; or too few updates."""

    def text(self, unit: str = "") -> str:
        """Return the trend as one line.

        Args:
            unit: unit of the metric after a space.
        """
        known = "" if math.isnan(self.error) else f" ± {_digits(ERRORS * self.error)}"
        of_last = f"mean of last {self.count}: {number(self.mean)}{known}{unit}" if self.count > 1 or known else ""
        waiting = (
            "" if math.isnan(self.waiting) else f"never growing ({counted(self.idle, 'update')}): {number(self.waiting)}{unit}"
        )
        values = [f"first {number(self.first)}{unit}", f"last {number(self.last)}{unit}", of_last, waiting]
        return f"{self.word}: {', '.join(filter(None, values))}"


def _digits(error: float) -> str:
    return f"{error:.2g}" if error < 10 else f"{error:.0f}"


def trend(values_U: Sequence[float], planted_U: Sequence[float] = ()) -> Trend:
    """Return the trend of a metric of which more is better.

    The first and the last tenth of the updates are compared. The variance of the noise is estimated as half the mean squared
    difference of successive updates (von Neumann 1941). A trend hardly affects this estimate, so that few updates suffice.

    Args:
        values_U: the metric after each update, at least one.
        planted_U: seeds planted per host in each update; without it, nothing is known about never growing.
    """
    updates, tenth = len(values_U), -(-len(values_U) // 10)
    early, late = fmean(values_U[:tenth]), fmean(values_U[-tenth:])
    steps = [(after - before) ** 2 for before, after in pairwise(values_U)]
    noise = math.sqrt(fmean(steps) / 2) if updates >= MIN_UPDATES else math.nan
    idle = [value for value, planted in zip(values_U, planted_U, strict=False) if planted == 0.0]
    waiting = fmean(idle) if idle else math.nan
    word = f"only {counted(updates, 'update')}"
    if updates >= MIN_UPDATES:
        beyond = ERRORS * noise * math.sqrt(2 / tenth)
        word = "rising" if late - early > beyond else "falling" if early - late > beyond else "no clear trend"
        if idle and waiting - late > ERRORS * noise * math.sqrt(1 / tenth + 1 / len(idle)):
            word = "worse than never growing"
    return Trend(
        first=values_U[0],
        last=values_U[-1],
        mean=late,
        error=noise / math.sqrt(tenth),
        count=tenth,
        waiting=waiting,
        idle=len(idle),
        word=word,
    )


class History:
    """The values of metrics in every written update so far, those before a resume included."""

    def __init__(self, folder: Path, resume_update: int = 0) -> None:
        """
        Args:
            folder: folder of the run. Without `metrics.jsonl` in it, updates before a resume are not known.
            resume_update: number of updates in the resumed state.
        """
        self.series: dict[str, list[float]] = {}
        self.updates = self._newest = 0
        if resume_update and (path := folder / "metrics.jsonl").exists():
            from esper.telemetry.jsonl import read_records  # late: a first start needs no reader

            for record in read_records(path):
                if record["update"] <= resume_update:
                    self.add(int(record["update"]), record)

    def counted(self, updates: int) -> str:
        """Return a number of updates in words: "5 updates", or "5 written updates" if others were not written."""
        return counted(updates, "update" if self.updates == self._newest else "written update")

    def add(self, update: int, metrics: Mapping[str, float]) -> None:
        """Add the measured metrics of a written update."""
        self.updates, self._newest = self.updates + 1, update
        for tag, value in metrics.items():
            if math.isfinite(value):
                self.series.setdefault(tag, []).append(value)

    def trends(self) -> dict[str, Trend]:
        """Return the trends of the metrics in `JUDGED` that were measured, by tag."""
        planted = self.series.get(PLANTED, [])
        found: dict[str, Trend] = {}
        for tag in JUDGED:
            if values := self.series.get(tag):
                one = trend(values, planted if len(planted) == len(values) else ())
                found[tag] = one if len(values) >= MIN_UPDATES else replace(one, word=f"only {self.counted(len(values))}")
        return found
