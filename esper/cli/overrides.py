"""Overrides of the command line, checked before anything is written; a fault becomes one sentence.

Hydra creates a run's folder before the run sees its config, and its errors are written for people who know Hydra. So every
command is composed here first, a sweep with all its jobs, and only a command without fault reaches Hydra. Composing takes a
tenth of a second; hydra.main offers no way to hand it a config that is already composed.
"""

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from itertools import product
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, cast, get_type_hints

from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.utils import get_class
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from esper.cli.help import in_words
from esper.config import (
    ALIASES,
    CONF,
    GROUPS,
    MANY,
    SWEEPS,
    Config,
    ConfigError,
    did_you_mean,
    moved_key,
    typed,
    unknown_key,
)
from esper.training.config_io import to_plain

# Errors of Hydra while it composes; none of our code runs then, so these are never bugs of ours.
_COMPOSING = (HydraException, OmegaConfBaseException, YAMLError, ValueError)

RENAMED = {f"telemetry.{name}": "telemetry.writers=[jsonl,tensorboard,console]" for name in ("console", "tensorboard", "jsonl")}
"""Former key -> what to type instead."""


@contextmanager
def hydra_at_conf() -> Generator[ConfigLoader]:
    """Start Hydra without a command, on our YAML folder."""
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        yield GlobalHydra.instance().config_loader()


def quoted(value: str) -> str:
    """Return a value quoted so that Hydra reads it back unchanged."""
    # Backslashes stand for themselves, except before a quote.
    escaped = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), value)
    return f"'{escaped}'"


def check(overrides: list[str], *, config_name: str = "config") -> Config:
    """Return the typed config of one run.

    Raises:
        ConfigError: the overrides give no config that can be run.
    """
    with hydra_at_conf() as loader:
        return _job(loader, overrides, config_name)


def check_over(saved: Config, overrides: list[str]) -> Config:
    """Return the typed config of a saved run with overrides.

    A group that is chosen comes with its defaults, as for a new run, even if the choice is the old one. A key that is set
    replaces one value. All else is as it was saved.

    Raises:
        ConfigError: the overrides do not fit it.
    """
    plain = to_plain(saved)
    with hydra_at_conf() as loader:
        parsed = [_parsed(loader, override) for override in overrides]
        _check_aliases(parsed)
        for override in parsed:
            if override.is_sweep_override():
                raise ConfigError(
                    f"{override.input_line} names several values for one run: give one, or repeat the command for each"
                )
        groups = {str(override.key_or_group) for override in parsed} & {*GROUPS, *ALIASES}
        anew = {ALIASES.get(group, group) for group in groups}
        anew |= {"host"} if "task" in anew else set()  # a task comes with its default host
        kept = {group: chosen for group, chosen in plain["options"].items() if group not in anew}
        words = [f"{group}=[{','.join(chosen)}]" if group in MANY else f"{group}={chosen}" for group, chosen in kept.items()]
        cfg, choices = _composed(loader, [*words, *overrides], "config")
    choices |= {group: plain["choices"][group] for group in kept}
    for key, value in plain["values"].items():
        if key not in anew:
            OmegaConf.update(cfg, key, value, merge=True)
    for override in parsed:
        if override.key_or_group not in groups:
            OmegaConf.update(cfg, str(override.key_or_group), override.value(), merge=True)
    return typed(cfg, choices)


def check_sweep(overrides: list[str], *, config_name: str = "config") -> list[Config]:
    """Return the typed configs of all jobs of a sweep, in the order in which they will run.

    Raises:
        ConfigError: some job of the sweep cannot be run. None has been started then.
    """
    with hydra_at_conf() as loader:
        for override in overrides:
            _parsed(loader, override)
        try:
            sweep = loader.load_configuration(config_name, list(overrides), run_mode=RunMode.MULTIRUN)
            sweeper = sweep.hydra.sweeper
            params = OmegaConf.to_container(sweeper.get("params") or OmegaConf.create({}), resolve=True)
        except _COMPOSING as error:
            plain = [override for override in overrides if not _parsed(loader, override).is_sweep_override()]
            raise ConfigError(_first_fault(loader, plain, config_name, error)) from error
        target = str(sweeper.get("_target_"))
        if preview := getattr(get_class(target), "preview", None):
            asked = cast(dict[str, Any], OmegaConf.to_container(sweeper))
            del asked["_target_"]
            common = [override for override in overrides if not override.startswith("hydra.")]
            return [_job(loader, job, config_name) for job in preview(asked, common)]
        if not target.endswith("BasicSweeper"):
            return []  # another sweeper draws its values as it goes: there is nothing to look at beforehand
        arms = [f"{key}={value}" for key, value in cast(dict[str, Any], params).items()]
        return [_job(loader, job, config_name) for job in _jobs(loader, [*arms, *overrides])]


