"""Validation of command-line overrides before anything is written, with one sentence per mistake.

Hydra creates the folder of a run before the config is validated, and its error messages assume knowledge of Hydra. So every
command, including all jobs of a sweep, is composed here first, and only a valid command reaches Hydra. Hydra composes the groups;
keys are applied one by one, to find the first mistake.
"""

import math
import re
import shlex
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast, get_type_hints

from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, RangeSweep
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.utils import get_class
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from esper.cli.discovery import register_sweepers
from esper.cli.help import FAMILIAR, hint_on, in_words, unreadable
from esper.config import ALIASES, CONF, GROUPS, MANY, Config, ConfigError, did_you_mean, renamed, root_key, typed
from esper.env.shard_pool import all_cores
from esper.training.config_io import dotted, to_plain
from esper.training.run_folder import new_folder

OmegaConf.register_new_resolver("new_folder", new_folder, replace=True, use_cache=True)  # launchers pass the cache on

_KEYS = {field.name for field in fields(Config)} - {*GROUPS}
"""Root keys that are no groups: Hydra need not look for their options."""
_PLAIN = re.compile(r"[\w./+@%-]+")
"""Texts that Hydra reads unquoted."""
JOBS_PER_CORE = 4
"""Maximum number of processes of a sweep per core: joblib starts all of them at once."""
RUNS = 10_000
"""Maximum number of runs of a sweep; each is checked before the first one starts."""

# Errors of Hydra while it composes; none of our code runs then, so these are never bugs of ours.
_COMPOSING = (HydraException, OmegaConfBaseException, YAMLError, ValueError)


@contextmanager
def hydra_at_conf() -> Generator[ConfigLoader]:
    """Initialise Hydra with the YAML folder, without running a command; inside a run, Hydra is ready."""
    if GlobalHydra.instance().is_initialized():
        yield GlobalHydra.instance().config_loader()
        return
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        yield GlobalHydra.instance().config_loader()


def quoted(value: str) -> str:
    """Return a value quoted so that Hydra reads it back unchanged."""
    # Backslashes stand for themselves, except before a quote.
    escaped = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), value)
    return f"'{escaped}'"


def typed_as(key: str, value: object) -> str:
    """Return an override as it is typed in a shell, quoted for Hydra and for the shell where they need it."""
    text = str(value)
    return shlex.quote(f"{key}={text if _PLAIN.fullmatch(text) else quoted(text)}")


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
        return [config], _check_folder(cfg, "hydra.run.dir")


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
    return _typed_config(cfg, choices)


def check_sweep(overrides: list[str]) -> list[Config]:
    """Return the typed configs of all jobs of a sweep; see `plan_sweep`."""
    return plan_sweep(overrides)[0]


def plan_sweep(overrides: list[str], *, config_name: str = "config") -> tuple[list[Config], Path]:
    """Return the typed configs of all jobs of a sweep, in the order in which they will run, and the folder of the sweep.

    The configs are empty for a sweeper that draws values as it goes.

    Raises:
        ConfigError: a job of the sweep is invalid. None is started.
    """
    register_sweepers()
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
            configs = [_job(loader, job, config_name)[0] for job in preview(sweep.hydra, common)]
            get_class(target).check(sweep.hydra, common, configs)
            return configs, folder
        if not target.endswith("BasicSweeper"):
            return [], folder  # other sweepers choose values during the sweep: there is nothing to check yet
        arms = [f"{key}={value}" for key, value in cast(dict[str, Any], params).items()]
        jobs = _jobs([*_parsed(loader, arms), *parsed])
        configs = [_job(loader, job, config_name)[0] for job in jobs]
        _check_subdirs(loader, sweep, jobs)
        return configs, folder


