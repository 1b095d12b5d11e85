"""Validation of command-line overrides before anything is written, with one sentence per mistake.

Hydra creates the folder of a run before the config is validated, and its error messages assume knowledge of Hydra. So every
command, including all jobs of a sweep, is composed here first, and only a valid command reaches Hydra. Hydra composes the groups;
keys are applied one by one, to find the first mistake.
"""

import math
import os
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from weakref import WeakKeyDictionary

from hydra import compose
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from esper.cli.keys import ROOT_KEYS, check_choice, check_key, preset_error, value_kind
from esper.cli.quoting import quoted, typed_as
from esper.cli.search_path import hydra_at_conf
from esper.config import ALIASES, GROUPS, MANY, Config, ConfigError, root_key, typed
from esper.pool.local import all_cores
from esper.training.config_io import to_plain
from esper.training.run_folder import new_folder

OmegaConf.register_new_resolver("new_folder", new_folder, replace=True, use_cache=True)  # launchers pass the cache on

FOLDERS = ("resume", "hydra.run.dir", "hydra.sweep.dir")
"""Keys that name a folder."""
JOBS_PER_CORE = 4
"""Maximum number of processes of a sweep per core: joblib starts all of them at once."""
RUNS = 10_000
"""Maximum number of runs of a sweep; each is checked before the first one starts."""

_known = WeakKeyDictionary[ConfigLoader, dict[tuple[str, ...], tuple[DictConfig, dict[str, Any]]]]()
"""Composed choices of groups. Runs of a sweep mostly differ in keys only, and composing takes ten times as long as copying."""

# Errors of Hydra while it composes; none of our code runs then, so these are never bugs of ours.
_COMPOSING = (HydraException, OmegaConfBaseException, YAMLError, ValueError)


def check(overrides: list[str]) -> Config:
    """Return the typed config of one run; see `plan_run`."""
    return plan_run(overrides)[0][0]


def config_of(overrides: list[str]) -> Config:
    """Return the typed config of these overrides without looking at its folder; ConfigError if they do not give one."""
    with hydra_at_conf() as loader:
        return _job(loader, overrides, "config")[0]


def plan_run(overrides: list[str], *, config_name: str = "config") -> tuple[list[Config], Path]:
    """Return the typed config of one run, and its folder, after checking that it can be written into.

    Raises:
        ConfigError: the overrides do not give a valid config.
    """
    with hydra_at_conf() as loader:
        config, cfg = _job(loader, overrides, config_name)
        if config.resume is not None and (not config.resume or Path(config.resume).is_file()):
            raise ConfigError(
                f"resume={config.resume} names no folder: write resume=FOLDER, the folder of a run, or leave it out"
            )
        return [config], _check_folder(cfg, "hydra.run.dir", resumed=config.resume)


def check_over(saved: Config, overrides: list[str]) -> Config:
    """Return the typed config of a saved run with overrides.

    Choosing a group resets it to its defaults, as in a new run, even if the choice is unchanged. Setting a key replaces one
    value. Everything else keeps its saved value.

    Raises:
        ConfigError: the overrides do not fit the config.
    """
    plain = to_plain(saved)
    with hydra_at_conf() as loader:
        parsed = _parsed(loader, overrides)
        for override in parsed:
            if override.is_sweep_override():
                raise ConfigError(
                    f"{override.input_line} names several values for one run: give one, or repeat the command for each"
                )
        groups, keys = _split(loader, parsed)
        named = {str(override.key_or_group) for override in groups}
        anew = {ALIASES.get(group, group) for group in named}
        anew |= (
            {"host", "optimiser", "governor"} if "task" in anew else set()
        )  # which depend on the data; reward and slots are the run's
        kept = {group: chosen for group, chosen in plain["options"].items() if group not in anew}
        chosen = [f"{group}=[{','.join(name)}]" if group in MANY else f"{group}={name}" for group, name in kept.items()]
        cfg, choices = _composed([*chosen, *_override_strings(groups)], "config")
        choices |= {group: plain["choices"][group] for group in kept}
        for key, value in plain["values"].items():
            if key not in anew:
                OmegaConf.update(cfg, key, value, merge=True)
        _apply(loader, cfg, keys)
    config = _typed_config(cfg, choices)
    _refuse_ignored(config, overrides)
    return config