def check_folder(overrides: list[str], *, config_name: str = "config", many: bool = False) -> None:
    """Check that a command can write into its folder, and leave the folder as it was.

    Raises:
        ConfigError: it cannot.
    """
    mode, key = (RunMode.MULTIRUN, "hydra.sweep.dir") if many else (RunMode.RUN, "hydra.run.dir")
    with hydra_at_conf() as loader:
        try:
            folder = Path(OmegaConf.select(loader.load_configuration(config_name, list(overrides), run_mode=mode), key))
        except _COMPOSING:
            return  # check and check_sweep report it
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    made: list[Path] = []
    try:
        for place in reversed(missing):
            place.mkdir(parents=True, exist_ok=True)  # another command may be looking too
            made.append(place)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ConfigError(f"nothing can be written into {folder} ({why}): choose another {key}, or mend that") from error
    finally:
        for place in reversed(made):
            with suppress(OSError):  # by now another run writes there
                place.rmdir()


def _jobs(loader: ConfigLoader, overrides: list[str]) -> Iterator[list[str]]:
    """Yield every combination of the values swept over; a later override replaces an earlier one of its key, as in Hydra."""
    values: dict[str, list[str]] = {}
    for typed_so in overrides:
        override = _parsed(loader, typed_so)
        key = override.get_key_element()
        if override.is_sweep_override() and not override.is_discrete_sweep():
            raise ConfigError(f"{typed_so} is no list of values: write them out, as in {key}=1,2,3")
        swept = override.is_sweep_override()
        found = override.sweep_string_iterator() if swept else [override.get_value_element_as_str()]
        values[key] = [f"{key}={value}" if value or not override.is_delete() else key for value in found]
    return map(list, product(*values.values()))


def _job(loader: ConfigLoader, overrides: list[str], config_name: str) -> Config:
    _check_aliases([_parsed(loader, override) for override in overrides])
    config = typed(*_composed(loader, overrides, config_name))
    for override in overrides:
        if re.split(r"[=.@]", override.lstrip("+~"), maxsplit=1)[0] in config.env.ignores:
            raise ConfigError(f"{override} has no effect with env={config.choice('env')}: leave it out")
    return config


def _composed(loader: ConfigLoader, overrides: list[str], config_name: str) -> tuple[DictConfig, dict[str, Any]]:
    """Return Hydra's config of one run, and the option that it chose from each group."""
    try:
        cfg = compose(config_name, overrides=overrides, return_hydra_config=True)
    except _COMPOSING as error:
        raise ConfigError(_first_fault(loader, overrides, config_name, error)) from error
    choices = cast(dict[str, Any], OmegaConf.to_container(cfg.hydra.runtime.choices))
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg, choices


def _check_aliases(overrides: list[Override]) -> None:
    keys = {str(override.key_or_group): override.input_line for override in overrides}
    for alias, group in ALIASES.items():
        if alias in keys and group in keys:
            raise ConfigError(f"{keys[group]} and {keys[alias]} choose from the same group: leave one out")


def _parsed(loader: ConfigLoader, override: str) -> Override:
    """Return one override as Hydra reads it."""
    remedy = "write key=value, as in seed=1 or 'devices=[cuda:0,cuda:1]'"
    try:
        parsed = OverridesParser.create(config_loader=loader).parse_overrides([override])[0]
    except HydraException as error:
        raise ConfigError(f"cannot read {override!r}: {remedy}") from error
    if not parsed.key_or_group:
        raise ConfigError(f"cannot read {override!r}: {remedy}")
    return parsed


