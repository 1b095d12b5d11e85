"""What a policy did on held-out hosts, and what it was worth: intervals and sentences, from traces."""

# N hosts

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.stats.intervals import Interval, mean_interval, with_sign
from esper.task.kinds import PASSES, STAYS, condensed
from esper.telemetry.traces import Table, carried_out, slots_of, steps_of
from esper.text import counted, percent

MOST_KINDS = 8
"""Most kinds of hosts that are told apart."""
FEW = 5
"""Seeds from which a most frequent choice is named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A number at the top of the page."""

    value: str
    label: str


def results(table: Table, column: str) -> npt.NDArray[np.float64]:
    """Return a result of every host `[N]`, NaN where it was not measured."""
    steps = steps_of(table)
    values = table.get(column, [None] * len(table["epoch"]))[steps - 1 :: steps]
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def headline(*tables: Table) -> str:
    """Return which accuracy of the hosts to show: "online", the mean test accuracy over the host epochs, if it was measured, as
    where the reward pays for it; else "test", that of the network that is kept. `f"{...}_accuracy"` is its column."""
    return "online" if all(np.isfinite(results(table, "online_accuracy")).all() for table in tables) else "test"


def gain(table: Table, never: Table, column: str) -> Interval | None:
    """Return the mean difference between a controller and never growing on the same hosts; None if it was not measured."""
    difference_N = results(table, column) - results(never, column)
    return mean_interval(difference_N) if np.isfinite(difference_N).all() else None


def cards(table: Table, never: Table, *, score: str, host: Mapping[str, float], greedy: Table | None = None) -> list[Card]:
    """Return the numbers at the top of the page.

    Args:
        table: results of the policy.
        never: those of never growing.
        score: name of the hosts' score.
        host: parameters and FLOPs of the host, empty if unknown.
        greedy: results of the policy with its most probable actions.
    """
    found: list[Card] = []
    kind = headline(table, never, *([greedy] if greedy else []))
    column = f"{kind}_accuracy"
    if better := gain(table, never, column):
        found.append(Card(value=f"{better.signed} pp", label=f"{kind} {score} beyond never growing"))
    if worth := gain(table, never, "return"):
        found.append(Card(value=worth.signed, label="points of return beyond never growing"))
    if better:
        other = f"; {results(greedy, column).mean():.1f} % with the most probable actions" if greedy else ""
        what = f"mean test {score} over the host epochs" if kind == "online" else f"test {score} of what was kept"
        found.append(Card(value=f"{results(table, column).mean():.1f} %", label=f"{what}{other}"))
    kept_N, flops_N = results(table, "parameters_kept"), results(table, "flops_kept")
    if np.isfinite(kept_N).all():
        scale = f", {percent(kept_N.mean() / host['params'])} of the host's {host['params']:,}" if host.get("params") else ""
        found.append(Card(value=f"{kept_N.mean():,.0f}", label=f"parameters kept per host{scale}"))
    if np.isfinite(flops_N).all() and host.get("flops"):
        label = f"FLOPs per sample after growing: {flops_N.mean():,.0f} instead of {host['flops']:,}"
        found.append(Card(value=f"{flops_N.mean() / host['flops']:.3g} x", label=label))
    return found


def verdict(table: Table, never: Table, *, name: str, score: str) -> str:
    """Return the sentence that says whether growing paid on held-out hosts: in accuracy, see `headline`, and in return, which
    charges rent for parameters."""
    hosts, kind = len(results(table, "return")), headline(table, never)
    worth, better = gain(table, never, "return"), gain(table, never, f"{kind}_accuracy")
    where = f"on {counted(hosts, 'held-out host')} (mean ± half of the 95 % interval, paired by host)"
    claims = [
        claim(found, what, unit)
        for found, what, unit in ((better, f"{kind} {score}", "pp"), (worth, "return", "points"))
        if found is not None
    ]
    if not claims:
        return f"{name} could not be compared with never growing {where}."
    return f"Compared with never growing, {name} shows {' and '.join(claims)} {where}."


def claim(difference: Interval, what: str, unit: str) -> str:
    """Return a difference in words, after "shows", as in "8.1 ± 2.0 pp more test accuracy"."""
    if difference.low <= 0 <= difference.high:
        return f"no clear difference in {what} ({difference.signed} {unit})"
    word = "more" if difference.mean > 0 else "less"
    return f"{abs(difference.mean):.1f} ± {difference.half_width:.1f} {unit} {word} {what}"