def plan_sweep(overrides: list[str], *, config_name: str = "config") -> tuple[list[Config], Path]:
    """Return the typed configs of all jobs of a sweep, in the order in which they will run, and the folder of the sweep.

    The configs are empty for a sweeper that draws values as it goes.

    Raises:
        ConfigError: a job of the sweep is invalid. None is started.
    """
    _register_sweepers()
    with hydra_at_conf() as loader:
        parsed = _parsed(loader, overrides)
        try:
            sweep = loader.load_configuration(config_name, list(overrides), run_mode=RunMode.MULTIRUN)
            sweeper = sweep.hydra.sweeper
            params = OmegaConf.to_container(sweeper.get("params") or OmegaConf.create({}), resolve=True)
        except _COMPOSING as error:
            _job(loader, [str(override.input_line) for override in parsed if not override.is_sweep_override()], config_name)
            raise ConfigError(_one_line(error)) from error
        folder = _check_folder(sweep, "hydra.sweep.dir")
        processes, most = sweep.hydra.launcher.get("n_jobs", 1), JOBS_PER_CORE * all_cores()
        if processes == 0 or processes > most:
            raise ConfigError(f"hydra.launcher.n_jobs must be 1 to {most} here, or -1 for one per core, got {processes}")
        target = str(sweeper.get("_target_"))
        if preview := getattr(get_class(target), "preview", None):
            if any(override.startswith("hydra.sweep.subdir=") for override in overrides):
                raise ConfigError("this sweep names the folders of its runs: leave out hydra.sweep.subdir")
            common = [override for override in overrides if not override.startswith("hydra.")]
            try:
                configs = [_job(loader, job, config_name)[0] for job in preview(sweep.hydra, common)]
            except ConfigError as error:
                _name_whole_interval(parsed, error)
                raise
            get_class(target).check(sweep.hydra, common, configs)
            return configs, folder
        if not target.endswith("BasicSweeper"):
            return [], folder  # other sweepers choose values during the sweep: there is nothing to check yet
        arms = [f"{key}={value}" for key, value in cast(dict[str, Any], params).items()]
        jobs = _jobs([*_parsed(loader, arms), *parsed])
        configs = [_job(loader, job, config_name)[0] for job in jobs]
        _check_subdirs(loader, sweep, jobs)
        return configs, folder


def _name_whole_interval(overrides: list[Override], error: ConfigError) -> None:
    """Raise ConfigError with the remedy if a value is refused since the interval of its key is one of real numbers."""
    for one in overrides:
        value, key = one.value(), one.key_or_group
        if isinstance(value, IntervalSweep) and str(error).startswith(f"{key} must be a whole number"):
            typed = str(one.input_line).partition("=")[2]
            raise ConfigError(f"{key} takes whole numbers: write '{key}=int({typed})'") from error


def _register_sweepers() -> None:
    """Register our sweepers and launcher with Hydra, whose search of folders misses packages of an editable install."""
    from hydra_plugins import esper_sweeps

    for plugin in (esper_sweeps.BlockSweeper, esper_sweeps.TuneSweeper, esper_sweeps.RayLauncher):
        Plugins.instance().register(plugin)


def _check_subdirs(loader: ConfigLoader, sweep: DictConfig, jobs: list[list[str]]) -> None:
    """Check that every run of a sweep has a folder of its own."""
    if cast(dict[str, Any], OmegaConf.to_container(sweep.hydra.sweep))["subdir"] == "${hydra.job.num}":
        return
    taken = set[Path]()
    for number, job in enumerate(jobs):
        cfg = loader.load_sweep_config(sweep, job)
        with open_dict(cfg.hydra.job):
            cfg.hydra.job.num, cfg.hydra.job.id = number, str(number)
        before = HydraConfig.instance().cfg
        HydraConfig.instance().set_config(cfg)  # from which ${hydra:...} reads
        try:
            name = Path(str(OmegaConf.select(cfg, "hydra.sweep.subdir")))
        except OmegaConfBaseException as error:
            raise ConfigError(f"hydra.sweep.subdir: {_one_line(error)}") from error
        finally:
            HydraConfig.instance().cfg = before
        if name in taken or name == Path():
            raise ConfigError(
                f"hydra.sweep.subdir gives several runs the folder {name}: leave it out, or let it contain '${{hydra.job.num}}'"
            )
        taken.add(name)


