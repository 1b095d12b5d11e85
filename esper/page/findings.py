"""What a policy did on held-out hosts, and what it was worth: intervals and sentences, from traces."""

# N hosts

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.stats.intervals import Interval, mean_interval
from esper.telemetry.pictures import slots_of
from esper.telemetry.text import counted
from esper.telemetry.traces import Table

FEW = 3
"""Most hosts that a sentence names."""
MOST_KINDS = 8
"""Most kinds of hosts that are told apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A number at the top of the page."""

    value: str
    label: str


def results(table: Table, column: str) -> npt.NDArray[np.float64]:
    """Return a result of every host `[N]`, NaN where it was not measured."""
    steps = round(max(table["epoch"]))
    values = table.get(column, [None] * len(table["epoch"]))[steps - 1 :: steps]
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def gain(table: Table, never: Table, column: str) -> Interval | None:
    """Return the mean difference between a controller and never growing on the same hosts; None if it was not measured."""
    difference_N = results(table, column) - results(never, column)
    return mean_interval(difference_N) if np.isfinite(difference_N).all() else None


def cards(table: Table, never: Table, *, score: str, parameters: int = 0) -> list[Card]:
    """Return the numbers at the top of the page.

    Args:
        parameters: parameters of the host, 0 if unknown.
    """
    found: list[Card] = []
    if better := gain(table, never, "test_accuracy"):
        found.append(Card(value=f"{signed(better)} pp", label=f"test {score} beyond never growing"))
    if worth := gain(table, never, "return"):
        found.append(Card(value=f"{signed(worth)} points", label="return beyond never growing"))
    if better:
        found.append(Card(value=f"{results(table, 'test_accuracy').mean():.1f} %", label=f"test {score} of what was kept"))
    kept_N = results(table, "parameters_kept")
    if np.isfinite(kept_N).all():
        scale = f", {kept_N.mean() / parameters:.0%} of the host's {parameters:,}" if parameters else ""
        found.append(Card(value=f"{kept_N.mean():,.0f}", label=f"parameters kept per host{scale}"))
    return found


def signed(interval: Interval) -> str:
    """Return an interval such as "+13.9 ± 2.6"; one that rounds to zero has no sign."""
    mean = f"{interval.mean:+.1f}"
    return f"{'0.0' if mean in ('-0.0', '+0.0') else mean} ± {interval.half_width:.1f}"


def verdict(table: Table, never: Table, *, name: str, score: str) -> str:
    """Return the sentence that says whether growing paid on held-out hosts: in test accuracy, and in return, which charges rent
    for parameters."""
    hosts = len(results(table, "return"))
    worth, better = gain(table, never, "return"), gain(table, never, "test_accuracy")
    where = f"on {counted(hosts, 'held-out host')} (mean ± half of the 95 % interval, paired by host)"
    claims = [
        _claim(found, what, unit)
        for found, what, unit in ((better, f"test {score}", "pp"), (worth, "return", "points"))
        if found is not None
    ]
    if not claims:
        return f"{name} could not be compared with never growing {where}."
    return f"Compared with never growing, {name} has {' and '.join(claims)} {where}."


def _claim(difference: Interval, what: str, unit: str) -> str:
    """Return a difference in words, as in "8.1 ± 2.0 pp more test accuracy"."""
    if difference.low <= 0 <= difference.high:
        return f"no clear difference in {what} ({signed(difference)} {unit})"
    word = "more" if difference.mean > 0 else "less"
    return f"{abs(difference.mean):.1f} ± {difference.half_width:.1f} {unit} {word} {what}"


def habits(table: Table) -> list[str]:
    """Return sentences about what the controller plants: how many seeds, when, where, and whether that depends on the host."""
    planted = plantings(table)
    hosts = len(results(table, "return"))
    if not planted:
        return ["It plants nothing."]
    per_host = Counter(one["host"] for one in planted)
    epochs = [one["epoch"] for one in planted]
    most = Counter(f"{one['blueprint']} in {one['slot']}" for one in planted).most_common(2)
    choices = " and ".join(f"{name} ({count / len(planted):.0%} of all seeds)" for name, count in most)
    sentences = [
        f"It plants in {len(per_host)} of {hosts} hosts, {len(planted) / hosts:.1f} seeds per host, most often {choices}.",
        f"Half of the seeds are planted by epoch {np.median(epochs):g} of {round(max(table['epoch']))}.",
    ]
    by_kind: dict[str, Counter[str]] = {}
    for one in planted:
        by_kind.setdefault(one["kind"], Counter())[f"{one['blueprint']} in {one['slot']}"] += 1
    if 1 < len(by_kind) <= MOST_KINDS:
        alike = len({counts.most_common(1)[0][0] for counts in by_kind.values()}) == 1
        sentences.append(
            f"Its most frequent choice is {'' if alike else 'not '}the same for all kinds of hosts; it is not told the kind."
        )
    return sentences


