"""The first lines of a page: whether growing paid, what it cost, what the policy does, and where it fails."""

# N hosts

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from esper.evaluation.presentation import BestBaseline
from esper.page.findings import claim, gain, habits, headline, results, verdict
from esper.telemetry.traces import Table, carried_out
from esper.text import counted, percent

TINY = 0.05
"""Loss of test accuracy below which hosts count as equal [pp]."""
FEW = 3
"""Most hosts that a sentence names for their results."""
MOST_NAMED = 6
"""Most hosts that a sentence names for a pruned seed."""
ROLLBACKS = "governor/rollbacks_"


@dataclass(frozen=True, kw_only=True, slots=True)
class Grown:
    """Results on the same held-out hosts, grown by a policy and not grown."""

    policy: Table
    """With sampled actions, as in training."""
    greedy: Table | None
    """With the most probable actions; None where the agent has no probabilities."""
    never: Table

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return len(results(self.policy, "return"))

    @property
    def headline(self) -> str:
        """Which accuracy to show; see `findings.headline`."""
        return headline(self.policy, self.never, *([self.greedy] if self.greedy else []))


def sentences(
    worth: Grown | None,
    shown: Grown | None,
    *,
    name: str,
    score: str,
    part: str,
    host: Mapping[str, float],
    baseline: BestBaseline | None,
    oracle: str,
) -> list[str]:
    """Return the lines at the top of a page, the most important first.

    Args:
        worth: results of the largest set of hosts, from which the numbers come; None without results.
        shown: traces of the hosts that the page shows; None without traces.
        name: the policy in words.
        score: name of the hosts' score.
        part: name of a part of the host, such as "block".
        host: parameters and FLOPs of the host, empty if unknown.
        baseline: best baseline of the newest evaluation; None without one.
        oracle: comparison with an oracle in words, see `esper.evaluation.presentation.oracle_sentence`; empty without one.
    """
    if worth is None:
        return []
    lines = [verdict(worth.policy, worth.never, name=name, score=score)]
    lines += _most_probable(worth, score) + _price(worth, host)
    if baseline:
        lines.append(
            f"Its best baseline in esper.evaluate is {baseline.name}: the policy shows "
            f"{claim(baseline.difference, 'return', 'points')} on the same {counted(baseline.hosts, 'host')}"
            f"{'; ' * bool(baseline.caution)}{baseline.caution}."
        )
    lines += [f"{oracle[0].upper()}{oracle[1:]}."] if oracle else []
    if shown:
        text = " ".join(habits(shown.policy, part))
        if shown.hosts != worth.hosts:
            text = f"On the {shown.hosts} held-out hosts shown below, {text[0].lower()}{text[1:]}"
        lines.append(text)
    return lines


def _most_probable(grown: Grown, score: str) -> list[str]:
    """Return the sentence that compares sampled with most probable actions; none if one was not measured."""
    if grown.greedy is None:
        return []
    parts: list[str] = []
    kind = grown.headline
    for column, what, unit in ((f"{kind}_accuracy", f"{kind} {score}", "%"), ("return", "return", "points")):
        if difference := gain(grown.greedy, grown.policy, column):
            own, other = (results(table, column).mean() for table in (grown.greedy, grown.policy))
            over = f"{difference.signed} {'pp' if unit == '%' else unit}"
            parts.append(
                f"{own:.1f} instead of {other:.1f} {unit} {what} ({over})".replace(" points return", " points of return")
            )
    if not parts:
        return []
    lead = "These are sampled actions, as in training. "
    own_N, never_N = (results(table, "return") for table in (grown.greedy, grown.never))
    if results(grown.greedy, "parameters_kept").max() == 0 and np.array_equal(own_N, never_N):
        return [f"{lead}With its most probable actions, the policy keeps no seed, which is the same as never growing."]
    return [f"{lead}The most probable actions give {' and '.join(parts)}."]


def _price(grown: Grown, host: Mapping[str, float]) -> list[str]:
    """Return the sentence on the parameters and FLOPs of inference that growing adds; none if they are unknown."""
    kept_N, flops_N = results(grown.policy, "parameters_kept"), results(grown.policy, "flops_kept")
    if not (host.get("params") and np.isfinite(kept_N).all()):
        return []
    share = f"{percent(kept_N.mean() / host['params'])} of the host's {host['params']:,}"
    text = f"It keeps {kept_N.mean():,.0f} parameters per host, {share}"
    if host.get("flops") and np.isfinite(flops_N).all():
        more = "raises" if flops_N.mean() > host["flops"] else "leaves"
        factor = f" to {flops_N.mean():,.0f} ({flops_N.mean() / host['flops']:.4g} times)" if more == "raises" else ""
        text += f", and {more} the FLOPs per sample {'from' if factor else 'at'} {host['flops']:,}{factor}"
    return [f"{text}."]


