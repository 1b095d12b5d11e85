"""Traces as the page embeds them: columns in few bytes, gzipped, which the browser unpacks."""

# N hosts, T host epochs

import base64
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from esper.telemetry.traces import Table, kept_in, slots_of, steps_of

DIGITS = 4
"""Significant digits of numbers on the page."""
LEFT_OUT = (
    *("version", "host", "epoch", "kind", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve", "train_loss", "loss"),
    *("gradient_norm", "all_off_accuracy", "first_accuracy", "parameters_kept", "flops_kept", "parameters", "shapley", "kept"),
)
"""Columns that the page does not show, or that follow from the place of a row; those of a slot without its name."""

BESIDE = ("accuracy", "return", "test_accuracy", "online_accuracy")
"""Columns that are shown beside those of never growing."""


def packed(label: str, table: Table, reference: Table | None = None, *, tick: str = "") -> dict[str, Any]:
    """Return a trace as plain values for JSON.

    Args:
        label: name of the trace on the page.
        table: the trace.
        reference: the trace of never growing on the same hosts, if there is one.
        tick: short name of the trace below the slider.
    """
    steps = steps_of(table)
    columns = {
        name: _column(_changes(values, steps) if ".potential_" in name else values)
        for name, values in table.items()
        if name.rpartition(".")[2] not in LEFT_OUT and any(value is not None for value in values)
    }
    trace: dict[str, Any] = {"label": label, "tick": tick or label, "steps": steps}
    slots, ends = slots_of(table), range(steps - 1, len(table["epoch"]), steps)
    trace |= {"kinds": table["kind"][::steps], "slots": slots}
    trace["kept"] = {slot: [kept_in(table, slot, row) for row in ends] for slot in slots}
    if reference is not None:
        trace["never"] = {name: _column(reference[name]) for name in BESIDE if name in reference}
    return trace | {"columns": columns}


def _changes(values: Sequence[Any], steps: int) -> list[Any]:
    """Return a column with values that equal those of the epoch before left out, since a potential is measured now and then."""
    return [None if row % steps and values[row] == values[row - 1] else value for row, value in enumerate(values)]


def _column(values: Sequence[Any]) -> Any:
    """Return numbers with few digits, None where one is not finite, which JSON lacks; strings as indices of a list of names."""
    if any(isinstance(value, str) for value in values):
        names = sorted({value for value in values if value is not None}, key=str)
        rank: Mapping[Any, int] = {name: index for index, name in enumerate(names)}
        return {"names": [str(name) for name in names], "at": [-1 if value is None else rank[value] for value in values]}
    return [None if value is None or not math.isfinite(value) else _short(value) for value in values]


def _short(value: float) -> float | int:
    number = float(f"{value:.{DIGITS}g}")
    return int(number) if number.is_integer() else number


def embedded(traces: Sequence[Mapping[str, Any]]) -> str:
    """Return traces as base64 of gzipped JSON."""
    return base64.b64encode(gzip.compress(json.dumps(traces, separators=(",", ":"), allow_nan=False).encode(), mtime=0)).decode()


def selection(updates: Sequence[int], most: int) -> list[int]:
    """Return at most `most` updates: the first, the last, and others at even distances between them."""
    if len(updates) <= most:
        return list(updates)
    return [updates[round(rank * (len(updates) - 1) / (most - 1))] for rank in range(most)]