def _check_subdirs(loader: ConfigLoader, sweep: DictConfig, jobs: list[list[str]]) -> None:
    """Check that every run of a sweep has a folder of its own."""
    if cast(dict[str, Any], OmegaConf.to_container(sweep.hydra.sweep))["subdir"] == "${hydra.job.num}":
        return
    taken = set[Path]()
    for number, job in enumerate(jobs):
        cfg = loader.load_sweep_config(sweep, job)
        with open_dict(cfg.hydra.job):
            cfg.hydra.job.num, cfg.hydra.job.id = number, str(number)
        HydraConfig.instance().set_config(cfg)  # from which ${hydra:...} reads
        try:
            name = Path(str(OmegaConf.select(cfg, "hydra.sweep.subdir")))
        except OmegaConfBaseException as error:
            raise ConfigError(f"hydra.sweep.subdir: {_one_line(error)}") from error
        finally:
            HydraConfig.instance().cfg = None
        if name in taken or name == Path():
            raise ConfigError(
                f"hydra.sweep.subdir gives several runs the folder {name}: leave it out, or let it contain '${{hydra.job.num}}'"
            )
        taken.add(name)


def _check_folder(cfg: DictConfig, key: str) -> Path:
    """Return the folder that a key of a command's config names, after checking that it can be written into.

    The folder is left as it was.
    """
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
        raise ConfigError(f"cannot write to {folder} ({why}): choose another {key}, or remove the cause") from error
    return folder


def _job(loader: ConfigLoader, overrides: list[str], config_name: str) -> tuple[Config, DictConfig]:
    """Return the config of one run, typed and as Hydra composes it."""
    groups, keys = _split(loader, _parsed(loader, overrides))
    cfg, choices = _composed(_override_strings(groups), config_name)
    _apply(loader, cfg, keys)
    config = _typed_config(cfg, choices)
    for override in overrides:
        if root_key(override) in config.env.ignores:
            raise ConfigError(f"{override} has no effect with env={config.choice('env')}: leave it out")
    return config, cfg


def _parsed(loader: ConfigLoader, overrides: Sequence[str]) -> list[Override]:
    """Return overrides as Hydra reads them."""
    parser, parsed = OverridesParser.create(config_loader=loader), list[Override]()
    for override in overrides:
        with suppress(HydraException):
            parsed += [one for one in parser.parse_overrides([override]) if one.key_or_group]
        if not parsed or parsed[-1].input_line != override:
            raise ConfigError(unreadable(override, overrides))
    return parsed


def _jobs(overrides: list[Override]) -> list[list[str]]:
    """Return every combination of the values swept over."""
    for override in overrides:
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
        plain = "." in group or group in _KEYS
        more = {"config_name": "config", "overrides": _override_strings(searched)} if searched else {}
        found = [] if plain else loader.get_group_options(group, **more)  # pyright: ignore[reportArgumentType]
        if options := list(dict.fromkeys([*GROUPS.get(group, ()), *found])):
            _check_choice(override, options)
        (groups if options else keys).append(override)
    return groups, keys


def _override_strings(overrides: list[Override]) -> list[str]:
    return [str(override.input_line) for override in overrides]


def _composed(groups: list[str], config_name: str) -> tuple[DictConfig, dict[str, Any]]:
    """Return Hydra's config with these choices of groups, and the name of the option of each group."""
    try:
        cfg = compose(config_name, overrides=groups, return_hydra_config=True)
    except _COMPOSING as error:
        raise ConfigError(_one_line(error)) from error  # the error is in a YAML file
    return cfg, cast(dict[str, Any], OmegaConf.to_container(cfg.hydra.runtime.choices))


def _apply(loader: ConfigLoader, cfg: DictConfig, overrides: list[Override]) -> None:
    """Set keys of a config, as Hydra does."""
    for override in overrides:
        key = str(override.key_or_group)
        _check_key(loader, cfg, key)
        if override.is_sweep_override():
            remedy = "add -m to run them one after another, or make arms of them"
            raise ConfigError(f"{override.input_line} gives several values to one key: {remedy}")
        try:
            ConfigLoaderImpl._apply_overrides_to_config([override], cfg)  # pyright: ignore[reportPrivateUsage]
        except HydraException as error:
            wrong_type = f"{key} must be {_kind(cfg, key)}, got {override.get_value_element_as_str()}"
            raise ConfigError(wrong_type if error.__cause__ else _one_line(error)) from error


def _typed_config(cfg: DictConfig, choices: dict[str, Any]) -> Config:
    content = cast(dict[str, Any], cfg._content)  # pyright: ignore[reportPrivateUsage]  (a copy takes longer than all the rest)
    hydra = content.pop("hydra")
    try:
        return typed(cfg, choices)
    finally:
        content["hydra"] = hydra