def failures(grown: Grown, *, score: str = "accuracy", training: str = "") -> list[str]:
    """Return sentences about hosts that end with a lower return than if they never grew, or with the lowest accuracy (see
    `headline`), about seeds that were pruned, and about rollbacks.

    Args:
        grown: traces of the hosts.
        score: name of the hosts' score.
        training: rollbacks in training in words, see `rollbacks`.
    """
    worse_N = results(grown.policy, "return") - results(grown.never, "return")
    hosts = np.flatnonzero(worse_N < -TINY)
    parts = [f"None of {counted(len(worse_N), 'host')} returns less than if it never grew."]
    if len(hosts):
        worst = hosts[np.argsort(worse_N[hosts])][:FEW]
        named = ", ".join(f"host {host} ({worse_N[host]:.1f})" for host in worst)
        less = "returns less than if it" if len(hosts) == 1 else "return less than if they"
        parts = [f"{len(hosts)} of {counted(len(worse_N), 'host')} {less} never grew; the worst: {named}, in points of return."]
    column, named = f"{grown.headline}_accuracy", f"{grown.headline} {score}"
    end_N = results(grown.policy, column)
    parts += _losses(end_N - results(grown.never, column), named)
    lowest = np.argsort(end_N, kind="stable").tolist() if np.isfinite(end_N).all() else []
    parts += _lowest(grown, lowest[:FEW], named) + _pruned(grown, lowest, named)
    rolled = sum(cause is not None for cause in grown.policy["rolled_back"])
    return [*parts, f"{counted(rolled, 'rollback') if rolled else 'No rollbacks'} on these hosts{training}."]


def _losses(gain_N: npt.NDArray[np.float64], score: str) -> list[str]:
    """Return a sentence on the hosts that lose accuracy against never growing; none if no host does."""
    hosts = np.flatnonzero(gain_N < -TINY)
    if not len(hosts):
        return []
    worst = hosts[np.argsort(gain_N[hosts], kind="stable")][:FEW]
    named = ", ".join(f"host {host} ({gain_N[host]:.1f} pp)" for host in worst)
    lose, most = "loses" if len(hosts) == 1 else "lose", "; the most" * (len(hosts) > FEW)
    return [f"{len(hosts)} of {counted(len(gain_N), 'host')} {lose} {score} against never growing{most}: {named}."]


def _lowest(grown: Grown, hosts: Sequence[int], score: str) -> list[str]:
    """Return a sentence with the results of the hosts of lowest accuracy; none if that was not measured."""
    if not hosts:
        return []
    column = f"{grown.headline}_accuracy"
    end_N, never_N = (results(table, column) for table in (grown.policy, grown.never))
    greedy_N = None if grown.greedy is None else results(grown.greedy, column)
    named: list[str] = []
    for host in hosts:
        others = [] if greedy_N is None else [(greedy_N[host], "with the most probable actions")]
        others.append((never_N[host], "if it never grows"))
        beside = ", ".join(f"{value:.1f} % {text}" for value, text in others)
        named.append(f"host {host} with {end_N[host]:.1f} % ({beside})")
    return [f"Lowest {score}: {'; '.join(named)}."]


def _pruned(grown: Grown, lowest: Sequence[int], score: str) -> list[str]:
    """Return a sentence on pruned seeds: in which hosts, whether these have the lowest accuracy, and what the most probable
    actions prune; none without pruned seeds."""
    found = pruned(grown.policy)
    hosts = sorted({host for host, _ in found})
    if not found:
        return []
    seeds = f"{counted(len(found), 'seed')} {'was' if len(found) == 1 else 'were'} pruned"
    text = f"{seeds}, in {counted(len(hosts), 'host')}"
    if len(hosts) <= MOST_NAMED:
        text = f"{seeds}, in {'host' if len(hosts) == 1 else 'hosts'} {_listed(hosts)}"
        least = max(FEW, len(hosts))
        among = [host for host in hosts if host in lowest[:least]]
        if len(lowest) > len(hosts) and set(hosts) == set(lowest[: len(hosts)]):
            text += f", the {'host' if len(hosts) == 1 else f'{len(hosts)} hosts'} of lowest {score}"
        elif len(lowest) > least and among:
            text += f"; {_listed(among)} {'is' if len(among) == 1 else 'are'} among the {least} of lowest {score}"
    if grown.greedy is not None:
        other = len(pruned(grown.greedy))
        text += f"{_drawn(found)}; the most probable actions prune {other or 'none'}"
    return [f"{text}."]


def pruned(table: Table) -> list[tuple[int, float | None]]:
    """Return the host of every seed that a controller pruned, and the probability of that action if the trace has it."""
    probability = table.get("probability", [None] * len(table["op"]))
    return [(round(table["host"][row]), probability[row]) for row in carried_out(table, "prune")]


def _drawn(found: Sequence[tuple[int, float | None]]) -> str:
    """Return the probabilities with which prunings were sampled, as part of a sentence; empty if one is unknown."""
    known = sorted(chance for _, chance in found if chance is not None)
    if not known or len(known) < len(found):
        return ""
    low, high = (percent(chance) for chance in (known[0], known[-1]))
    if len(known) == 1:
        return f"; that action had a probability of {low}"
    return f"; these actions had probabilities of {f'{low} to ' if low != high else ''}{high}"


def rollbacks(records: Sequence[Mapping[str, float]]) -> str:
    """Return the rollbacks in training as the end of a sentence, such as "; 2 in training, the last in update 42 (divergence 2)",
    and what that means; empty if they were not recorded."""
    causes: Counter[str] = Counter()
    newest, known = 0, False
    for record in records:
        found = {tag.removeprefix(ROLLBACKS): round(value) for tag, value in record.items() if tag.startswith(ROLLBACKS)}
        known = known or bool(found)
        causes.update(found)
        newest = round(record["update"]) if any(found.values()) else newest
    if not known:
        return ""
    where = "in training" if len(records) == records[-1]["update"] else "in the written updates of training"
    if not newest:
        return f", and none {where}"
    named = ", ".join(f"{cause} {count}" for cause, count in causes.items() if count)
    return (
        f"; {causes.total()} {where}, the last in update {newest} ({named}): the governor restored an earlier state of the host"
    )


def _listed(hosts: Sequence[int]) -> str:
    names = [str(host) for host in hosts]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
