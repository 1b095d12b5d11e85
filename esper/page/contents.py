"""Everything that the page of a run shows, read from its folder."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from esper.cli.help import as_typed
from esper.cli.overrides import config_of
from esper.config import Config, ConfigError
from esper.evaluation.held_out import ORACLE
from esper.evaluation.presentation import BestBaseline, best_baseline, oracle_sentence
from esper.files import FileError
from esper.page import best, costs, findings, lead
from esper.page.curves import HEALTH, SHOWN, Chart, curves, reward_tags, taught
from esper.page.evaluations import Evaluated, controllers, evaluations, head, largest, richest
from esper.page.lead import Grown
from esper.page.packing import packed, selection
from esper.page.seeds import seed_rows
from esper.page.status import Status, status_of
from esper.telemetry.jsonl import read_records, records_of
from esper.telemetry.traces import NEVER, Table, read_trace, steps_of, traced_evaluation, traced_updates
from esper.text import counted
from esper.training.config_io import dotted, flat, from_plain, to_plain
from esper.training.provenance import FILE, read
from esper.training.resume import load_newest

MOST_TRACES, MOST_HOSTS = 9, 64
"""Most traces of training on a page, and most hosts of each, which keep it at about a megabyte."""
MISSING = object()
NAMES = {"policy_greedy": "held-out hosts, most probable actions", "policy": "held-out hosts, sampled actions", NEVER: ""}
"""Names of the traces on held-out hosts; that of never growing serves as reference."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ControllerTable:
    """The table of all controllers of an evaluation."""

    title: str
    head: list[str]
    rows: list[list[str]]
    file: str
    figure: str


@dataclass(frozen=True, kw_only=True, slots=True)
class KindTable:
    """Results by kind of host."""

    rows: list[tuple[str, ...]]
    """See `findings.kinds`."""
    headline: str
    """Which accuracy they contain, see `findings.headline`; empty if none was measured, and they lack that column."""
    words: str
    """Sentence that explains the names of kinds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """The contents of a page."""

    title: str
    subtitle: str
    status: Status
    score: str
    sentences: list[str]
    """What the policy did and was worth on held-out hosts; empty without their traces."""
    failures: list[str]
    """Where it fails on the hosts that the page shows; empty without their traces."""
    mistakes: list[str]
    """Likely mistakes in the data."""
    decline: str
    """Sentence on a policy that has become worse; empty without one."""
    best: str
    """Sentence that names the best checkpoint; empty before the first update."""
    cards: list[findings.Card]
    kinds: KindTable | None
    part: str
    """Name of a part of a host, such as "block"."""
    comparison: ControllerTable | None
    """The evaluation of the newest policy with most controllers."""
    oracle: bool
    """Whether it has an oracle."""
    evaluations: list[str]
    """Files of the other evaluations, of any of the run's policies."""
    curves: dict[str, list[Chart]]
    taught: int
    """Last update in which the policy imitated its teacher; 0 without one."""
    seeds: tuple[str, list[list[str]]]
    """Table of seeds by blueprint, slot and kind: whose hosts, and rows; no rows without hosts that train."""
    terms: list[Chart]
    """Reward by term."""
    traces: list[dict[str, Any]]
    events: bool
    """Whether an event in the data occurs in the traces."""
    anomalies: list[str]
    costs: costs.Rows
    changed: list[tuple[str, str, str]]
    """Key, value and default of what differs from the defaults."""
    config: list[tuple[str, str]]
    """All keys."""
    history: list[dict[str, Any]]
    """The records of `run.json`."""
    folder: str
    """Its path, quoted for a shell."""


def gather(folder: Path, hosts: int | None = None) -> Contents:
    """Read the folder of a run, even one that still runs or was killed, with traces of `hosts` held-out hosts (None: the most).

    Raises:
        ConfigError: the checkpoint was written by another version.
        FileError: a file is damaged.
    """
    state = load_newest(folder)
    assert state is not None, "the caller has looked"
    config = from_plain(state["config"])
    score = config.task.build_objective().score
    records, prices = _metrics(folder), costs.costs_of(folder)
    update, held_out = traced_evaluation(folder, hosts, done=state["update"])
    tables = {name: costs.with_flops(read_trace(path), prices) for name, path in held_out.items() if name in NAMES}
    history = [one | {"command": _repeatable(one["command"])} for one in read(folder / FILE)]
    status = status_of(folder, config, state["update"], history)
    _mark_killed(history if status.state == "killed" else history[:-1])  # a later command resumed what a kill ended
    found = evaluations(folder)
    evaluated, shown = richest(found, state["update"]), _grown(tables.get)
    worth, after = _most_hosts(shown, update, largest(found, state["update"]))
    baseline, traces = _baseline(evaluated, after), _traces(folder, tables, update)
    part = config.host.part.partition(" ")[0]
    return Contents(
        title=config.title().partition(":")[0],
        subtitle=_subtitle(config, status),
        status=status,
        score=score,
        sentences=lead.sentences(
            worth,
            shown,
            name=f"agent={config.choice('agent')} after {counted(after, 'update')}",
            score=score,
            part=part,
            host=prices.get("host", {}),
            baseline=baseline,
            oracle=oracle_sentence(evaluated.report) if evaluated and evaluated.update == after else "",
        ),
        failures=lead.failures(shown, score=score, training=lead.rollbacks(records)) if shown else [],
        mistakes=list(history[-1].get("mistakes") or []) if history else [],
        decline=best.decline(records, state.get("best")),
        best=best.best_update(state.get("best")),
        cards=_cards(worth, baseline, score, prices.get("host", {})) if worth else [],
        kinds=_kinds(shown, part) if shown else None,
        part=part,
        comparison=_comparison(evaluated, score),
        oracle=evaluated is not None and ORACLE in evaluated.report["hosts"],
        evaluations=[one.file for one in found if one is not evaluated],
        curves=_curves(records, score, config),
        taught=taught(records),
        seeds=_seeds(folder, tables, update, config.agent.num_twins),
        terms=curves(records, reward_tags(records), score),
        traces=traces,
        events=any("events" in one["columns"] for one in traces),
        anomalies=_anomalies(folder),
        costs=_costs(folder, records, history, config, worth, evaluated),
        changed=_changed(config),
        config=[(key, as_typed(value)) for key, value in sorted(flat(to_plain(config)).items())],
        history=history,
        folder=shlex.quote(str(folder)),
    )