def _check_choice(override: Override, options: list[str]) -> None:
    """Check that an override chooses options of its group."""
    group = str(override.key_or_group)
    if override.is_delete():
        return
    if override.is_sweep_override():
        together = f", or write '{group}=[{','.join(override.sweep_string_iterator())}]' for all of them in one run"
        raise ConfigError(
            f"{override.input_line} names several options: add -m to run one after another{together * (group in MANY)}"
        )
    value = override.value()
    names = value if isinstance(value, list) else [value]
    if group == "slots" and any(re.fullmatch(r"r\d+c\d+", str(name)) for name in names):
        where = ",".join(map(str, names))
        raise ConfigError(f"{override.input_line} names no option: to name slots, write 'slots.where=[{where}]'")
    if len(names) > 1 and group not in MANY:
        raise ConfigError(f"{group} takes one option, got {override.input_line}: choose one of {', '.join(options)}")
    for name in ("null" if name is None else str(name) for name in names):
        if name not in options:
            plural = f"{group}s" in _KEYS and name.isdecimal()
            hint = f"; did you mean {group}s={name}?" if plural else hint_on(group, name, options)
            raise ConfigError(f"there is no option {name} in group {group}: choose from {', '.join(options)}{hint}")


def _check_key(loader: ConfigLoader, cfg: DictConfig, key: str) -> None:
    """Check that a config has a key."""
    if sentence := renamed(key):
        raise ConfigError(sentence)
    node: Any = cfg
    path: list[str] = []
    for part in key.split("."):
        whole = ".".join(path)
        if isinstance(node, ListConfig):
            return
        if not isinstance(node, DictConfig):
            raise ConfigError(f"{key} is not a key, since {whole} is a single value: write {whole}=...")
        if part not in node:
            if path and path[0] in MANY and part in GROUPS[path[0]]:
                chosen = [] if path[0] == "devices" else [*map(str, node)]
                wanted, now = ",".join([*chosen, part]), ",".join(map(str, node))
                raise ConfigError(f"{key} has no effect, since {path[0]}=[{now}] is chosen: add '{path[0]}=[{wanted}]'")
            sweep = [] if cfg.hydra.sweeper["_target_"].endswith("BasicSweeper") else map(str, cfg.hydra.sweeper)
            extra = [] if path else [*loader.list_groups(""), *sweep]
            hidden = ("hydra", "_target_", *ALIASES)
            siblings = [name for name in dict.fromkeys([*map(str, node), *extra]) if name not in hidden]
            raise ConfigError(_unknown_key(".".join([*path, part]), siblings, cfg))
        path.append(part)
        node = None if OmegaConf.is_missing(node, part) or OmegaConf.is_interpolation(node, part) else node[part]


def _unknown_key(key: str, siblings: list[str], cfg: DictConfig) -> str:
    """Return a sentence about a key that does not exist: the closest key, and the keys of its parent."""
    where, _, name = key.rpartition(".")
    elsewhere = [
        path for path in dotted(OmegaConf.to_container(cfg)) if path.rpartition(".")[2] == name and not path.startswith("hydra.")
    ]
    close = FAMILIAR.get(key) or " or ".join(elsewhere[:3])
    hint = f"did you mean {close}? " if close else f"{did_you_mean(name, siblings).removeprefix('; ')} ".lstrip()
    return f"there is no key {key}: {hint}{where or 'the config'} has {', '.join(siblings) or 'no keys'}"


def _kind(cfg: DictConfig, key: str) -> str:
    """Describe the values of a key in plain English."""
    parent, _, name = key.rpartition(".")
    holder = OmegaConf.get_type(OmegaConf.select(cfg, parent) if parent else cfg)
    hints = get_type_hints(holder) if isinstance(holder, type) else {}
    return in_words(hints[name]) if name in hints else "of another type"


def _one_line(error: BaseException | None) -> str:
    """Return message and causes of an error as one line, without OmegaConf's internal types."""
    parts: list[str] = []
    while error is not None:
        parts.append(" ".join(re.sub(r"\b(object_type|reference_type)=\S+", "", str(error)).split()))
        error = error.__cause__
    return ": ".join(part for part in parts if part)
