"""The newest evaluation of a run by `esper.evaluate`: its controllers on the same held-out hosts."""

import inspect
import json
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from esper.config import GROUPS
from esper.evaluation.held_out import ORACLE
from esper.evaluation.outcomes import ONLINE
from esper.evaluation.per_host import PREFIX
from esper.evaluation.presentation import OUTCOME_NAMES
from esper.notices import UserNotice
from esper.stats.intervals import mean_interval
from esper.telemetry.tags import in_terms_of
from esper.telemetry.traces import Table
from esper.text import counted

_NAME = re.compile(r"evaluation_(\d{6,})_.*")
COLUMNS = {
    "return": "return",
    "accuracy": "test_accuracy",
    ONLINE: "online_accuracy",
    "parameters": "parameters_kept",
    "flops": "flops_kept",
}
"""Outcomes of an evaluation, and the columns of a trace with the same meaning."""
MEANINGS = {
    "policy": "the policy of this run with sampled actions, as in training",
    "policy_greedy": "the policy with its most probable actions",
    "replay": "the topologies that the policy kept, grown from the start",
    "wait": "never growing",
    ORACLE: "knows the kind of each host: the best schedule of one seed for it, planted in the first epoch and chosen on other "
    "hosts, so it can be beaten",
}
"""Controllers whose classes do not say what they are on this page."""
CHOSEN = {
    "best schedule": "the same seed in every host, planted in the first epoch, and chosen on other hosts: {}",
    "best static net": "the same seed in every host, active from initialisation, and chosen on other hosts: {}",
}
"""Controllers that a search of `esper.evaluate` chose."""
HEAD = (
    "controller",
    "return\n[points]",
    "minus that of\nthe policy",
    "{accuracy}\n[%]",
    "minus that of\nthe policy [pp]",
    "parameters\nkept",
    "FLOPs\nper sample",
    "what it is",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """A file of `esper.evaluate` on the run's own kind of hosts."""

    update: int
    """Update of the policy."""
    report: Mapping[str, Any]
    file: str
    """Its name in the folder of the run."""
    figure: str
    """Name of its figure; empty if there is none."""

    @property
    def hosts(self) -> int:
        """Number of hosts that each controller grew."""
        return len(next(iter(self.report["hosts"].values()))["return"])

    def table(self, name: str) -> Table | None:
        """Return the results of a controller as a trace with one row per host; None if it was not evaluated."""
        found = self.report["hosts"].get(name)
        if found is None:
            return None
        shown = {outcome: column for outcome, column in COLUMNS.items() if outcome != ONLINE or _headline(self.report) == ONLINE}
        return {"epoch": [1.0] * len(found["return"])} | {
            column: found[outcome] for outcome, column in shown.items() if outcome in found
        }


def evaluations(folder: Path) -> list[Evaluated]:
    """Return the evaluations in the folder of a run, ordered by the update of their policy, then by the time of
    writing. Transfers to other tasks do not count; a damaged file is left out with a warning."""
    found: list[tuple[int, float, Evaluated]] = []
    for path in folder.glob("evaluation_*.json"):
        match = _NAME.fullmatch(path.stem)
        report = _read(path) if match else None
        if match and report is not None and not report.get("transfer"):
            figure = path.with_suffix(".svg")
            one = Evaluated(update=int(match[1]), report=report, file=path.name, figure=figure.name if figure.exists() else "")
            found.append((one.update, path.stat().st_mtime, one))
    return [one for *_, one in sorted(found, key=lambda one: (*one[:2], one[2].file))]


def _read(path: Path) -> dict[str, Any] | None:
    """Return an evaluation, whose controllers have results of the same hosts; None, with a warning, for a damaged file."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        returns = [np.array(one["return"], np.float64) for one in report["hosts"].values()]
        counts = {len(one[key]) for one in report["hosts"].values() for key in COLUMNS if key in one}
        whole = len(counts) == 1 and counts != {0} and bool(np.isfinite(returns).all())
        whole = whole and isinstance(report.get("settings", {}), dict)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        report, whole = None, False
    if not whole:
        warnings.warn(f"{path} is damaged and left out: remove it, and evaluate again", UserNotice, stacklevel=4)
    return report if whole else None


def richest(found: Sequence[Evaluated], done: int) -> Evaluated | None:
    """Return the evaluation of the newest policy with the most controllers, the last one if tied; None if there is none.

    Args:
        done: update of the newest checkpoint; evaluations of later policies are left over from one that was lost.
    """
    return max(_newest(found, done), key=lambda one: len(one.report["hosts"]), default=None)


def largest(found: Sequence[Evaluated], done: int) -> Evaluated | None:
    """Return the evaluation of the newest policy on the most hosts, the last one if tied; None if there is none.

    Args:
        done: see `richest`.
    """
    return max(_newest(found, done), key=lambda one: one.hosts, default=None)


def _newest(found: Sequence[Evaluated], done: int) -> list[Evaluated]:
    """Return the evaluations of the newest policy, the last first, as `max` returns the first of equal ones; only those that grew
    hosts with the policy and with none, if there are any."""
    newest = max((one.update for one in found if one.update <= done), default=None)
    own = [one for one in reversed(found) if one.update == newest]
    return [one for one in own if {"policy", "wait"} <= one.report["hosts"].keys()] or own


def head(report: Mapping[str, Any], score: str) -> list[str]:
    """Return the heads of the columns of `controllers`."""
    return [in_terms_of(score, one.format(accuracy=OUTCOME_NAMES[_headline(report)])) for one in HEAD]


def _headline(report: Mapping[str, Any]) -> str:
    """Return the outcome to show beside the return; see `Evaluation.headline`."""
    return report.get("headline", "accuracy")


def controllers(report: Mapping[str, Any]) -> list[list[str]]:
    """Return a row of text per controller, the highest return first: its means over hosts, and their differences to the policy
    with 95 % intervals, paired by host. Searches, which train each host several times, come last."""
    hosts: Mapping[str, Mapping[str, Sequence[float]]] = report["hosts"]
    rows: list[list[str]] = []
    search_by = report.get("settings", {}).get("search_by", "return")
    for name in sorted(hosts, key=lambda name: (name.startswith(PREFIX), -float(np.mean(hosts[name]["return"])))):
        one, cells = hosts[name], [name.partition(" (")[0]]
        for outcome in ("return", _headline(report)):
            cells += [
                _number(one.get(outcome, []), 1),
                _over(one.get(outcome, []), hosts.get("policy", {}).get(outcome, []), name),
            ]
        cells += [_number(one.get("parameters", []), 0), _number(one.get("flops", []), 0), meaning(name, search_by)]
        rows.append(cells)
    return rows


def meaning(name: str, search_by: str = "return") -> str:
    """Return what a controller is, in the words of its class; for a search or schedule what it chose.

    Args:
        name: name of the controller in an evaluation.
        search_by: what searches choose by: return or validation.
    """
    if name in MEANINGS:
        return MEANINGS[name]
    if name.startswith(PREFIX):
        count = name.rpartition("_")[2]
        all_of_them = "all of its candidates for each host"
        spent = f"the work of {counted(int(count), 'full training')} per host" if count.isdecimal() else all_of_them
        kept = ", of which the best is kept" if count != "1" else ""
        by = "validation accuracy, so compare test accuracies" if search_by == "validation" else "return, so compare accuracies"
        return f"a search, not a controller: {spent}{kept}. It chooses by the {by}"
    short, _, chosen = name.partition(" (")
    if short in CHOSEN:
        return CHOSEN[short].format(chosen.removesuffix(")"))
    found = GROUPS["agent"].get(short)
    text = inspect.getdoc(found) or "" if found else ""
    first = " ".join(text.split("\n\n")[0].split()).removesuffix(".")
    return chosen.removesuffix(")") or first.removeprefix("A controller that ")


def _number(values: Sequence[float], digits: int) -> str:
    mean = float(np.mean(values)) if len(values) else math.nan
    return f"{mean:,.{digits}f}" if math.isfinite(mean) else ""


def _over(values: Sequence[float], own: Sequence[float], name: str) -> str:
    """Return the mean difference to the policy; empty for the policy itself, and where one was not measured."""
    if name == "policy" or not len(values) or len(values) != len(own):
        return ""
    difference_N = np.array(values, dtype=np.float64) - np.array(own, dtype=np.float64)
    return mean_interval(difference_N).signed if np.isfinite(difference_N).all() else ""
