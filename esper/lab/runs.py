"""Runs of an experiment: the arm and block of each, and its metrics."""

import shlex
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from esper.checkpoint import Checkpoints, load_run_and_digest, retry_if_removed, update_of
from esper.cli.transfer import relocated
from esper.config import GROUPS, ConfigError
from esper.lab.design import FILE, Design, command_of
from esper.lab.outcomes import RETURNS, check_measured, group_of
from esper.notices import UserNotice
from esper.telemetry.jsonl import CHECK, changed_update, read_records
from esper.text import counted
from esper.training.config_io import flat, from_plain, to_plain, without_paths
from esper.training.run_folder import CHECKPOINTS

UNSHARED = ("seed", "policy_seed", "resume", "telemetry", "checkpoints", "plugins")
"""Keys that never distinguish arms."""


@dataclass(kw_only=True, slots=True)
class Run:
    """One cell of an experiment: a training run, or a planned one."""

    arm: str
    block: int
    folder: Path
    seed: int = 0
    """Root seed of its random streams."""
    stratum: str = ""
    """Setting within which arms are compared; empty for a single one."""
    update: int = 0
    updates: int = 0
    saved: dict[str, Any] = field(default_factory=lambda: dict[str, Any]())
    """Config in its newest checkpoint, see `to_plain`; empty if it never started."""
    config: dict[str, Any] = field(default_factory=lambda: dict[str, Any]())
    """The same by dotted key."""
    digest: str = ""
    """SHA-256 in its newest checkpoint."""
    data: str = ""
    """Fingerprint of its data, empty if it trains no hosts."""
    paths: tuple[str, ...] = ()
    """Where its data is now, as overrides, if it has moved."""
    listed: bool = False
    """True if an earlier comparison found it finished."""

    @property
    def finished(self) -> bool:
        return 0 < self.updates <= self.update

    @property
    def status(self) -> str:
        if self.listed and not self.finished:
            return "lost: an earlier comparison found it finished"
        if not self.updates:
            return "never started"
        return "finished" if self.finished else f"stopped after {self.update} of {counted(self.updates, 'update')}"


def measures_hosts(run: Run) -> bool:
    """Return whether the environment of a run trains hosts, which most outcomes need; true for one that is not in the table, and
    for a run that never started."""
    kind = GROUPS["env"].get(run.saved["options"]["env"]) if run.saved else None
    return kind is None or kind.has_hosts


def samples_actions(run: Run) -> bool:
    """Return whether the agent of a run samples its actions; true for one that is not in the table, and for a run that never
    started."""
    kind = GROUPS["agent"].get(run.saved["options"]["agent"]) if run.saved else None
    return kind is None or kind.greedy


def refuse_unmeasured(outcome: str, runs: Sequence[Run]) -> None:
    """Raise ConfigError if these runs, of which one at least is finished, cannot have an outcome."""
    check_measured(
        outcome,
        without_hosts=[run.saved["options"]["env"] for run in runs if not measures_hosts(run)],
        without_samples=None if any(map(samples_actions, runs)) else runs[0].saved["options"]["agent"],
    )


def criterion_of(outcome: str, run: Run) -> str:
    """Return by what schedules, nets and searches are chosen if arms are compared by an outcome on the hosts of a run: by return
    for the return, and where hosts have no accuracy; otherwise by validation accuracy of committed networks."""
    return "return" if outcome in RETURNS or not measures_hosts(run) else "validation"


