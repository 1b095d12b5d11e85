"""Checks that runs are what they claim to be: each in the folder of its cell, none twice, and all of one code version."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser

from esper.config import ALIASES, ConfigError, root_key
from esper.lab.cell import Cell
from esper.lab.design import FILE, Design
from esper.lab.outcomes import group_of
from esper.lab.runs import Run, measures_hosts
from esper.training import provenance
from esper.training.config_io import PLACES
from esper.training.run_folder import CHECKPOINTS

YES, NO = ("true", "yes", "on", "y", "1"), ("false", "no", "off", "n", "0")
"""Spellings of truth values that a config takes."""
UNCHECKED = ("telemetry", "plugins", "resume", *PLACES)
"""Root keys and keys in which a run may differ from its plan."""


def check_runs(runs: Sequence[Run], folders: Sequence[Path]) -> list[str]:
    """Return warnings on runs that are not planned, and on runs of different code versions.

    Raises:
        ConfigError: a run is not that of its cell, or is there twice.
    """
    twins: dict[str, Run] = {}
    for run in (run for run in runs if run.digest):
        if (twin := twins.setdefault(run.digest, run)) is not run:
            raise ConfigError(f"{run.folder} is a copy of {twin.folder}: remove one of them, or compare only one")
    by_folder = {run.folder: run for run in runs if run.updates}
    warnings: list[str] = []
    arms: dict[str, tuple[list[str], Path]] = {}
    for folder in folders:
        if (design := Design.find(folder)) is None:
            continue
        _refuse_namesakes(design, arms, folder)
        cells, digest = {folder / cell.folder: cell for cell in design.cells}, design.digest
        for place, cell in cells.items():
            if run := by_folder.get(place):
                _check_cell(run, cell, digest)
        others = {path.parent for path in folder.glob(f"*/*/{CHECKPOINTS}")} - cells.keys()
        warnings += [f"{other} is not a run of this experiment and was left out: move it elsewhere" for other in sorted(others)]
    versions = {str(run.folder): _versions(run) for run in runs if run.updates}
    return warnings + _other_data(runs) + mixed(versions, "trained", "train the runs of one version again")


def refuse_unlike(runs: Sequence[Run], strata: Sequence[str], *, planned: bool, overrides: Sequence[str]) -> None:
    """Raise ConfigError if only some runs train hosts, or if runs that no plan holds together learn different tasks."""
    apart = {measures_hosts(run): run for run in runs}
    if len(apart) > 1:
        raise ConfigError(f"{apart[True].folder} trains hosts, and {apart[False].folder} does not: compare them separately")
    tasks = dict.fromkeys(str(run.config.get("task")) for run in runs)
    if len(tasks) > 1 and not planned and "task" not in strata and not any(one.startswith("task=") for one in overrides):
        raise ConfigError(
            f"these runs learn different tasks ({', '.join(tasks)}) and belong to no common experiment: name the folders of "
            "runs with one task, or set strata=[task]"
        )


def _other_data(runs: Sequence[Run]) -> list[str]:
    """Return a warning for every task whose data changed between its runs. Its path may differ between runs of an arm."""
    tasks: dict[str, dict[str, list[tuple[str, str]]]] = {}
    first: dict[str, dict[str, Any]] = {}
    for run in (run for run in runs if run.data):
        task = {key: value for key, value in run.config.items() if group_of(key) in ("task", "host")}
        task |= first.setdefault(f"{run.arm} {run.stratum}", {key: task[key] for key in PLACES if key in task})
        tasks.setdefault(repr(task), {})[str(run.folder)] = [(run.data, run.data)]
    return [
        f"runs of one task were trained on different data (fingerprint {shown}): restore the data, and train the others again"
        for found in tasks.values()
        for shown in _differing(found)
    ]


def _refuse_namesakes(design: Design, arms: dict[str, tuple[list[str], Path]], folder: Path) -> None:
    """Raise ConfigError if an earlier experiment has another arm of the same name; else add the arms of this one."""
    for arm, overrides in design.arms.items():
        first, other = arms.setdefault(arm, (overrides, folder))
        if first != overrides:
            one, two = (" ".join(each) or "the default" for each in (first, overrides))
            raise ConfigError(f"arm {arm} is {one} in {other}, and {two} in {folder}: compare these experiments one by one")


def _check_cell(run: Run, cell: Cell, plan: str) -> None:
    """Raise ConfigError if a run is not that of the cell in whose folder it is."""
    remedy = "move it back, or remove it and repeat the command of the experiment"
    records = provenance.read(run.folder / provenance.FILE)
    cells, plans = ({record.get(name) for record in records} - {None} for name in ("cell", "plan"))
    if others := cells - {cell.folder}:
        raise ConfigError(f"{run.folder} holds the run of {', '.join(sorted(map(str, others)))}: {remedy}")
    if plans != {plan}:
        found = ", ".join(str(other)[:12] for other in plans) or "no plan"
        raise ConfigError(
            f"{run.folder / provenance.FILE} names {found}, and {FILE} holds plan {plan[:12]}: restore the changed file, or "
            "remove the run and repeat the command of the experiment"
        )
    check_values(run, cell.overrides, FILE, remedy)


def check_values(run: Run, overrides: Sequence[str], source: str, remedy: str) -> None:
    """Raise ConfigError if a run was not trained with the values of these overrides, which come from this file."""
    for key, value in _asked(overrides).items():
        if key in run.config and not _equal(run.config[key], value):
            raise ConfigError(
                f"{run.folder} was trained with {key}={run.config[key]}, and {source} says {key}={value}, so it is another run: "
                f"{remedy}"
            )


def _asked(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the values that overrides set, by key; the last one counts."""
    parsed = OverridesParser.create().parse_overrides([one for one in overrides if "${" not in one])
    keys = {str(one.key_or_group): one for one in parsed if not one.is_delete()}
    return {ALIASES.get(key, key): one.value() for key, one in keys.items() if not {key, root_key(key)} & {*UNCHECKED}}


