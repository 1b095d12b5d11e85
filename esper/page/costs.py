"""What a run and its networks cost, as rows of text and FLOPs per host."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from esper.env.actions import STYLES
from esper.files import FileError
from esper.lifecycle.roles import Blend
from esper.telemetry.tags import PHASES, phase_shares
from esper.telemetry.traces import Table, carried_out, kept_in, slots_of, steps_of
from esper.text import counted, duration, number
from esper.training.estimate import in_bytes

Rows = list[tuple[str, str]]
TRAINING, MEASURING, SPEED = "host/training_flops", "host/measuring_flops", "time/host_epochs_per_second"


def costs_of(folder: Path) -> dict[str, Any]:
    """Return the costs of the host and of seeds; empty where they were not written.

    Raises:
        FileError: the file is damaged.
    """
    path = folder / "costs.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise FileError(f"{path} is damaged: move it away; the page then lacks FLOPs and prices") from error
    costs: Any = {"seeds": {}, "gates": {}} | found if isinstance(found, dict) else {}
    whole = all(isinstance(costs.get(part), dict) for part in ("host", "seeds", "gates"))
    if found != {} and not (whole and all(isinstance(costs["host"].get(key), int | float) for key in ("params", "flops"))):
        raise FileError(f"{path} is damaged: move it away; the page then lacks FLOPs and prices")
    return cast(dict[str, Any], costs if found else {})


def with_flops(table: Table, costs: Mapping[str, Any]) -> Table:
    """Return a trace with `flops_kept` in the last row of each host: FLOPs per sample of the host and its fossils."""
    if not costs or not (slots := slots_of(table)):
        return table
    steps, planted = steps_of(table), set(carried_out(table, "germinate"))
    styles: dict[str, str | None] = {}
    flops: list[float | None] = []
    for row in range(len(table["op"])):
        if row % steps == 0:
            styles = {}
        if row in planted:
            styles[table["slot"][row]] = table.get("style", [None] * (row + 1))[row]
        if (row + 1) % steps:
            flops.append(None)
            continue
        total = float(costs["host"]["flops"])
        for slot in slots:
            if kept := kept_in(table, slot, row):
                total += costs["seeds"].get(kept, {}).get(slot, {}).get("flops", 0)
                blend = STYLES.get(styles.get(slot) or "", (None,))[0]
                total += costs["gates"][slot]["flops"] if blend is Blend.GATE else 0
        flops.append(total)
    return table | {"flops_kept": flops}


def rows(
    folder: Path,
    records: Sequence[Mapping[str, float]],
    history: Sequence[Mapping[str, Any]],
    *,
    hosts: int,
    steps: int,
    grown_N: npt.NDArray[np.float64] | None = None,
    evaluated: Mapping[str, Mapping[str, float]] | None = None,
) -> Rows:
    """Return name and value of what the run cost.

    Args:
        folder: folder of the run.
        records: metrics and times of all written updates.
        history: records of `run.json`.
        hosts: hosts in an update.
        steps: host epochs of an episode.
        grown_N: FLOPs per sample of held-out hosts after growing; None if unknown.
        evaluated: rows of an evaluation by controller; None without one.
    """
    wall, cpu = (sum(one.get(name, 0.0) for one in history) for name in ("wall_seconds", "cpu_seconds"))
    found: Rows = []
    if history:  # a saved policy has none
        sessions = counted(len(history), "session")
        own = f"{cpu / 60:.1f} min of processor time in the process of the run"  # without workers
        spent = f"{wall / 60:.1f} min of wall-clock time, {own}, in {sessions}"
        found.append(("time", f"{spent}, without this page"))
    if shares := phase_shares({tag: sum(record.get(tag, 0.0) for record in records) for tag in PHASES}):
        found.append(("phases", shares))
    found += _training(records, hosts) + _one_more(records, steps, evaluated or {})
    if memory := max((one.get("memory_bytes") or 0 for one in history), default=0):
        found.append(("memory", f"{in_bytes(memory)} at most, in the process of the run"))
    if host := costs_of(folder).get("host", {}):
        found.append(("host", f"{host.get('params', 0):,} parameters, {host.get('flops', 0):,} FLOPs per sample without seeds"))
        if grown_N is not None and np.isfinite(grown_N).all() and host.get("flops"):
            mean = grown_N.mean()
            scale = f"{mean / host['flops']:.3g} times as many" if round(mean) != host["flops"] else "as many as without seeds"
            found.append(("grown network", f"{mean:,.0f} FLOPs per sample, {scale}; mean over {len(grown_N)} held-out hosts"))
    if history and (data := history[-1].get("data")):
        found.append(("data", data))
    if history:
        cores = counted(history[-1]["cores"], "core") if history[-1].get("cores") else ""
        devices = ", ".join(f"{text} (devices={name})" for name, text in history[-1].get("devices", {}).items())
        found.append(("devices", "; ".join(filter(None, [devices, cores]))))
    return found


def _one_more(records: Sequence[Mapping[str, float]], steps: int, evaluated: Mapping[str, Mapping[str, float]]) -> Rows:
    """Return the row of what one more network costs: its time beside the others, and its FLOPs if an evaluation measured them."""
    parts: list[str] = []
    if speeds := [record[SPEED] for record in records if SPEED in record]:
        speed = median(speeds)
        time = duration(steps / speed) if steps / speed >= 10 else f"{steps / speed:.2g} s"
        parts.append(f"{time} beside others ({steps} epochs at {number(speed)} host epochs/s)")
    if {"policy", "wait"} <= evaluated.keys():
        policy, never = evaluated["policy"], evaluated["wait"]
        trained, waiting, decided = policy["training_flops"], never["training_flops"], policy["policy_flops"]
        if known := np.isfinite([trained, waiting]).all():  # a sandbox trains nothing
            parts.append(f"{trained:.3g} FLOPs of training, {waiting:.3g} if it never grows")
        if np.isfinite(decided):
            parts.append(f"{decided:.3g} {'' if known else 'FLOPs '}for the policy's decisions")
    return [("one more network", "; ".join(parts))] if parts else []


def _training(records: Sequence[Mapping[str, float]], hosts: int) -> Rows:
    """Return the row of the FLOPs of training and validating hosts: of all updates if each was written, else of the last one."""
    if not records or TRAINING not in records[-1]:
        return []
    each = [record.get(TRAINING, np.nan) + record.get(MEASURING, 0.0) for record in records]
    last = f"{each[-1]:.3g} per host in the last update"
    if len(records) < records[-1]["update"] or not np.isfinite(each).all():
        return [("training FLOPs", f"{last}, training and validation")]
    total, updates = f"{sum(each) * hosts:.3g} for {len(records) * hosts:,} hosts", counted(len(records), "update")
    more = "The controller's decisions and learning come on top; esper.compare counts them."
    text = f"{total} in {updates}, training and validation; {last}. {more}"
    return [("training FLOPs", text)]