def find_runs(folders: Sequence[Path], strata: Sequence[str] = ()) -> list[Run]:
    """Return all cells of the experiments and runs in these folders, arm by arm, including planned runs that never started.

    One experiment keeps its own block numbers; otherwise runs with the same seed form a block.

    Args:
        folders: folders of experiments, or of runs.
        strata: keys that distinguish strata, not arms.

    Raises:
        ConfigError: no run is finished, or a cell exists twice.
    """
    found: list[Run] = []
    loose: list[Run] = []
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder} is not a folder: name the folder of an experiment, or of its runs")
        if design := Design.find(folder):
            seeds, arms = design.seeds, list(design.arms)
            cells = sorted(design.cells, key=lambda cell: arms.index(cell.arm))
            read = [_read(folder / cell.folder, cell.arm, cell.block, seeds[cell.block]) for cell in cells]
            setting = next((run.config for run in read if run.config), dict[str, Any]())
            found += [replace(run, stratum=_setting(run.config or setting, strata)) for run in read]
        elif nested := sorted(path.parent for path in folder.rglob(FILE)):
            shown = " ".join(shlex.quote(str(one)) for one in nested[:2])
            raise ConfigError(
                f"{folder} is not an experiment, but holds {counted(len(nested), 'experiment')}: name those to compare, as in "
                f"python -m esper.compare {shown}"
            )
        else:
            places = sorted({path.parent for path in folder.rglob(CHECKPOINTS) if path.is_dir()})
            begun = [run for run in (_read(place, folder.name, 0) for place in places) if run.updates]
            if not begun and len(folders) > 1:
                warnings.warn(f"{folder} holds no run that has saved anything, and is left out", UserNotice, stacklevel=2)
            loose += [replace(run, seed=int(run.config["seed"]), stratum=_setting(run.config, strata)) for run in begun]
    _name_arms(loose, strata)
    _refuse_nothing(found + loose, folders)
    if strata:
        settings = sorted({(run.stratum, run.seed) for run in found + loose})
        numbers = {setting: number for number, setting in enumerate(settings)}
        found = [replace(run, block=numbers[run.stratum, run.seed]) for run in found + loose]
    elif loose or len(folders) > 1:
        found = [replace(run, block=run.seed) for run in found + loose]
    there: dict[tuple[str, int], Run] = {}
    for run in found:
        twin = there.setdefault((run.arm, run.block), run)
        if twin is not run:
            keys = [key for key in run.config if str(run.config[key]) != str(twin.config.get(key))]
            aside = f", which differ in {keys[0]}" if keys else ""
            raise ConfigError(
                f"{run.folder} and {twin.folder} are both block {run.block} of arm {run.arm}{aside}: name only one of them"
            )
    return found


def _refuse_nothing(runs: Sequence[Run], folders: Sequence[Path]) -> None:
    """Raise ConfigError, with what to do about it, if no run is finished."""
    if any(run.finished for run in runs):
        return
    where = f"{', '.join(map(str, folders))}: there is no finished run"
    if planned := next((folder for folder in folders if (folder / FILE).exists()), None):
        command = command_of(Design.load(planned), planned)
        raise ConfigError(f"{where} among the {len(runs)} planned ones, so there is nothing to compare: continue with {command}")
    raise ConfigError(
        f"{where} in these folders, so there is nothing to compare: name the folder of an experiment, as in python -m "
        "esper.compare multirun/ab/2026-11-21_12-00-00, or start one with python -m esper.train -m sweep=ab"
    )


def _read(folder: Path, arm: str, block: int, seed: int = 0) -> Run:
    return retry_if_removed(lambda: _read_newest(folder, arm, block, seed))  # the run may go on


def _read_newest(folder: Path, arm: str, block: int, seed: int) -> Run:
    newest = Checkpoints(folder / CHECKPOINTS).latest()
    if newest is None:
        return Run(arm=arm, block=block, folder=folder, seed=seed)
    state, digest = load_run_and_digest(newest)
    plain = state["config"]
    return Run(
        arm=arm,
        block=block,
        folder=folder,
        seed=seed,
        update=update_of(newest),
        updates=plain["values"]["updates"],
        saved=plain,
        config=flat(plain),
        digest=digest,
        data=str(state["hparams"].get("data", "")),
    )


def with_moved_data(runs: Sequence[Run], overrides: Sequence[str]) -> tuple[list[Run], list[str]]:
    """Return the runs of a comparison with the new paths of their data, and the overrides that change something.

    Args:
        runs: all runs.
        overrides: evaluation overrides. The path of data, as in task.file=FILE, is a new path if the data of every run lies
            there, and else that of other data to evaluate on.

    Raises:
        TaskError: there is no data under the path.
        ConfigError: an override does not fit.
    """
    if without_paths(overrides) == [*overrides]:
        return [*runs], [*overrides]
    moved = {str(run.folder): relocated(from_plain(run.saved), overrides, run.data) for run in runs if run.finished and run.data}
    rest = [others for _, others in moved.values()]
    if not rest or any(len(others) == len(overrides) for others in rest):
        return [*runs], [*overrides]
    paths = tuple(one for one in overrides if one not in rest[0])
    plain = {folder: to_plain(config) for folder, (config, _) in moved.items()}
    there = [(run, plain.get(str(run.folder))) for run in runs]
    return [replace(run, saved=new, config=flat(new), paths=paths) if new else run for run, new in there], rest[0]