def plantings(table: Table) -> list[dict[str, Any]]:
    """Return the seeds planted: host, kind, epoch, slot, blueprint, and `contribution`, the last one measured [pp]."""
    steps, slots = round(max(table["epoch"])), slots_of(table)
    refused = table.get("refused", [0] * len(table["op"]))
    found: list[dict[str, Any]] = []
    for row, op in enumerate(table["op"]):
        if op != "germinate" or refused[row]:
            continue
        slot = table["slot"][row]
        one = {name: table[name][row] for name in ("kind", "slot", "blueprint")}
        one |= {"host": row // steps, "epoch": row % steps + 1, "contribution": None}
        if slot in slots:
            one["contribution"] = _last_contribution(table, row, steps, slot)
        found.append(one)
    return found


def _last_contribution(table: Table, row: int, steps: int, slot: str) -> float | None:
    """Return the last measured contribution of the seed that was planted in this row, until it is gone or the episode ends."""
    last = None
    for later in range(row, (row // steps + 1) * steps):
        if later > row and (table["op"][later] == "germinate" and table["slot"][later] == slot):
            break
        value = table[f"{slot}.contribution"][later]
        last = value if value is not None else last
    return last


def kinds(table: Table, never: Table) -> list[tuple[str, ...]]:
    """Return a row for each kind of host: kind, number of hosts, return and test accuracy beyond never growing, and what is
    planted most often; no rows if there is one kind, or very many."""
    kind_N = np.array(table["kind"][:: round(max(table["epoch"]))])
    names = sorted(set(kind_N.tolist()))
    if not 1 < len(names) <= MOST_KINDS:
        return []
    gains = {column: results(table, column) - results(never, column) for column in ("return", "test_accuracy")}
    chosen = {
        name: Counter(f"{one['blueprint']} in {one['slot']}" for one in plantings(table) if one["kind"] == name) for name in names
    }
    rows: list[tuple[str, ...]] = []
    for name in names:
        means = [_mean(gain_N[kind_N == name]) for gain_N in gains.values()]
        most = [
            f"{choice} ({count / chosen[name].total():.0%} of {counted(chosen[name].total(), 'seed')})"
            for choice, count in chosen[name].most_common(1)
        ]
        rows.append((name, str(int((kind_N == name).sum())), *means, *(most or ["nothing"])))
    return rows


def _mean(values: npt.NDArray[np.float64]) -> str:
    """Return the mean of differences, with its interval for two hosts or more; empty if one was not measured."""
    if not np.isfinite(values).all():
        return ""
    return signed(mean_interval(values)) if len(values) > 1 else f"{values[0]:+.1f}"


def failures(table: Table, never: Table, *, score: str = "accuracy") -> str:
    """Return sentences about hosts that end with a lower return than if they never grew, or with the lowest test accuracy,
    about seeds that were pruned, and about rollbacks."""
    worse_N = results(table, "return") - results(never, "return")
    hosts = np.flatnonzero(worse_N < 0)
    rolled = [round(host) for host, cause in zip(table["host"], table["rolled_back"], strict=True) if cause is not None]
    parts: list[str] = []
    if len(hosts):
        worst = hosts[np.argsort(worse_N[hosts])][:FEW]
        named = ", ".join(f"host {host} ({worse_N[host]:.1f})" for host in worst)
        less = "returns less than if it" if len(hosts) == 1 else "return less than if they"
        parts.append(
            f"{len(hosts)} of {counted(len(worse_N), 'host')} {less} never grew; the worst: {named}, in points of return."
        )
    else:
        parts.append(f"None of {counted(len(worse_N), 'host')} returns less than if it never grew.")
    parts += _lowest(table, never, score)
    refused = table.get("refused", [0] * len(table["op"]))
    pruned = [host for host, op, no in zip(table["host"], table["op"], refused, strict=True) if op == "prune" and not no]
    if pruned:
        parts.append(f"{counted(len(pruned), 'seed')} pruned, in {counted(len(set(pruned)), 'host')}.")
    parts.append(f"{counted(len(rolled), 'rollback')}." if rolled else "No rollbacks.")
    return " ".join(parts)


def _lowest(table: Table, never: Table, score: str) -> list[str]:
    """Return a sentence that names the hosts with the lowest test accuracy; none if that was not measured."""
    end_N = results(table, "test_accuracy")
    if not np.isfinite(end_N).all():
        return []
    over_N = end_N - results(never, "test_accuracy")
    named = ", ".join(f"host {host} ({end_N[host]:.1f} %, {over_N[host]:+.1f} pp)" for host in np.argsort(end_N)[:FEW])
    return [f"Lowest test {score}, and the difference to never growing: {named}."]


def rivals(report: Mapping[str, Any]) -> tuple[str, Interval, int] | None:
    """Return the best controller of an evaluation beside the policy: its name, the policy's return minus its own, and how many
    hosts it grew; None if there is none."""
    hosts: Mapping[str, Any] = report.get("hosts", {})
    others = {name: one["return"] for name, one in hosts.items() if not name.startswith(("policy", "search", "replay"))}
    own: Sequence[float] | None = hosts.get("policy", {}).get("return")
    if own is None or not others:
        return None
    best = max(others, key=lambda name: float(np.mean(others[name])))
    return best, mean_interval(np.array(own) - np.array(others[best])), len(own)


def rival_sentence(report: Mapping[str, Any]) -> str:
    """Return the sentence that compares the policy of an evaluation with its best rival; empty if that is never growing."""
    found = rivals(report)
    if found is None or found[0] == "wait":
        return ""
    name, difference, hosts = found
    name = name.partition(" (")[0]
    where = f"on the same {counted(hosts, 'host')}"
    if difference.low <= 0 <= difference.high:
        return f"its best rival is {name}: no clear difference in return ({signed(difference)} points, paired {where})"
    word = "more" if difference.mean > 0 else "less"
    amount = f"{abs(difference.mean):.1f} ± {difference.half_width:.1f}"
    return f"its best rival is {name}: the policy returns {amount} points {word}, paired {where}"
