"""What esper.compare holds against the plans of experiments, and the looks at them that it records."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from esper.config import ConfigError, root_key
from esper.files import disk
from esper.lab.design import FILE, AnalysisPlan, Design, brief
from esper.lab.outcomes import OUTCOMES, TRAINING, CompareConfig
from esper.lab.runs import Run
from esper.training.provenance import versions

LOOKS = "looks.jsonl"
"""Name of the file in the folder of an experiment with a line for every comparison."""


def as_planned(plan: AnalysisPlan) -> CompareConfig:
    """Return the settings of the comparison that was planned.

    Raises:
        ValueError: the plan asks for something that does not exist.
    """
    return CompareConfig(
        outcome=plan.outcome,
        margin=plan.margin,
        hosts=plan.score_hosts,
        alpha=plan.alpha,
        baselines=[*dict.fromkeys(plan.baselines)],  # in plans of earlier versions, one may be named twice
        against=plan.against,
    )


def agreed(folders: Sequence[Path]) -> CompareConfig:
    """Return the settings on which the plans of all experiments in these folders agree, and defaults for the others.

    Raises:
        ConfigError: the file of an experiment is damaged or was edited.
        ValueError: a plan asks for something that does not exist.
    """
    plans = [as_planned(found.plan) for folder in folders if (found := Design.find(folder))]
    config = CompareConfig()
    for name in (entry.name for entry in fields(CompareConfig)):
        if len({str(getattr(plan, name)) for plan in plans}) == 1:
            setattr(config, name, getattr(plans[0], name))
    return config


def scored_with(folders: Sequence[Path], typed: Sequence[str], outcome: str) -> list[str]:
    """Return the evaluation overrides of a comparison by an outcome: the planned ones, with typed keys replaced, then the other
    typed ones; none for an outcome of training.

    Raises:
        ConfigError: the plans of several experiments have other ones, or an outcome of training has typed ones.
    """
    if outcome in TRAINING:
        if typed:
            raise ConfigError(
                f"outcome={outcome} is measured in training, which {typed[0]} does not change: choose another outcome"
            )
        return []
    given = {one.partition("=")[0]: one for one in typed}

    def changed(plan: Sequence[str]) -> list[str]:
        """Return a plan's overrides, those of a typed key replaced in their place, those below a typed group left out."""
        keys = [(one, one.partition("=")[0]) for one in plan]
        return [given.get(key, one) for one, key in keys if key in given or root_key(one) not in given]

    plans = [found.plan.score_overrides for folder in folders if (found := Design.find(folder))]
    wanted = [changed(plan) for plan in plans]
    if any(plan != wanted[0] for plan in wanted):
        raise ConfigError("these experiments planned different score_overrides: compare them separately")
    kept = wanted[0] if wanted else []
    return [*kept, *(one for one in typed if one not in kept)]


def planned(folders: Sequence[Path]) -> Design | None:
    """Return the experiment whose folder is the only one; None for runs without a plan, and for several folders.

    Raises:
        ConfigError: its file is damaged or was edited.
    """
    return Design.find(folders[0]) if len(folders) == 1 else None


def deviations(found: Design | None, config: CompareConfig, overrides: Sequence[str]) -> list[str]:
    """Return the ways in which a comparison deviates from the plan, each of which makes it exploratory."""
    if found is None:
        return ["these runs are not one experiment of sweep=ab, so nothing was planned"]
    lines = [f"{name} is {got}, but {wanted} was planned" for name, (got, wanted) in other_settings(found, config).items()]
    return lines + [f"{override} was not planned" for override in overrides if override not in found.plan.score_overrides]


def other_settings(found: Design, config: CompareConfig) -> dict[str, tuple[str, str]]:
    """Return the settings of a comparison that differ from the plan, as they are and as they were planned."""
    wanted, got = asdict(as_planned(found.plan)), asdict(config)
    got["margin"] = config.margin or OUTCOMES[config.outcome].margin
    names = ("outcome", "margin", "hosts", "alpha", "baselines", "against", "strata")
    pairs = {name: (got[name], wanted[name]) for name in names}
    same = {"baselines": sorted(got["baselines"]) == sorted(wanted["baselines"])}  # in any order
    return {name: (brief(one), brief(other)) for name, (one, other) in pairs.items() if not same.get(name, one == other)}


def listed_runs(folders: Sequence[Path]) -> set[Path]:
    """Return the folders of the runs that an earlier comparison found finished.

    Raises:
        DiskError: writing failed.
    """
    found: set[Path] = set()
    for path in (folder / LOOKS for folder in folders if (folder / LOOKS).exists()):
        with disk(f"read {path}"):
            lines = path.read_bytes().splitlines()
        for line in lines:
            with suppress(ValueError, RecursionError, TypeError, AttributeError):  # cut short, or of an earlier version
                found |= {path.parent / run for run in json.loads(line).get("runs", ())}
    return found


def lost_looks(folders: Sequence[Path]) -> list[str]:
    """Return warnings on experiments that were compared, as their reports show, and have no record of it."""
    compared = (folder for folder in folders if (folder / FILE).exists() and any(folder.glob("comparison*.json")))
    return [
        f"{folder} was compared before and has no {LOOKS}: its earlier looks are unknown"
        for folder in compared
        if not (folder / LOOKS).exists()
    ]


def record_look(folders: Sequence[Path], runs: Sequence[Run], look: dict[str, Any]) -> None:
    """Append a comparison to the looks of every experiment in these folders.

    Args:
        folders: folders of experiments; others keep no looks.
        runs: runs of the comparison.
        look: settings and sentences.

    Raises:
        DiskError: writing failed.
    """
    finished = [run.folder for run in runs if run.finished]
    about = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "code": versions(), "finished_runs": len(finished)}
    for folder in folders:
        own = [str(run.relative_to(folder)) for run in finished if run.is_relative_to(folder)]
        line = json.dumps({**about, "runs": own, **look})
        if (folder / FILE).exists():
            with disk(f"write {folder / LOOKS}"), (folder / LOOKS).open("a+b") as file:
                file.seek(max(0, file.tell() - 1))
                end = b"" if file.read() in (b"", b"\n") else b"\n"  # a line that was cut short
                file.write(end + line.encode() + b"\n")