def _setting(config: Mapping[str, Any], strata: Sequence[str]) -> str:
    """Return the stratum of a run.

    Raises:
        ConfigError: its config has no such key.
    """
    for key in strata:
        if config and key not in config:
            raise ConfigError(f"strata={key} is not a key of these runs: choose one in which they differ, such as task")
    return ",".join(str(config.get(key)) for key in strata)


_TEACHER = "agent.teacher"


def _name_arms(runs: Sequence[Run], strata: Sequence[str]) -> None:
    """Name the arms of runs without a design: by the folder that was named, if each holds one arm and no name is a date or a
    number; otherwise by the values in which they differ."""
    aside = (*UNSHARED, *strata)
    keys = dict.fromkeys(key for run in runs for key in run.config if key not in aside and group_of(key) not in aside)
    configs = [dict(run.config) for run in runs]
    taught = {(run.seed, teacher) for run in runs if (teacher := run.config.get(_TEACHER))}
    seeds, teachers = ({pair[index] for pair in taught} for index in (0, 1))
    if len(seeds) == len(taught) and len(teachers) > 1:  # as in agent.teacher='multirun/teachers/${seed}'
        configs = [config | {_TEACHER: "of_each_seed"} if config.get(_TEACHER) else config for config in configs]
    differ = [key for key in keys if len({str(config.get(key)) for config in configs}) > 1]
    # Different options of a group have different keys: name the option, and a key only if it differs within an option.
    chosen = [key for key in differ if "." not in key or group_of(key) not in differ or _differs_in_choice(configs, key)]
    by_value = [",".join(_in_name(key, config[key]) for key in chosen if key in config) for config in configs]
    pairs = {(run.arm, name) for run, name in zip(runs, by_value, strict=True)}
    folders, values = ({pair[index] for pair in pairs} for index in (0, 1))
    if len(folders) == len(values) == len(pairs) and all(name[:1].isalpha() for name in folders):
        return
    for run, name in zip(runs, by_value, strict=True):
        run.arm = name or run.arm


def _in_name(key: str, value: object) -> str:
    """Return a value as it stands in the name of an arm: an option of a group alone, others with their key."""
    if key in GROUPS and isinstance(value, str):
        return value
    text = f"[{','.join(map(str, value))}]" if isinstance(value, list) else "null" if value is None else str(value)
    return f"{key}={text}"


def _differs_in_choice(configs: Sequence[Mapping[str, Any]], key: str) -> bool:
    values = {(str(config.get(group_of(key))), str(config.get(key))) for config in configs}
    return len(values) > len({choice for choice, _ in values})


def records_of(run: Run) -> list[dict[str, float]]:
    """Return the metrics and times of a run, one record per update.

    Raises:
        ConfigError: a file cannot be read, or was changed after training.
    """
    records: dict[float, dict[str, float]] = {}
    metrics, times = (run.folder / f"{name}.jsonl" for name in ("metrics", "times"))
    for path in (metrics, times):
        try:
            found = read_records(path)
            if run.finished and (not found or found[-1]["update"] < run.updates):
                raise ValueError(f"it ends before update {run.updates}")
            for record in found:
                records.setdefault(record["update"], {}).update(record)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read ({error}): remove the run, or train it again") from error
    if update := changed_update(metrics, list(records.values()), run.update):
        raise ConfigError(
            f"{metrics} was changed after training: update {update} does not have its checksum in {times.name}; restore it, or "
            "remove the run and train it again"
        )
    return [{tag: value for tag, value in record.items() if tag != CHECK} for record in records.values()]


def regular(records: Sequence[Mapping[str, float]], every: int, updates: int) -> list[Mapping[str, float]]:
    """Return the records that `telemetry.every` selects, and the last one. Updates written only because of an anomaly are left
    out, since they would bias means."""
    return [record for record in records if record["update"] % every == 0 or record["update"] == updates]
