"""Everything that the page of a run shows, read from its folder."""

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esper.checkpoint import Checkpoints, load_run
from esper.cli.help import as_typed
from esper.cli.overrides import config_of
from esper.config import CHECKPOINTS, Config, ConfigError
from esper.page import findings
from esper.page.curves import SHOWN, Chart, curves, reward_tags
from esper.page.packing import packed, selection
from esper.page.seeds import seed_rows
from esper.telemetry.jsonl import read_records
from esper.telemetry.seed_table import legend_of
from esper.telemetry.tags import PHASES
from esper.telemetry.text import counted
from esper.telemetry.traces import Table, read_trace, traced_evaluation, traced_updates
from esper.training.config_io import dotted, flat, from_plain, to_plain
from esper.training.estimate import in_bytes
from esper.training.provenance import FILE, read

MOST_TRACES = 9
"""Most traces of training on a page, which keeps it below a megabyte."""
NEVER = "wait"
MISSING = object()
NAMES = {"policy_greedy": "held-out hosts, most probable actions", "policy": "held-out hosts, sampled actions", NEVER: ""}
"""Names of the traces on held-out hosts; that of never growing serves as reference."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """The contents of a page."""

    title: str
    subtitle: str
    score: str
    sentences: list[str]
    """What the policy did and was worth on held-out hosts; empty without their traces."""
    cards: list[findings.Card]
    kinds: list[tuple[str, ...]]
    """Results by kind of host, see `findings.kinds`."""
    curves: dict[str, list[Chart]]
    seeds: tuple[str, str, list[list[str]]]
    """Table of seeds by blueprint, slot and kind: whose hosts, legend, rows; no rows without hosts that train."""
    terms: list[Chart]
    """Reward by term."""
    traces: list[dict[str, Any]]
    anomalies: list[str]
    costs: list[tuple[str, str]]
    changed: list[tuple[str, str, str]]
    """Key, value and default of what differs from the defaults."""
    config: list[tuple[str, str]]
    """All keys."""
    history: list[dict[str, Any]]
    """The records of `run.json`."""
    folder: str


def gather(folder: Path) -> Contents:
    """Read the folder of a run; it may still be training, or have been killed.

    Raises:
        ConfigError: the checkpoint was written by another version.
        FileError: a file is damaged.
    """
    newest = Checkpoints(folder / CHECKPOINTS).latest()
    assert newest is not None, "the caller has looked"
    state = load_run(newest)
    config = from_plain(state["config"])
    score = config.task.build_objective().score
    records = _metrics(folder)
    update, held_out = traced_evaluation(folder)
    tables = {name: read_trace(path) for name, path in held_out.items() if name in NAMES}
    history = [one | {"command": _repeatable(one["command"])} for one in read(folder / FILE)]
    agent = config.choice("agent")
    return Contents(
        title=f"{agent} on {config.choice('task')}",
        subtitle=_subtitle(config, state["update"], history),
        score=score,
        sentences=_sentences(folder, tables, update, agent, score),
        cards=_cards(folder, tables, score),
        kinds=findings.kinds(tables["policy"], tables[NEVER]) if {"policy", NEVER} <= tables.keys() else [],
        curves={group: found for group, tags in SHOWN.items() if (found := curves(records, tags, score))},
        seeds=_seeds(folder, tables, update, score),
        terms=curves(records, reward_tags(records), score),
        traces=_traces(folder, tables, update),
        anomalies=_anomalies(folder),
        costs=_costs(folder, records, history),
        changed=_changed(config),
        config=[(key, as_typed(value)) for key, value in sorted(flat(to_plain(config)).items())],
        history=history,
        folder=str(folder),
    )


def _repeatable(command: str) -> str:
    """Return a recorded command as it is typed for another run: without the folder, which this run has taken."""
    script, *arguments = shlex.split(command)
    module = f"python -m esper.{script.removesuffix('.py')}" if script == "train.py" else script
    return " ".join([module, *(shlex.quote(one) for one in arguments if not one.startswith("hydra.run.dir="))])


def _metrics(folder: Path) -> list[dict[str, float]]:
    """Return the metrics and times of all written updates."""
    if not (folder / "metrics.jsonl").exists():
        return []
    records = read_records(folder / "metrics.jsonl")
    times = {record["update"]: record for record in read_records(folder / "times.jsonl")} if records else {}
    return [times.get(record["update"], {}) | record for record in records]


def _subtitle(config: Config, update: int, history: Sequence[Mapping[str, Any]]) -> str:
    status = history[-1].get("status", "") if history else ""
    state = {"finished": "", "running": ", not finished when this page was written"}.get(status, f", {status}")
    updates = f"{update} of {config.updates} updates" if update < config.updates else counted(update, "update")
    hosts = f"{counted(config.hosts, 'host')} x {counted(config.steps, 'epoch')}"
    return f"{updates} of {hosts}, reward {config.choice('reward')}, seed {config.seed}{state}"


def _sentences(folder: Path, tables: Mapping[str, Table], update: int, agent: str, score: str) -> list[str]:
    if not {"policy", NEVER} <= tables.keys():
        return []
    table, never = tables["policy"], tables[NEVER]
    sentences = [findings.verdict(table, never, name=f"agent={agent} after {counted(update, 'update')}", score=score)]
    found = _rival(folder)
    if found and found[0] != NEVER:  # that comparison has been made
        name, difference, hosts = found
        sentences.append(
            f"Its best rival in esper.evaluate was {name}: {findings.signed(difference)} points of return "
            f"on {counted(hosts, 'host')}."
        )
    return [*sentences, *findings.habits(table), findings.failures(table, never, score=score)]


def _cards(folder: Path, tables: Mapping[str, Table], score: str) -> list[findings.Card]:
    if not {"policy", NEVER} <= tables.keys():
        return []
    size = _host_costs(folder).get("params", 0)
    cards = findings.cards(tables["policy"], tables[NEVER], score=score, parameters=size)
    found = _rival(folder)
    if found and found[0] != NEVER:
        name, difference, hosts = found
        label = f"return beyond {name}, on {counted(hosts, 'host')}"
        cards.insert(2, findings.Card(value=f"{findings.signed(difference)} points", label=label))
    return cards


def _rival(folder: Path) -> tuple[str, Any, int] | None:
    """Return the best rival of the newest evaluation on the run's own kind of hosts; see `findings.rivals`."""
    reports: list[dict[str, Any]] = []
    for path in sorted(folder.glob("evaluation_*.json")):
        with suppress(OSError, ValueError):
            reports.append(json.loads(path.read_text()))
    found = [rival for report in reports if not report.get("transfer") and (rival := findings.rivals(report))]
    return found[-1] if found else None