def habits(table: Table, part: str = "part") -> list[str]:
    """Return sentences about what the controller plants: how many seeds, when, where, and whether that depends on the host.

    Args:
        table: the trace.
        part: name of a part of the host, such as "block".
    """
    planted = plantings(table)
    hosts = len(results(table, "return"))
    if not planted:
        return ["It plants nothing."]
    per_host = Counter(one["host"] for one in planted)
    most = Counter((one["blueprint"], one["slot"]) for one in planted).most_common(2)
    shares = [(" in ".join(choice), count / len(planted)) for choice, count in most]
    choices = " and ".join(f"{choice} ({percent(share)} of all seeds)" for choice, share in shares)
    half = sorted(one["epoch"] for one in planted)[(len(planted) - 1) // 2]
    by_then = sum(one["epoch"] <= half for one in planted)
    sentences = [
        f"It plants in {len(per_host)} of {hosts} hosts, {len(planted) / hosts:.1f} seeds per host, most often {choices}.",
        *(slot_words(most[0][0][1], part) if slots_of(table) else []),
        f"{by_then} of {counted(len(planted), 'seed')} {'is' if by_then == 1 else 'are'} planted "
        f"{'in the first' if half == 1 else f'by epoch {half}'} of {counted(round(max(table['epoch'])), 'epoch')}.",
    ]
    by_kind: dict[str, Counter[str]] = {}
    for one in planted:
        by_kind.setdefault(condensed(str(one["kind"])), Counter())[f"{one['blueprint']} in {one['slot']}"] += 1
    if 1 < len(by_kind) <= MOST_KINDS and all(map(_has_favourite, by_kind.values())):
        alike = len({counts.most_common(1)[0][0] for counts in by_kind.values()}) == 1
        choice = "is the same for all kinds of hosts" if alike else "differs between kinds of hosts (see the table)"
        sentences.append(f"Its most frequent choice {choice}.")
    return sentences


def _has_favourite(counts: Counter[str]) -> bool:
    """Return whether these seeds are enough to name a most frequent choice, and one choice is."""
    first, second = (*(count for _, count in counts.most_common(2)), 0)[:2]
    return counts.total() >= FEW and first > second


def _most_often(counts: Counter[str]) -> str:
    """Return the most frequent choice of some seeds, for a table."""
    (first, count), (_, second) = (*counts.most_common(2), ("nothing", 0), ("", 0))[:2]
    seeds = counted(counts.total(), "seed")
    return "nothing" if not count else f"{first} ({count} of {seeds})" if count > second else f"no favourite ({seeds})"


def slot_words(slot: str, part: str) -> list[str]:
    """Return a sentence that explains the name of a slot such as r0c1; none for other names."""
    found = re.fullmatch(r"r(\d+)c(\d+)", slot)
    if not found:
        return []
    where = f"row {found[1]}, column {found[2]}"
    rest = f"Rows, columns and {part}s are counted from 0."
    return [f"Slot {slot} ({where}) is a place for a seed in {part} {found[2]} of the host. {rest}"]


def kind_words(kind: str, part: str) -> str:
    """Return a sentence that explains kinds, by the example of one."""
    events = " Events that pass are undone some epochs later; one that stays is not." if kind.endswith((STAYS, PASSES)) else ""
    letters = re.match(r"[ox]+(?=,| |$)", kind)
    if not letters:
        return f"A kind names what sets these hosts apart; the controller is not told.{events}"
    return (
        f"A kind such as {letters[0]} has one letter per {part}, in forward order: o for an intact {part}, x for one with a "
        f"built-in defect, which a seed in the right slot makes up for. The controller is not told the kind.{events}"
    )


def plantings(table: Table) -> list[dict[str, Any]]:
    """Return the seeds planted: host, kind, epoch, slot and blueprint."""
    steps = steps_of(table)
    return [
        {name: table[name][row] for name in ("kind", "slot", "blueprint")} | {"host": row // steps, "epoch": row % steps + 1}
        for row in carried_out(table, "germinate")
    ]


def kinds(table: Table, never: Table) -> list[tuple[str, ...]]:
    """Return a row for each kind of host: kind, number of hosts, return and accuracy (see `headline`) beyond never growing, and
    what is planted most often; no rows if there is one kind, or very many."""
    kind_N = np.array([condensed(str(kind)) for kind in table["kind"][:: steps_of(table)]])
    names = sorted(set(kind_N.tolist()))
    if not 1 < len(names) <= MOST_KINDS:
        return []
    gains = {
        column: results(table, column) - results(never, column) for column in ("return", f"{headline(table, never)}_accuracy")
    }
    chosen = {
        name: Counter(f"{one['blueprint']} in {one['slot']}" for one in plantings(table) if condensed(str(one["kind"])) == name)
        for name in names
    }
    rows: list[tuple[str, ...]] = []
    for name in names:
        means = [_mean(gain_N[kind_N == name]) for gain_N in gains.values()]
        rows.append((name, str(int((kind_N == name).sum())), *means, _most_often(chosen[name])))
    return rows


def _mean(values: npt.NDArray[np.float64]) -> str:
    """Return the mean of differences, with its interval for two hosts or more; empty if one was not measured."""
    if not np.isfinite(values).all():
        return ""
    return mean_interval(values).signed if len(values) > 1 else with_sign(float(values[0]))