def _first_fault(loader: ConfigLoader, typed_so: list[str], config_name: str, error: Exception) -> str:
    """Return why overrides do not compose, in one sentence: an unreadable one, a wrong option, a wrong key, a wrong value."""
    overrides = [_parsed(loader, override) for override in typed_so]
    searched = [override for override in typed_so if override.startswith("hydra.searchpath=")]
    options = [_options(loader, override, searched) for override in overrides]
    for override, names in zip(overrides, options, strict=True):
        if sentence := _wrong_choice(override, names):
            return sentence
    choices = [override for override, names in zip(typed_so, options, strict=True) if names] + searched
    try:
        cfg = compose(config_name, overrides=choices)
    except _COMPOSING as still:
        return _one_line(still)  # a YAML file is at fault
    for override, names in zip(overrides, options, strict=True):
        if sentence := _wrong_sweep_value(override):
            return sentence
        if override.is_hydra_override() or names:
            continue
        if sentence := _wrong_key(loader, cfg, override) or _wrong_value(cfg, override):
            return sentence
    return _one_line(error)


def _options(loader: ConfigLoader, override: Override, searched: list[str]) -> list[str]:
    """Return the options of the group that an override chooses from; empty if its key is no group."""
    group = str(override.key_or_group)
    found = loader.get_group_options(group, config_name="config", overrides=searched)
    return list(dict.fromkeys([*GROUPS.get(group, ()), *found]))


def _wrong_sweep_value(override: Override) -> str | None:
    """Return what is wrong with hydra.sweeper.blocks=two, which was typed as blocks=two."""
    name = str(override.key_or_group).removeprefix("hydra.sweeper.")
    for kind in SWEEPS.values():
        if name in (hints := get_type_hints(kind)) and override.is_hydra_override():
            try:
                OmegaConf.merge(OmegaConf.structured(kind), {name: override.value()})
            except OmegaConfBaseException:
                return f"{name} must be {in_words(hints[name])}, got {override.get_value_element_as_str()}"
    return None


def _wrong_choice(override: Override, options: list[str]) -> str | None:
    group = str(override.key_or_group)
    if override.is_delete() or not options:
        return None
    if override.is_sweep_override():
        return f"{override.input_line} names several options: add -m to run one after another" + (
            f", or write '{group}=[{','.join(override.sweep_string_iterator())}]' for all of them in one run"
            if group in MANY
            else ""
        )
    value = override.value()
    names = value if isinstance(value, list) else [value]
    if group == "slots" and any(re.fullmatch(r"r\d+c\d+", str(name)) for name in names):
        return f"{override.input_line} names no option: to name slots, write 'slots.where=[{','.join(map(str, names))}]'"
    if len(names) > 1 and group not in MANY:
        return f"{group} takes one option, got {override.input_line}: choose one of {', '.join(options)}"
    for name in names:
        if name not in options:
            shown = "null" if name is None else str(name)
            wrong = f"there is no option {shown} in group {group}: choose from {', '.join(options)}"
            return wrong + did_you_mean(shown, options)
    return None


def _wrong_key(loader: ConfigLoader, cfg: DictConfig, override: Override) -> str | None:
    if sentence := moved_key(str(override.key_or_group)):
        return sentence
    if new := RENAMED.get(str(override.key_or_group)):
        return f"there is no key {override.key_or_group} any more: write {new}"
    node: Any = cfg
    path: list[str] = []
    for part in str(override.key_or_group).split("."):
        if isinstance(node, ListConfig):
            return None
        if not isinstance(node, DictConfig):
            whole = ".".join(path)
            return f"{override.key_or_group} is no key, since {whole} is a single value: write {whole}=..."
        if part not in node:
            if path and path[0] in MANY and part in GROUPS[path[0]]:
                chosen = ",".join([*map(str, node), part])
                return f"{part} is not among the chosen {path[0]} options: add '{path[0]}=[{chosen}]'"
            extra = [] if path else [group for group in loader.list_groups("") if group != "hydra"]
            return unknown_key(".".join([*path, part]), list(dict.fromkeys([*map(str, node), *extra])), cfg)
        path.append(part)
        node = OmegaConf.select(node, part, throw_on_missing=False)
    return None


def _wrong_value(cfg: DictConfig, override: Override) -> str | None:
    key = str(override.key_or_group)
    if override.is_sweep_override():
        return (
            f"{override.input_line} gives several values to one key: add -m to run them one after another, or make arms of them"
        )
    if override.is_delete():
        return None
    try:
        OmegaConf.update(deepcopy(cfg), key, override.value(), merge=True)
    except OmegaConfBaseException:
        return f"{key} must be {_kind(cfg, key)}, got {override.get_value_element_as_str()}"
    return None


def _kind(cfg: DictConfig, key: str) -> str:
    """Return what a key may hold, in words."""
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
