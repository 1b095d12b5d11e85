"""Checks of single overrides: the option exists in its group, the key exists in the config."""

import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, get_type_hints

import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, ListConfig, OmegaConf

from esper.cli.help import in_words
from esper.config import ALIASES, CONF, GROUPS, MANY, Config, ConfigError, did_you_mean, renamed
from esper.training.config_io import dotted

ROOT_KEYS = {field.name for field in fields(Config)} - {*GROUPS}
"""Root keys that are no groups: Hydra need not look for their options."""
FAMILIAR = {
    "epochs": "steps, the host epochs of an episode, or agent.epochs, the passes of the controller over its data",
    "lr": "agent.learning_rate, of the controller, or optimiser.learning_rate, of the hosts",
    "learning_rate": "agent.learning_rate, of the controller, or optimiser.learning_rate, of the hosts",
    "entropy": "agent.entropy_coef",
    "batch_size": "task.batch_size",
    "page": "telemetry.page_hosts=0, for no page",
}
"""Name of a key in other programs -> the keys of Esper that are meant."""


def check_choice(override: Override, options: list[str]) -> None:
    """Check that an override chooses options of its group."""
    group = str(override.key_or_group)
    if override.is_delete():
        return
    if override.is_sweep_override():
        together = f", or write '{group}=[{str(override.input_line).partition('=')[2]}]' for all of them in one run"
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
            plural = f"{group}s" in ROOT_KEYS and name.isdecimal()
            hint = f"; did you mean {group}s={name}?" if plural else _hint_on(group, name, options)
            raise ConfigError(f"there is no option {name} in group {group}: choose from {', '.join(options)}{hint}")


def _hint_on(group: str, option: str, options: Sequence[str]) -> str:
    """Return what to do about an option that a group does not have: the extra that brings it, the closest one, or a plugin."""
    extra = {"joblib": "parallel", "submitit_local": "slurm", "submitit_slurm": "slurm"}.get(option)
    if extra and group == "hydra/launcher":
        return f"; {option} comes with an extra: pip install -c constraints.txt -e '.[{extra}]'"
    return (
        did_you_mean(option, list(options)) or "; options of your own need plugins=[FILE], and presets of your own --config-dir"
    )


def check_key(loader: ConfigLoader, cfg: DictConfig, override: Override) -> None:
    """Check that a config has the key of an override."""
    key = str(override.key_or_group)
    node: Any = cfg
    path: list[str] = []
    for part in key.split("."):
        whole = ".".join(path)
        if isinstance(node, ListConfig):
            if part.isdecimal() and int(part) < len(node) and not override.is_delete():
                return
            raise ConfigError(f"{key} is not a key, since {whole} is a list: write '{whole}=[...]'")
        if not isinstance(node, DictConfig):
            raise ConfigError(f"{key} is not a key, since {whole} is a single value: write {whole}=...")
        if part not in node and not OmegaConf.is_missing(node, part):
            if path and path[0] in MANY and part in GROUPS[path[0]]:
                chosen = [] if path[0] == "devices" else [*map(str, node)]
                wanted, now = ",".join([*chosen, part]), ",".join(map(str, node))
                raise ConfigError(f"{key} has no effect, since {path[0]}=[{now}] is chosen: add '{path[0]}=[{wanted}]'")
            sweep = [] if cfg.hydra.sweeper["_target_"].endswith("BasicSweeper") else map(str, cfg.hydra.sweeper)
            extra = [] if path else [*loader.list_groups(""), *sweep]
            hidden = ("hydra", "_target_", *ALIASES)
            siblings = [name for name in dict.fromkeys([*map(str, node), *extra]) if name not in hidden]
            raise ConfigError(renamed(key) or _unknown_key(".".join([*path, part]), siblings, cfg))
        path.append(part)
        node = None if OmegaConf.is_missing(node, part) or OmegaConf.is_interpolation(node, part) else node[part]
    if override.is_delete() and path[0] != "hydra" and key not in GROUPS:
        raise ConfigError(f"{override.input_line} would remove a key that every run has: leave it out for the default of {key}")


