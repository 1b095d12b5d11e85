"""Files of traces: gzipped CSV, one row per host and host epoch. The columns are those of `training.trace`."""

import csv
import gzip
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from esper.files import FileError, disk, write_whole

FOLDER = "trace"
"""Folder of the traces in that of a run."""
VERSION = 1
"""Version of the columns; it goes up when a column changes its meaning or goes away."""
NEVER = "wait"
"""Controller that never grows, with which others are compared."""
Table = dict[str, list[Any]]
"""Columns by name; None where a value does not exist or was not measured."""
NAMES = {
    "kind",
    "events",
    "op",
    "slot",
    "blueprint",
    "style",
    "tempo",
    "alpha_target",
    "alpha_speed",
    "alpha_curve",
    "rolled_back",
}
NAMED = (".stage", ".blueprint", ".kept")
"""Columns of a trace that hold names, and ends of their names."""
_UPDATE = re.compile(r"update_(\d{6,})\.csv\.gz")
_HELD_OUT = re.compile(r"held_out_(\d{6,})_(\d+)_hosts_(\w+)\.csv\.gz")


def trace_of_update(folder: Path, update: int) -> Path:
    """Return the file of an update's trace in the folder of a run."""
    return folder / FOLDER / f"update_{update:06d}.csv.gz"


def trace_of_evaluation(folder: Path, update: int, hosts: int, controller: str) -> Path:
    """Return the file of a controller's trace on `hosts` held-out hosts, after an update of the policy."""
    return folder / FOLDER / f"held_out_{update:06d}_{hosts}_hosts_{controller}.csv.gz"


def traced_updates(folder: Path) -> dict[int, Path]:
    """Return the files of the traces in training by update, in rising order."""
    found = ((_UPDATE.fullmatch(path.name), path) for path in (folder / FOLDER).glob("update_*"))
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def traced_evaluation(folder: Path, hosts: int | None = None, *, done: int | None = None) -> tuple[int, dict[str, Path]]:
    """Return the newest traces on held-out hosts by controller, and the update of their policy, 0 if there are none.

    Sets that lack the trace of the policy or of never growing, as after a kill, do not count.

    Args:
        folder: folder of the run.
        hosts: number of hosts of these traces; None for the largest.
        done: updates of its newest checkpoint: traces of later ones are left over from a checkpoint that was lost; None for any.
    """
    found = ((_HELD_OUT.fullmatch(path.name), path) for path in sorted((folder / FOLDER).glob("held_out_*")))
    sets: dict[tuple[int, int], dict[str, Path]] = {}
    for match, path in found:
        if match and (done is None or int(match[1]) <= done) and hosts in (None, int(match[2])):
            sets.setdefault((int(match[1]), int(match[2])), {})[match[3]] = path
    newest = max((key for key, files in sets.items() if {"policy", NEVER} <= files.keys()), default=None)
    return (0, {}) if newest is None else (newest[0], sets[newest])


def write_trace(path: Path, table: Mapping[str, list[Any]]) -> None:
    """Write a trace atomically; equal tables give equal files.

    Raises:
        DiskError: writing failed.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    with disk(f"create {path.parent}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, gzip.compress(text.getvalue().encode(), mtime=0))


def read_trace(path: Path) -> Table:
    """Return a trace: numbers as floats, names as strings, and None where there is no value.

    Raises:
        FileError: the file is not a trace of this version, or incomplete.
    """
    try:
        with gzip.open(path, "rt", newline="") as file:
            head, *rows = csv.reader(file)
        table = {name: _values(name, column) for name, column in zip(head, zip(*rows, strict=True), strict=True)}
        versions, epochs, steps = set(table["version"]), table["epoch"], steps_of(table)
        whole = epochs == [1 + row % steps for row in range(len(epochs))] and epochs[-1] == steps
        named = _HELD_OUT.fullmatch(path.name)
        whole = whole and (named is None or len(epochs) == steps * int(named[2]))
    except (OSError, EOFError, ValueError, TypeError, KeyError, ArithmeticError, csv.Error) as error:
        raise FileError(f"{path} is damaged: remove it") from error
    if versions != {VERSION}:
        raise FileError(f"{path} is a trace of another version of Esper: remove it, or read it with pandas")
    if not whole:
        raise FileError(f"{path} is damaged, since it lacks epochs or hosts: remove it")
    return table


def slots_of(table: Table) -> list[str]:
    """Return the names of the slots of a trace; empty where no hosts train."""
    return [name.removesuffix(".stage") for name in table if name.endswith(".stage")]


def steps_of(table: Table) -> int:
    """Return the number of host epochs of each host."""
    return round(max(table["epoch"]))


def carried_out(table: Table, op: str) -> list[int]:
    """Return the rows in which this operation was carried out. Traces of the sandbox have no refusals."""
    refused = table.get("refused", [0] * len(table["op"]))
    return [row for row, one in enumerate(table["op"]) if one == op and not refused[row]]


def kept_in(table: Table, slot: str, row: int) -> str | None:
    """Return the blueprint that a slot keeps after the episode that ends in this row: a rollback in the last host epoch may take
    a fossil back. Traces of earlier versions lack that column, and the last fossil counts."""
    if (kept := table.get(f"{slot}.kept")) is not None:
        return kept[row]
    return table[f"{slot}.blueprint"][row] if table[f"{slot}.stage"][row] == "fossilized" else None


def _values(name: str, cells: Sequence[str]) -> list[Any]:
    """Return a column of a trace. Names may look like numbers."""
    if name in NAMES or name.endswith(NAMED):
        return [cell or None for cell in cells]
    return [_value(cell) for cell in cells]


def _value(cell: str) -> float | str | None:
    if not cell:
        return None
    try:
        return float(cell)
    except ValueError:
        return cell