def _curves(records: Sequence[Mapping[str, float]], score: str, config: Config) -> dict[str, list[Chart]]:
    """Return the groups of curves that have a curve. Healthy values were found with the default agent; others are told so."""
    found = {group: curves(records, tags, score, healthy=group == HEALTH) for group, tags in SHOWN.items()}
    if any(key.startswith("agent") for key, *_ in _changed(config)):
        found[HEALTH] = [
            replace(one, healthy=f"{one.healthy} (Found with the default agent.)") if one.healthy else one
            for one in found[HEALTH]
        ]
    return {group: charts for group, charts in found.items() if charts}


def _costs(
    folder: Path,
    records: Sequence[Mapping[str, float]],
    history: Sequence[Mapping[str, Any]],
    config: Config,
    worth: Grown | None,
    evaluated: Evaluated | None,
) -> costs.Rows:
    """Return what the run and its networks cost; see `costs.rows`."""
    grown_N = findings.results(worth.policy, "flops_kept") if worth else None
    rows = {row["controller"]: row for row in evaluated.report.get("rows", ())} if evaluated else None
    return costs.rows(folder, records, history, hosts=config.hosts, steps=config.steps, grown_N=grown_N, evaluated=rows)


def _grown(table: Callable[[str], Table | None]) -> Grown | None:
    """Return the results of the policy and of never growing, from a function of their names; None if one is missing."""
    policy, never = table("policy"), table(NEVER)
    return Grown(policy=policy, greedy=table("policy_greedy"), never=never) if policy and never else None


def _kinds(shown: Grown, part: str) -> KindTable | None:
    """Return the results by kind of host; None if there is one kind, or very many."""
    rows = findings.kinds(shown.policy, shown.never)
    if not rows:
        return None
    words = findings.kind_words(max(row[0] for row in rows), part)
    if not any(row[3] for row in rows):
        return KindTable(rows=[(*row[:3], *row[4:]) for row in rows], headline="", words=words)
    return KindTable(rows=rows, headline=findings.headline(shown.policy, shown.never), words=words)


def _most_hosts(shown: Grown | None, update: int, evaluated: Evaluated | None) -> tuple[Grown | None, int]:
    """Return the results that the page starts with, and the update of their policy: those of the newest policy on the most hosts.

    Args:
        shown: results of the hosts that the page shows.
        update: the update of their policy.
        evaluated: the evaluation of the newest policy on the most hosts.
    """
    other = _grown(evaluated.table) if evaluated else None
    if evaluated and other and (shown is None or (evaluated.update, other.hosts) > (update, shown.hosts)):
        return other, evaluated.update
    return shown, update


def _baseline(evaluated: Evaluated | None, update: int) -> BestBaseline | None:
    """Return the best baseline of an evaluation of the policy after this update; None if that is never growing, with which the
    page compares anyway."""
    found = best_baseline(evaluated.report) if evaluated and evaluated.update == update else None
    return found if found and found.name != NEVER else None


def _comparison(evaluated: Evaluated | None, score: str) -> ControllerTable | None:
    if evaluated is None:
        return None
    columns, rows = head(evaluated.report, score), controllers(evaluated.report)
    filled = [any(row[place] for row in rows) for place in range(len(columns))]  # a sandbox has no accuracy
    return ControllerTable(
        title=str(evaluated.report.get("title", "")).replace("\n", ", "),
        head=[name for name, shown in zip(columns, filled, strict=True) if shown],
        rows=[[cell for cell, shown in zip(row, filled, strict=True) if shown] for row in rows],
        file=evaluated.file,
        figure=evaluated.figure,
    )


def _mark_killed(history: list[dict[str, Any]]) -> None:
    """Mark commands that have ended without a record of their end."""
    for one in history:
        if one["status"] == "running":
            one["status"] = "killed"