def _check_folder(cfg: DictConfig, key: str, *, resumed: str | None = None) -> Path:
    """Return the folder that a key of a command's config names, after checking that it can be written into.

    The folder is left as it was. A run must not change to its own folder: then relative paths would name others.

    Args:
        resumed: folder of the run that the command resumes.
    """
    if OmegaConf.select(cfg, "hydra.job.chdir"):
        raise ConfigError("hydra.job.chdir=true would change what relative paths name: leave it out")
    try:
        named = OmegaConf.select(cfg, key)
    except OmegaConfBaseException as error:
        raise ConfigError(_one_line(error)) from error
    if not isinstance(named, str) or not named:
        raise ConfigError(f"{key}={named or ''} names no folder: write {key}=FOLDER, or leave it out")
    folder = Path(named)
    try:
        with TemporaryDirectory(dir=next(place for place in (folder, *folder.absolute().parents) if place.exists())):
            pass
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        copied = f"copy it to where you can write, as in cp -r {shlex.quote(str(resumed))} ., and resume the copy"
        remedy = copied if resumed else f"choose another {key}"
        raise ConfigError(f"cannot write to {folder} ({why}): {remedy}, or remove the cause") from error
    return folder


def _job(loader: ConfigLoader, overrides: list[str], config_name: str) -> tuple[Config, DictConfig]:
    """Return the config of one run, typed and as Hydra composes it."""
    groups, keys = _split(loader, _parsed(loader, overrides))
    cfg, choices = _composed(_override_strings(groups), config_name)
    _apply(loader, cfg, keys)
    config = _typed_config(cfg, choices)
    _refuse_ignored(config, overrides)
    return config, cfg


def _refuse_ignored(config: Config, overrides: Sequence[str]) -> None:
    """Raise ConfigError for the first override without effect in the environment of a config."""
    for override in overrides:
        if root_key(override) in config.env.ignores:
            raise ConfigError(f"{override} has no effect with env={config.choice('env')}: leave it out")


def _parsed(loader: ConfigLoader, overrides: Sequence[str]) -> list[Override]:
    """Return overrides as Hydra reads them."""
    parser, parsed = OverridesParser.create(config_loader=loader), list[Override]()
    for override in overrides:
        with suppress(HydraException):
            parsed += [one for one in parser.parse_overrides([override]) if one.key_or_group]
        if not parsed or parsed[-1].input_line != override:
            raise ConfigError(_unreadable(override, overrides))
    return parsed


def _unreadable(override: str, others: Sequence[str]) -> str:
    """Return what is wrong with an override that Hydra cannot read, and how to write it.

    Args:
        others: all overrides of the command.
    """
    if "=~" in override:  # the shell expands ~ only at the start of a word
        return f"cannot read {override!r}: write the path without ~, as in {override.replace('~', os.path.expanduser('~'))}"
    if "=" in others:
        return f"cannot read {override!r}: write key=value without spaces around ="
    key, _, value = override.partition("=")
    if re.fullmatch(r"[\w./+~@:-]+", key) and value[:1] not in "[{(":  # else a list, which the shell may have split
        return f"cannot read {override!r}: quote the value, as in {shlex.quote(f'{key}={quoted(value)}')}"
    split = any(other.startswith(("arms=", "hydra.sweeper.arms=")) for other in others) and "=" not in override
    example = "arms='reward: shaped,sparse'" if split else "'devices=[cuda:0,cuda:1]'"
    return f"cannot read {override!r}: write key=value, and quote what the shell would split: {example}"


def _jobs(overrides: list[Override]) -> list[list[str]]:
    """Return every combination of the values swept over."""
    for override in overrides:
        if override.is_sweep_override() and getattr(override.value(), "shuffle", False):
            raise ConfigError(
                f"{override.input_line} draws another order each time, so that no sweep could be resumed: leave shuffle out"
            )
        if override.is_sweep_override() and not override.is_discrete_sweep():
            key = override.get_key_element()
            raise ConfigError(f"{override.input_line} is not a list of values: write them out, as in {key}=1,2,3")
    values = {str(override.input_line): _count(override) for override in overrides if override.is_sweep_override()}
    if not 1 <= (runs := math.prod(values.values())) <= RUNS:
        raise ConfigError(f"{' '.join(values)} asks for {runs} runs: a sweep has 1 to {RUNS}")
    return BasicSweeper.split_arguments(overrides, None)[0]