def _equal(found: Any, asked: Any) -> bool:
    """Return whether a value of a config is what was asked for, which may leave out defaults of an entry."""
    if isinstance(found, bool) and isinstance(asked, str):
        return asked.lower() in (YES if found else NO)
    if isinstance(found, dict) and isinstance(asked, dict):
        parts, wanted = cast(dict[str, Any], found), cast(dict[str, Any], asked)
        return all(key in parts and _equal(parts[key], value) for key, value in wanted.items())
    if isinstance(found, list):  # or one option of a group of which several can be chosen
        parts, wanted = cast(list[Any], found), cast(list[Any], asked if isinstance(asked, list) else [asked])
        return len(parts) == len(wanted) and all(map(_equal, parts, wanted))
    return found == asked or str(found) == str(asked)


def _versions(run: Run) -> list[dict[str, Any]]:
    """Return the code versions of all processes that worked on a run."""
    return [record.get("esper") or {} for record in provenance.read(run.folder / provenance.FILE)] or [{}]


def mixed(versions: Mapping[str, Sequence[dict[str, Any]]], done: str, remedy: str) -> list[str]:
    """Return warnings if files come from different code versions, or from different sources of a plugin.

    Args:
        versions: code versions by name of the file or folder.
        done: what was done with this code, as in "trained".
        remedy: what to do about it.
    """
    sources = {
        name: [(str(one.get("source") or one.get("commit")), _label(one)) for one in found] for name, found in versions.items()
    }
    warnings = [
        f"{done} by different code versions, whose numbers may differ ({shown}): {remedy}" for shown in _differing(sources)
    ]
    plugins = [
        (name, plugin, digest)
        for name, found in versions.items()
        for one in found
        for plugin, digest in one.get("plugins", {}).items()
    ]
    for plugin in dict.fromkeys(plugin for _, plugin, _ in plugins):
        digests: dict[str, list[tuple[str, str]]] = {}
        for name, other, digest in plugins:
            if other == plugin:
                digests.setdefault(name, []).append((digest, digest[:6]))
        warnings += [f"{done} with different sources of {plugin} ({shown}): {remedy}" for shown in _differing(digests)]
    return warnings


def _differing(sources: Mapping[str, Sequence[tuple[str, str]]]) -> list[str]:
    """Return which files come from which source, in words, if they come from several.

    Args:
        sources: sources by name of the file or folder, each with its label.
    """
    names: dict[str, list[str]] = {}
    labels: dict[str, str] = {}
    for name, found in sources.items():
        for source, label in found:
            labels[source] = label
            if name not in names.setdefault(source, []):  # several processes may have worked on a run
                names[source].append(name)
    ordered = sorted(names, key=lambda source: -len(names[source]))
    return ["; ".join(f"{labels[source]}: {_some(names[source])}" for source in ordered)] if len(names) > 1 else []


def _label(version: Mapping[str, Any]) -> str:
    if not version:
        return "unknown"
    commit = version.get("commit")
    label = str(commit)[:9] if commit else f"version {version.get('version')}"
    return f"{label} with changes {str(version.get('source'))[:6]}" if version.get("changed") else label


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