def _repeatable(command: str) -> str:
    """Return a recorded command as it is typed for another run: without the folder, which this run or its sweep has taken, and
    without what the command added itself."""
    script, *arguments = shlex.split(command)
    module = f"python -m esper.{script.removesuffix('.py')}" if script == "train.py" else script
    ours = ("hydra.run.dir=", "hydra.sweep.dir=", "hydra.output_subdir=")
    return " ".join([module, *(shlex.quote(one) for one in arguments if not one.startswith(ours))])


def _metrics(folder: Path) -> list[dict[str, float]]:
    """Return the metrics and times of all written updates."""
    if not (folder / "metrics.jsonl").exists():
        return []
    records = read_records(folder / "metrics.jsonl")
    timed = folder / "times.jsonl"
    times = {record["update"]: record for record in read_records(timed)} if records and timed.exists() else {}
    return [times.get(record["update"], {}) | record for record in records]


def _subtitle(config: Config, status: Status) -> str:
    state = "" if status.state in ("finished", "") else f", {status.outcome}"
    hosts = f"{counted(config.hosts, 'host')} x {counted(config.steps, 'epoch')}"
    reward = "" if "task" in config.env.ignores else f"reward {config.choice('reward')}, "
    return f"{status.updates} of {hosts}, {reward}seed {config.seed}{state}"


def _cards(grown: Grown, baseline: BestBaseline | None, score: str, host: Mapping[str, float]) -> list[findings.Card]:
    cards = findings.cards(grown.policy, grown.never, score=score, host=host, greedy=grown.greedy)
    if baseline:
        where = "" if baseline.hosts == grown.hosts else f", on {counted(baseline.hosts, 'host')}"
        best_of = f"the best of {baseline.among} baselines" if baseline.among > 1 else "the baseline"
        label = f"points of return beyond {best_of}, {baseline.name}{where}"
        cards.insert(2, findings.Card(value=baseline.difference.signed, label=label))
    return cards


def _traces(folder: Path, tables: Mapping[str, Table], update: int) -> list[dict[str, Any]]:
    """Return the traces for the slider: training first, then held-out hosts."""
    updates = traced_updates(folder)
    chosen = selection(list(updates), MOST_TRACES)
    shown = [
        packed(*_training(one, read_trace(updates[one])), tick=f"{'' if rank else 'update '}{one}")
        for rank, one in enumerate(chosen)
    ]
    never = tables.get(NEVER)
    named = {name: text for name, text in NAMES.items() if name in tables and text}
    return shown + [
        packed(f"after update {update}, {text}", tables[name], never, tick=text.replace(" hosts", "").replace(" actions", ""))
        for name, text in named.items()
    ]


def _training(update: int, table: Table) -> tuple[str, Table]:
    """Return the label of a trace of training, and the trace of its first hosts."""
    steps = steps_of(table)
    hosts = len(table["epoch"]) // steps
    shown = "training hosts" if hosts <= MOST_HOSTS else f"the first {MOST_HOSTS} of {hosts:,} training hosts"
    return f"update {update}, {shown}", {name: values[: MOST_HOSTS * steps] for name, values in table.items()}


def _seeds(folder: Path, tables: Mapping[str, Table], update: int, twins: int) -> tuple[str, list[list[str]]]:
    """Return the table of seeds on held-out hosts, else in the last update with a trace."""
    if "policy" in tables:
        return f"Held-out hosts after {counted(update, 'update')}.", seed_rows(tables["policy"])
    traced = traced_updates(folder)
    if not traced:
        return "", []
    newest = max(traced)
    return f"Training hosts of update {newest}.", seed_rows(read_trace(traced[newest]), twins)


def _anomalies(folder: Path) -> list[str]:
    path = folder / "events.jsonl"
    if not path.exists():
        return []
    found = [record for _, record in records_of(path) if record.get("event") == "anomaly"]
    try:
        return [f"update {one['update']}: {one['kind'].replace('_', ' ')}: {one['meaning']}; {one['remedy']}" for one in found]
    except (KeyError, AttributeError) as error:
        raise FileError(f"{path} is damaged: move it away; the page then lacks anomalies") from error


def _changed(config: Config) -> list[tuple[str, str, str]]:
    """Return what differs from the defaults: key, value, default. Keys of another option of a group are compared with those
    of that option."""
    own, default = to_plain(config), to_plain(config_of([]))
    chosen = {group: choice for group, choice in own["choices"].items() if choice != default["choices"][group]}
    rows = [(group, as_typed(choice), as_typed(default["choices"][group])) for group, choice in chosen.items()]
    try:
        alike = dotted(to_plain(config_of([f"{group}={as_typed(choice)}" for group, choice in chosen.items()]))["values"])
    except ConfigError:  # an option such as host=custom has keys without a default
        alike = dotted(default["values"])
    for key, value in sorted(dotted(own["values"]).items()):
        if key != "resume" and alike.get(key, MISSING) != value:
            rows.append((key, as_typed(value), "" if key not in alike else as_typed(alike[key])))
    return rows