def _count(override: Override) -> int:
    """Return the number of values that an override sweeps over."""
    value = override.value()
    if not isinstance(value, RangeSweep):
        return sum(1 for _ in override.sweep_iterator())
    start, stop, step = (float(end or 0) for end in (value.start, value.stop, value.step))
    return max(0, math.ceil((stop - start) / step)) if step else 0


def _split(loader: ConfigLoader, overrides: list[Override]) -> tuple[list[Override], list[Override]]:
    """Split overrides into those of groups, including the search path, and those of keys."""
    searched = [override for override in overrides if override.key_or_group == "hydra.searchpath"]
    groups, keys = searched, list[Override]()
    names = {str(override.key_or_group): str(override.input_line) for override in overrides}
    for alias, group in ALIASES.items():
        if alias in names and group in names:
            raise ConfigError(f"{names[group]} and {names[alias]} choose from the same group: leave one out")
    for override in overrides:
        if override in searched:
            continue
        group = str(override.key_or_group)
        plain = "." in group or group in ROOT_KEYS
        more = {"config_name": "config", "overrides": _override_strings(searched)} if searched else {}
        try:
            found = [] if plain else loader.get_group_options(group, **more)  # pyright: ignore[reportArgumentType]
        except _COMPOSING as error:
            raise ConfigError(_one_line(error)) from error
        if options := list(dict.fromkeys([*GROUPS.get(group, ()), *found])):
            check_choice(override, options)
        (groups if options else keys).append(override)
    return groups, keys


def _override_strings(overrides: list[Override]) -> list[str]:
    return [str(override.input_line) for override in overrides]


def _composed(groups: list[str], config_name: str) -> tuple[DictConfig, dict[str, Any]]:
    """Return Hydra's config with these choices of groups, and the name of the option of each group."""
    known = _known.setdefault(GlobalHydra.instance().config_loader(), {})
    if (key := (config_name, *groups)) not in known:
        try:
            cfg = compose(config_name, overrides=groups, return_hydra_config=True)
        except _COMPOSING as error:
            raise ConfigError(preset_error(_one_line(error), groups)) from error  # the error is in a YAML file
        known[key] = cfg, cast(dict[str, Any], OmegaConf.to_container(cfg.hydra.runtime.choices))
    return deepcopy(known[key])


def _apply(loader: ConfigLoader, cfg: DictConfig, overrides: list[Override]) -> None:
    """Set keys of a config, as Hydra does."""
    for override in overrides:
        key = str(override.key_or_group)
        check_key(loader, cfg, override)
        if override.is_sweep_override():
            remedy = "add -m to run them one after another, or make arms of them"
            if key.startswith("hydra.") or key == "resume":
                remedy = f"write {typed_as(key, str(override.input_line).partition('=')[2])} if that is one value"
            raise ConfigError(f"{override.input_line} gives several values to one key: {remedy}")
        if key in FOLDERS and isinstance(override.value(), (bool, int, float)):
            text = str(override.input_line).partition("=")[2]
            raise ConfigError(f"{override.input_line} names the folder {override.value()}: write {typed_as(key, text)}")
        try:
            ConfigLoaderImpl._apply_overrides_to_config([override], cfg)  # pyright: ignore[reportPrivateUsage]
        except HydraException as error:
            wrong_type = (
                f"{key.removeprefix('hydra.sweeper.')} must be {value_kind(cfg, key)}, got {override.get_value_element_as_str()}"
            )
            raise ConfigError(wrong_type if error.__cause__ else _one_line(error)) from error


def _typed_config(cfg: DictConfig, choices: dict[str, Any]) -> Config:
    content = cast(dict[str, Any], cfg._content)  # pyright: ignore[reportPrivateUsage]  (a copy takes longer than all the rest)
    hydra = content.pop("hydra")
    try:
        return typed(cfg, choices)
    finally:
        content["hydra"] = hydra


def _one_line(error: BaseException | None) -> str:
    """Return message and causes of an error as one line, without OmegaConf's internal types."""
    parts: list[str] = []
    while error is not None:
        parts.append(" ".join(re.sub(r"\b(object_type|reference_type)=\S+", "", str(error)).split()))
        error = error.__cause__
    return ": ".join(part for part in parts if part)
