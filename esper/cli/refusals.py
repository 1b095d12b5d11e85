"""Refusals of whole commands: keys of another kind of command, and folders that hold something else."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from esper.checkpoint import CheckpointError
from esper.config import Config, ConfigError
from esper.sweeps import SWEEPS
from esper.task.loading import load_task
from esper.training.config_io import PLACES, from_plain, other_settings, to_plain
from esper.training.resume import load_newest, other_data, several_runs
from esper.training.run_folder import CHECKPOINTS

OF_SINGLE_RUNS = ("hydra.run.dir=",)
OF_SWEEPS = ("hydra.sweep.", "hydra.launcher.", "hydra.sweeper.", "hydra/launcher=", "hydra/sweeper=")
"""Beginnings of overrides that have no effect on commands of the other kind."""
PLANS = {"design.json": "an experiment", "tuning.json": "a tuning"}
"""Files in the folders of sweeps with a plan -> what they are."""


def sweep_keys(kind: type) -> list[str]:
    """Return the keys of a sweep."""
    return [field.name for field in fields(kind) if not field.name.startswith("_")]


_ALL_KEYS = {key for kind in SWEEPS.values() for key in sweep_keys(kind)}


def check_sweep(overrides: list[str], *, many: bool, config_name: str | None = None) -> None:
    """Check that a command asks for several runs if and only if it names a sweep.

    Args:
        overrides: overrides of the command.
        many: if true, the command asks for several runs.
        config_name: value of --config-name.

    Raises:
        ConfigError: -m or the sweep is missing, or a key belongs to the other kind of command.
    """
    added = [one for one in overrides if one.startswith("+") and one.lstrip("+").partition("=")[0] in ("sweep", *_ALL_KEYS)]
    if added:
        raise ConfigError(f"{added[0]} starts with +, which adds keys that a config lacks: leave the + out")
    chosen = _sweep_in(overrides)
    if "," in chosen:
        raise ConfigError(f"sweep={chosen} names several sweeps: choose one of {', '.join(SWEEPS)}")
    if chosen and config_name not in (None, "config", "config.yaml"):
        raise ConfigError(
            f"--config-name {config_name} would not become part of the plan of sweep={chosen}: write what it sets into a preset "
            "of the group experiment in the folder of --config-dir, and choose that by experiment=NAME"
        )
    idle = OF_SINGLE_RUNS if many else OF_SWEEPS
    for override in overrides:
        if override.startswith(idle):
            remedy = "name the folder by hydra.sweep.dir" if many else "put -m in front, or leave it out"
            raise ConfigError(f"{override} has no effect on {'a sweep' if many else 'a single run'}: {remedy}")
    if chosen and not many:
        raise ConfigError(f"sweep={chosen} starts several runs: put -m in front, as in python -m esper.train -m sweep={chosen}")
    for override in () if chosen.startswith(tuple(SWEEPS)) else overrides:
        owner = next((name for name, kind in SWEEPS.items() if override.partition("=")[0] in sweep_keys(kind)), None)
        if owner and chosen:
            raise ConfigError(
                f"{override} is short for a key of sweeps named {'... or '.join(SWEEPS)}...: write hydra.sweeper.{override}"
            )
        if owner:
            raise ConfigError(f"{override.partition('=')[0]} belongs to a sweep: put -m sweep={owner} in front")


def _sweep_in(overrides: Sequence[str]) -> str:
    """Return the name of the sweep that a command chooses; empty if there is none."""
    chosen = next((one.partition("=")[2] for one in overrides if one.startswith("sweep=")), "")
    return "" if chosen == "null" else chosen


def refuse_another_kind(folder: Path, overrides: Sequence[str], *, many: bool) -> None:
    """Raise ConfigError if a folder holds what this command does not continue: a run, a sweep over values, an experiment."""
    planned = next((name for name in PLANS if (folder / name).exists()), "")
    if many and (folder / CHECKPOINTS).exists():
        found, key = "a run", "hydra.sweep.dir"
    elif not many and (planned or (folder / "multirun.yaml").exists()):
        if resumed := next((one for one in overrides if one.startswith("resume=")), ""):
            raise ConfigError(f"{resumed} names no run: {several_runs(folder)}")
        found, key = "a sweep", "hydra.run.dir"
    elif many and not _sweep_in(overrides) and planned:
        found, key = f"{PLANS[planned]} ({planned})", "hydra.sweep.dir"
    else:
        return
    raise ConfigError(f"{folder} holds {found}: choose another {key}")


def refuse_another_plan(folder: Path, own: str) -> None:
    """Raise ConfigError if the folder of a sweep holds another kind of sweep.

    Args:
        folder: the folder.
        own: name of the file with the plan of the sweep.
    """
    found = [f"{kind} ({name})" for name, kind in PLANS.items() if name != own and (folder / name).exists()]
    if not (folder / own).exists() and next(folder.glob(f"[0-9]*/{CHECKPOINTS}"), None):
        found.append("a sweep over values")
    if found:
        raise ConfigError(f"{folder} holds {found[0]}: choose another hydra.sweep.dir")


def refuse_another_length(folder: Path, updates: int) -> None:
    """Raise ConfigError if a run of an experiment, or of a tuning, would get another number of updates than its other runs."""
    whole = next((place for place in folder.absolute().parents[:2] if any((place / name).exists() for name in PLANS)), None)
    state = load_newest(folder) if whole else None
    if whole and state and (planned := state["config"]["values"]["updates"]) != updates:
        relative = os.path.relpath(whole)
        shown = whole if folder.is_absolute() or relative.startswith(os.curdir) else relative
        raise ConfigError(
            f"updates={updates} would make {folder} unlike the other runs of {shown}, which could then no longer be compared: "
            f"leave it at updates={planned}, or copy the folder to another place and resume the copy"
        )


def refuse_other_data(folder: Path, configs: Sequence[Config]) -> None:
    """Raise ConfigError if a run of a sweep was started on other data than its task has now, under any of the paths asked for.

    Args:
        folder: folder of the sweep.
        configs: configs of its runs; of an experiment or a tuning, one of each kind is enough.
    """
    planned = any((folder / name).exists() for name in PLANS)
    places = [path.parent for path in sorted(folder.glob(f"*/*/{CHECKPOINTS}" if planned else f"*/{CHECKPOINTS}"))]
    if not planned:  # other folders hold runs of an earlier, longer sweep
        numbers = {str(number) for number in range(len(configs))}
        places = [place for place in places if place.name in numbers]
    asked = dict[str, dict[str, Config]]()
    for config in (config for config in configs if places and "task" not in config.env.ignores):
        asked.setdefault(_data_of(to_plain(config)), {})[repr((config.task, config.host))] = config
    found = {data: [load_task(one.task, one.host).data.fingerprint() for one in alike.values()] for data, alike in asked.items()}
    for place in places if found else ():
        with suppress(CheckpointError):  # a damaged run is reported when it is its turn
            state = load_newest(place)
            known = found.get(_data_of(state["config"])) if state else None
            if state and known and all(changes := [other_data(state, {"data": now}) for now in known]):
                raise ConfigError(
                    f"{place} was started on {changes[0]}: restore the data, give its new path, as in task.file=FILE, or choose "
                    "another hydra.sweep.dir"
                )


def _data_of(plain: Mapping[str, Any]) -> str:
    """Return, as a text, the part of a plain config on which its data depends, without the paths."""
    part = {f"{group}.{key}": value for group in ("task", "host") for key, value in plain["values"][group].items()}
    kinds = [plain["options"][group] for group in ("task", "host")]
    return repr((kinds, {key: value for key, value in part.items() if key not in PLACES}))


def refuse_another_sweep(folder: Path, configs: Sequence[Config]) -> None:
    """Raise ConfigError if the runs in a folder, in the subfolders that Hydra numbers, are not those of this sweep."""
    for number, config in enumerate(configs):
        state = load_newest(folder / str(number))
        if state and (others := other_settings(from_plain(state["config"]), config)):
            raise ConfigError(
                f"{folder} holds another sweep, whose run {number} has {others}: choose another hydra.sweep.dir, or repeat the "
                "command of that sweep"
            )