def _traces(folder: Path, tables: Mapping[str, Table], update: int) -> list[dict[str, Any]]:
    """Return the traces for the slider: training first, then held-out hosts."""
    updates = traced_updates(folder)
    shown = [packed(f"update {one}, training hosts", read_trace(updates[one])) for one in selection(list(updates), MOST_TRACES)]
    never = tables.get(NEVER)
    named = {name: text for name, text in NAMES.items() if name in tables and text}
    return shown + [packed(f"after update {update}, {text}", tables[name], never) for name, text in named.items()]


def _seeds(folder: Path, tables: Mapping[str, Table], update: int, score: str) -> tuple[str, str, list[list[str]]]:
    """Return the table of seeds on held-out hosts, else in the last update with a trace."""
    legend = legend_of(score)
    if "policy" in tables:
        return f"Held-out hosts after {counted(update, 'update')}.", legend, seed_rows(tables["policy"])
    traced = traced_updates(folder)
    if not traced:
        return "", legend, []
    newest = max(traced)
    return f"Training hosts of update {newest}.", legend, seed_rows(read_trace(traced[newest]))


def _anomalies(folder: Path) -> list[str]:
    path = folder / "events.jsonl"
    if not path.exists():
        return []
    records = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    found = [record for record in records if record.get("event") == "anomaly"]
    return [f"update {one['update']}: {one['kind'].replace('_', ' ')}: {one['meaning']}; {one['remedy']}" for one in found]


def _costs(folder: Path, records: Sequence[Mapping[str, float]], history: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return name and value of what the run cost."""
    wall, cpu = (sum(one.get(name, 0.0) for one in history) for name in ("wall_seconds", "cpu_seconds"))
    rows = [
        ("time", f"{wall / 60:.1f} min by the clock, {cpu / 60:.1f} min of processor time, in {counted(len(history), 'session')}")
    ]
    totals = {tag: sum(record.get(tag, 0.0) for record in records) for tag in PHASES}
    if total := sum(totals.values()):
        rows.append(
            ("phases", ", ".join(f"{PHASES[tag]} {value / total:.0%}" for tag, value in totals.items() if value > total / 200))
        )
    if records and "host/training_flops" in records[-1]:
        each = records[-1]["host/training_flops"] + records[-1].get("host/measuring_flops", 0.0)
        rows.append(("FLOPs", f"{each:.3g} for each host in the last update, training and validation"))
    if memory := max((one.get("memory_bytes") or 0 for one in history), default=0):
        rows.append(("memory", f"{in_bytes(memory)} at most, in the process of the run"))
    if host := _host_costs(folder):
        rows.append(("host", f"{host.get('params', 0):,} parameters, {host.get('flops', 0):,} FLOPs per sample without seeds"))
    if history and (data := history[-1].get("data")):
        rows.append(("data", data))
    if history:
        devices = ", ".join(f"{name} ({text})" for name, text in history[-1].get("devices", {}).items())
        rows.append(("devices", f"{devices}; {history[-1].get('cores')} cores"))
    return rows


def _host_costs(folder: Path) -> dict[str, int]:
    """Return parameters and FLOPs of the host; empty where they were not written."""
    path = folder / "costs.json"
    return json.loads(path.read_text()).get("host", {}) if path.exists() else {}


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
