"""What an evaluation shows and writes: sentences, a table of four columns, details on request, a figure, and its numbers."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from esper.evaluation.forest import Row, forest
from esper.evaluation.held_out import ORACLE, POLICIES, REPLAY
from esper.evaluation.outcomes import ONLINE
from esper.evaluation.per_host import PREFIX
from esper.files import write_whole
from esper.stats.intervals import Interval, mean_interval
from esper.telemetry.tags import in_terms_of
from esper.text import counted, si

Rows = Sequence[Mapping[str, Any]]
"""Rows of `summarise`."""
SPOKEN = {"wait": "never growing", "policy": "the policy"}
"""Name of a controller in a sentence."""
OUTCOME_NAMES = {"return": "return", "accuracy": "test accuracy", ONLINE: "online accuracy"}
"""Name of an outcome."""
NARROW = 76
"""Columns below which a table leaves out the differences."""


def verdict(rows: Rows, score: str = "accuracy", headline: str = "accuracy") -> str:
    """Return one sentence that compares the policy, or else the first other controller, with never growing.

    A difference counts as clear if its 95 % interval over hosts excludes 0.

    Args:
        headline: outcome beside the return; see `Evaluation.headline`.
    """
    others = [row for row in rows if row["controller"] != "wait"]
    if not others:
        return "only never growing was evaluated: name other controllers to compare it with"
    row = next((row for row in others if row["controller"] in POLICIES), others[0])
    shown: dict[str, list[str]] = {"beats": [], "is worse than": [], "": []}
    for key in (headline, "return"):
        unit = f"{'points' if key == 'return' else 'pp'} of {OUTCOME_NAMES[key]}"
        mean = Interval(**row[f"{key}_over_wait"])
        if math.isfinite(mean.mean):
            word = "beats" if mean.low > 0 else "is worse than" if mean.high < 0 else ""
            amount = f"{abs(mean.mean):.1f} ± {mean.half_width:.1f}" if word else mean.signed
            shown[word].append(f"{amount} {unit}")
    name, other = SPOKEN.get(str(row["controller"]), str(row["controller"])), SPOKEN["wait"]
    claims = [f"{word} {other} by {' and by '.join(amounts)}" for word, amounts in shown.items() if word and amounts]
    amounts = f" ({' and '.join(shown[''])})" if shown[""] else ""
    if not claims:
        found = "there is no clear difference" if amounts else "nothing was measured"
        return in_terms_of(score, f"{found} between {name} and {other}{amounts}")
    return in_terms_of(score, f"{name} {', and '.join(claims)}{f'; no other clear difference{amounts}' if amounts else ''}")


class BestBaseline(NamedTuple):
    """The best controller of an evaluation, except policies, searches, replay and the oracle."""

    name: str
    difference: Interval
    """The policy's return minus its own, with an interval that allows for the choice of the best."""
    hosts: int
    """Number of hosts that both grew."""
    among: int
    """Number of controllers from which it was chosen."""

    @property
    def caution(self) -> str:
        """What sets its interval apart from that of a single comparison; empty if nothing does."""
        return f"the interval allows for its choice from {self.among} baselines" if self.among > 1 else ""


def best_baseline(report: Mapping[str, Any]) -> BestBaseline | None:
    """Return the best baseline of an evaluation; None if there is none."""
    hosts: Mapping[str, Any] = report.get("hosts", {})
    out = {*POLICIES, REPLAY, ORACLE}
    others = {name: one["return"] for name, one in hosts.items() if name not in out and not name.startswith(PREFIX)}
    own: Sequence[float] | None = hosts.get("policy", {}).get("return")
    if own is None or not others:
        return None
    best = max(others, key=lambda name: float(np.mean(others[name])))
    difference = mean_interval(np.array(own) - np.array(others[best]), choices=len(others))
    return BestBaseline(best, difference, len(own), len(others))


def baseline_sentence(report: Mapping[str, Any]) -> str:
    """Return the sentence that compares the policy of an evaluation with its best baseline; empty if that is never growing."""
    found = best_baseline(report)
    if found is None or found.name == "wait":
        return ""
    said = f"its best baseline is {found.name.partition(' (')[0]}: {_paired(found.difference, found.hosts)}"
    return f"{said}; {found.caution}" if found.caution else said


