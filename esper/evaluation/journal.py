"""Journal of an evaluation: what each controller reached, so that the same command goes on after an interruption or a kill."""

import json
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from esper.files import disk, fingerprint
from esper.telemetry.jsonl import append_whole
from esper.training.run_folder import writing_reports

ARRAY = "dtype"
"""Key by which a dict is known to hold an array."""

LATENCY = "latency"
"""Name of the latency in a journal, which is no result: an evaluation measures it once, since measurements differ."""


class Journal:
    """Outcomes by name, in a file with one JSON object per line, which is removed once the whole evaluation is written."""

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Read what an earlier process kept.

        Args:
            folder: folder of the run.
            facts: everything that the outcomes depend on. Evaluations with other facts have other files.
        """
        self.folder = folder
        self.path = folder / f"evaluation_unfinished_{fingerprint(facts)[:12]}.jsonl"
        self._outcomes = _read(self.path)
        self.recalled = self.kept
        """Number of outcomes that an earlier process kept."""

    def recall(self, name: str) -> dict[str, Any] | None:
        """Return the outcome of this name as `keep` received it, a dataclass as a dict of its fields; None if there is none."""
        found = self._outcomes.get(name)
        return None if found is None else _arrays(found)

    def keep(self, name: str, outcome: Any) -> None:
        """Write an outcome.

        Args:
            name: its name, unique in the evaluation.
            outcome: a dataclass of arrays, plain values, and containers and dataclasses of these.

        Raises:
            DiskError: writing failed.
        """
        self._outcomes[name] = _plain(outcome)
        line = json.dumps({"name": name, "outcome": self._outcomes[name]}) + "\n"
        with writing_reports(self.folder):
            append_whole(self.path, line.encode(), "results")

    @property
    def kept(self) -> int:
        """Number of outcomes in the file, without the latency."""
        return sum(name != LATENCY for name in self._outcomes)

    def remove(self) -> None:
        """Remove the file."""
        with disk(f"remove {self.path}"):
            self.path.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any]:
    """Return the outcomes in a file by name, and cut off what a kill left unfinished."""
    found, whole = dict[str, Any](), 0
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        try:
            record = json.loads(line) if line.endswith(b"\n") else {}
            found[record["name"]] = record["outcome"]
        except (ValueError, KeyError, TypeError):
            os.truncate(path, whole)
            break
        whole += len(line)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {ARRAY: str(value.dtype), "values": value.tolist()}
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(child) for key, child in value.items()}
    return [_plain(child) for child in value] if isinstance(value, list | tuple) else value


def _arrays(value: Any) -> Any:
    if isinstance(value, dict):
        if ARRAY in value:
            return np.array(value["values"], value[ARRAY])
        return {key: _arrays(child) for key, child in value.items()}
    return [_arrays(child) for child in value] if isinstance(value, list) else value