def _unknown_key(key: str, siblings: list[str], cfg: DictConfig) -> str:
    """Return a sentence about a key that does not exist: the closest key, and the keys of its parent."""
    where, _, name = key.rpartition(".")
    group, _, inner = where.partition(".")
    with_it = [option for option, config in GROUPS.get(group, {}).items() if name in {field.name for field in fields(config)}]
    if with_it and not inner and group not in MANY:
        return f"there is no key {key} with the chosen option of {group}: it is one of {group}={', '.join(with_it)}"
    elsewhere = [
        path for path in dotted(OmegaConf.to_container(cfg)) if path.rpartition(".")[2] == name and not path.startswith("hydra.")
    ]
    close = FAMILIAR.get(key) or " or ".join(elsewhere[:3])
    hint = f"did you mean {close}? " if close else f"{did_you_mean(name, siblings).removeprefix('; ')} ".lstrip()
    return f"there is no key {key}: {hint}{where or 'the config'} has {', '.join(siblings) or 'no keys'}"


def preset_error(message: str, choices: Sequence[str]) -> str:
    """Return Hydra's message on a preset that sets a key which another choice does not have as a sentence of ours, and other
    messages as they are.

    Args:
        message: the message on one line.
        choices: the options that the command chooses, as in `agent=wait`.
    """
    if found := re.match(r"In '(.+)/(.+)': Could not load '(.+)/(.+?)'", message):
        group, inner, other, option = found.groups()
        return f"the preset {group}={inner} starts from {option}, and {_no_option(other, option)}"
    if found := re.match(r"In '.*': Could not (?:find|load) '(.+)/(.+?)'", message):
        other, option = found.groups()
        typed = [choice.removeprefix("task=") for choice in choices if choice.startswith("task=")]
        for task in (*typed, *GROUPS["task"]):  # a preset may choose one that is not typed
            brought = getattr(GROUPS["task"].get(task), f"default_{other}", None)
            if option == brought or (other in MANY and brought and option in brought):
                return f"task={task} has default_{other} = {option!r}, and {_no_option(other, option)}"
    if found := re.match(r"In '(.+)/(.+)': ValidationError .*: (Value .*) full_key: (\S+)", message):
        group, inner, why, key = found.groups()
        return f"the preset {group}={inner} sets {key} to a value of another type: {why}"
    found = re.match(r"In '(.+)/(.+)': ConfigKeyError .* Key '(.*)' not in '(.*)' full_key: ((\w+)\S*)", message)
    if not found:
        return message
    group, inner, name, kind, key, other = found.groups()
    chosen = {choice.partition("=")[0]: choice for choice in choices}
    preset = chosen.get(group, f"{group}={inner}")
    options = [one for one in GROUPS.get(other, {}).values() if other not in MANY or one.__name__ == kind]
    if group == other or not any(name in {field.name for field in fields(one)} for one in options):
        config = Config if key == name else next((one for one in options if one.__name__ == kind), None)
        return _misspelt(f"the preset {group}={inner}", key, name, config)
    path = CONF / group / f"{preset.partition('=')[2]}.yaml"
    defaults = (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("defaults", []) if path.exists() else []
    task = None if "task" in chosen else next((one["override /task"] for one in defaults if "override /task" in one), None)
    instead = f"write task={task} instead of {preset}" if task else f"leave {preset} out"
    which = chosen.get(other, f"the chosen option of {other}")
    return f"{preset} sets {key}, which {which} does not have: {instead}, or choose another {other}"


def _no_option(group: str, name: str) -> str:
    options = sorted({*GROUPS.get(group, {}), *(path.stem for path in (CONF / group).glob("*.yaml"))})
    return f"there is no option {name} in group {group}: choose from {', '.join(options)}{did_you_mean(name, options)}"


def _misspelt(preset: str, key: str, name: str, config: Any) -> str:
    """Return a sentence on a key that a preset sets, and that no option has; `config` is the class of its parent, None if the
    preset starts from no option."""
    if config is None:
        return f"{preset} sets {key}, but starts from no option: put `defaults: [OPTION]` at its top"
    names = [field.name for field in fields(config)]
    hint = f"{did_you_mean(name, names).removeprefix('; ')} ".lstrip()
    return f"{preset} sets {key}, and there is no such key: {hint}{key.rpartition('.')[0] or 'the config'} has {', '.join(names)}"


def value_kind(cfg: DictConfig, key: str) -> str:
    """Describe the values of a key in plain English."""
    parent, _, name = key.rpartition(".")
    holder = OmegaConf.get_type(OmegaConf.select(cfg, parent) if parent else cfg)
    hints = get_type_hints(holder) if isinstance(holder, type) else {}
    return in_words(hints[name]) if name in hints else "of another type"