def oracle_sentence(report: Mapping[str, Any]) -> str:
    """Return the sentence that compares the policy of an evaluation with the oracle; empty without one."""
    hosts: Mapping[str, Any] = report.get("hosts", {})
    own: Sequence[float] | None = hosts.get("policy", {}).get("return")
    if own is None or ORACLE not in hosts:
        return ""
    difference = mean_interval(np.array(own) - np.array(hosts[ORACLE]["return"]))
    what = "an oracle, the best schedule of one seed, planted in the first epoch, for each kind of host"
    said = f"against {what}: {_paired(difference, len(own))}"
    unseen = report.get("unseen_kinds")
    return (
        f"{said}; {unseen} of these hosts {'is' if unseen == 1 else 'are'} of kinds that the oracle was not chosen on, and "
        f"{'gets' if unseen == 1 else 'get'} the best overall schedule"
        if unseen
        else said
    )


def _paired(difference: Interval, hosts: int) -> str:
    """Return the difference in return between the policy and another controller in words."""
    where = f"on the same {counted(hosts, 'host')}"
    if difference.low <= 0 <= difference.high:
        return f"the policy does not clearly differ in return ({difference.signed} points, paired {where})"
    word = "more" if difference.mean > 0 else "less"
    amount = f"{abs(difference.mean):.1f} ± {difference.half_width:.1f}"
    return f"the policy returns {amount} points {word}, paired {where}"


def show(
    rows: Rows,
    heading: str,
    console: Console,
    against: str = "wait",
    score: str = "accuracy",
    headline: str = "accuracy",
) -> None:
    """Print the rows as a table of four columns: controllers by their return, or searches in their order."""
    wide, last = console.width >= NARROW, "params" if against == "wait" else "FLOPs (training)"
    table = _table(heading)
    for key, name in (("", "controller"), ("return", "return"), (headline, OUTCOME_NAMES[headline]), ("", last)):
        unit = " [%]" if key == headline else ""
        name, unit = (name, unit) if wide else (name.replace(" ", "\n"), unit.replace(" ", "\n"))
        over = f"\n(over {SPOKEN.get(against, against)}{', pp' if key == headline else ''})" if key and wide else ""
        table.add_column(
            in_terms_of(score, name) + escape(unit + over), justify="left" if name == "controller" else "right", no_wrap=True
        )
    for row in sorted(rows, key=lambda row: -row["return"]["mean"]) if against == "wait" else rows:
        cells = [_cell(row, key, against, wide) for key in ("return", headline)]
        spent = ("parameters",) if against == "wait" else ("total_flops", "training_flops")
        amount, *part = (si(row[key]) for key in spent)
        table.add_row(escape(_name(row)), *cells, amount + "".join(f" ({one})" for one in part))
    console.print(table)
    captions = _captions(rows, wide) if against == "wait" else [SEARCH_CAPTION]
    for line in [*_chosen(rows), *captions, *([ONLINE_CAPTION] if headline == ONLINE else [])]:
        console.print(escape(in_terms_of(score, line)), style="dim", highlight=False)


SEARCH_CAPTION = (
    "FLOPs: of training, measuring and decisions, in all trainings of a host; in brackets, of training alone, since a search "
    "measures every epoch, though some methods read only the last. The return is measured on the data by which a search chooses, "
    "so compare accuracies."
)


ONLINE_CAPTION = "Online accuracy: test accuracy with all seeds as they are, mean over the host epochs."


def _captions(rows: Rows, wide: bool) -> list[str]:
    """Return what explains a table of controllers."""
    flops = {str(row["controller"]): row["flops"] for row in rows}
    lines = ["Means over hosts" + ("; ± half of the 95 % interval of the paired difference." if wide else ".")]
    lines[0] += " params: parameters of the seeds kept."
    if "policy_greedy" in flops:
        lines.append("policy samples its actions, as in training; policy_greedy takes the most probable ones.")
    if math.isfinite(flops.get("wait", math.nan)) and "policy" in flops:
        lines.append(f"FLOPs per sample: {si(flops['wait'])} without seeds, {si(flops['policy'])} with those of policy.")
    return lines


def show_details(rows: Rows, console: Console, score: str = "accuracy") -> None:
    """Print a table of the intervals of all means, the accuracy while training if it was measured, and the FLOPs."""
    heading = "Details: means over hosts, ± half of the 95 % interval; FLOPs per sample, and of training a host"
    keys = [key for key in ("return", "accuracy", ONLINE) if key in rows[0]]
    columns = {
        f"{OUTCOME_NAMES[key]}{'' if key == 'return' else ' [%]'}": [str(Interval(**row[key])).replace(" ", "") for row in rows]
        for key in keys
    }
    if ONLINE in keys:
        over = [str(Interval(**row[f"{ONLINE}_over_wait"])).replace(" ", "") for row in rows]
        columns[f"online over\n{SPOKEN['wait']} [pp]"] = over
    columns |= {"FLOPs": [si(row["flops"]) for row in rows], "to train": [si(row["training_flops"]) for row in rows]}
    cells, unbounded = list(columns.items()), console.options.update(max_width=1000)
    while cells:  # one table after the other, each with as many columns as fit, at least one
        tables = [_columns(rows, cells[:count], heading, score) for count in range(1, len(cells) + 1)]
        fitting = sum(console.measure(table, options=unbounded).maximum <= console.width for table in tables)
        count, heading = max(1, fitting), ""
        console.print(tables[count - 1])
        cells = cells[count:]


def _columns(rows: Rows, columns: Sequence[tuple[str, Sequence[str]]], heading: str, score: str) -> Table:
    """Return a table of controllers with these columns, each of a heading and a cell for every row."""
    table = _table(heading)
    for head in ("controller", *(name for name, _ in columns)):
        table.add_column(escape(in_terms_of(score, head)), justify="left" if head == "controller" else "right", no_wrap=True)
    for rank, row in enumerate(rows):
        table.add_row(escape(_name(row)), *(cells[rank] for _, cells in columns))
    return table


def _table(heading: str) -> Table:
    """Return an empty table; without borders it fits 80 columns."""
    return Table(title=escape(heading), title_justify="left", box=None, padding=(0, 2, 0, 0))


def _name(row: Mapping[str, Any]) -> str:
    """Return the name of a controller as tables show it, without what it chose."""
    name = str(row["controller"]).removeprefix(PREFIX).partition(" (")[0]
    return {"wait": SPOKEN["wait"], ORACLE: "oracle"}.get(name, name)


def _chosen(rows: Rows) -> list[str]:
    """Return what controllers chose, which their names hold in brackets."""
    found = (str(row["controller"]).partition(" (") for row in rows)
    return [f"{name}: {chosen.rstrip(')')}" for name, _, chosen in found if chosen]


def _cell(row: Mapping[str, Any], key: str, against: str, wide: bool) -> str:
    """Return the mean of an outcome, with its difference where there is room."""
    mean, over = Interval(**row[key]), Interval(**row[f"{key}_over_{against}"])
    if not math.isfinite(mean.mean):
        return "-"
    if not wide or row["controller"] == against:
        return f"{mean.mean:.1f}"
    return f"{mean.mean:.1f} ({over.signed})"


def figure(rows: Rows, hosts: int, score: str = "accuracy", headline: str = "accuracy") -> str | None:
    """Return the differences of all controllers to never growing as SVG: in accuracy, or in return where there is none."""
    for key, axis in (
        (headline, f"{OUTCOME_NAMES[headline]} minus that of never growing [pp]"),
        ("return", "return minus that of never growing"),
    ):
        means = [(_name(row), Interval(**row[f"{key}_over_wait"])) for row in rows if row["controller"] != "wait"]
        found = [Row(name, mean.mean, mean.low, mean.high) for name, mean in means if math.isfinite(mean.mean)]
        if found:
            note = f"means over {counted(hosts, 'held-out host')}, with 95 % intervals"
            return forest(sorted(found, key=lambda row: -row.mean), in_terms_of(score, axis), note=note)
    return None


def write_new(folder: Path, stem: str, report: Mapping[str, Any]) -> Path:
    """Write an evaluation as JSON under a name that holds no other one, and return the file; an equal one is kept as it is.

    Raises:
        DiskError: writing failed.
    """
    text, number = json.dumps(report, indent=1) + "\n", 1
    while True:
        path = folder / f"{stem}{f'_{number}' if number > 1 else ''}.json"
        if not path.exists():
            write_whole(path, text)
            return path
        if path.read_text(encoding="utf-8") == text:
            return path
        number += 1
