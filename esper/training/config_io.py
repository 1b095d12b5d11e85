"""Config I/O: conversion of configs to and from checkpoints, and the changes that a resumed run allows."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import reduce
from typing import Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from esper.config import ALIASES, GROUPS, MANY, Config, ConfigError, root_key, table_name, typed
from esper.plugins import load_plugins, module_of

ADDED = {"cluster": "local"}
"""Groups that runs of earlier versions lack, with the option that does what they did."""
CHANGEABLE = ("updates", "resume", "telemetry", "checkpoints", "plugins")
"""Root keys that may change when a run is resumed: they do not affect what was learned."""
PLACES = ("task.file", "task.folder", "task.root")
"""Keys of where the data lies. They may change, too: a run resumes on the same data only, wherever that is."""

MOST_NAMED = 3
"""Most settings that an error names."""


def to_plain(config: Config) -> dict[str, Any]:
    """Return the config as primitives.

    Returns:
        `choices`, the option of each group as it was typed; `options`, the name of its class in the table, by key in groups
        that hold several options; `values`, every key.
    """
    parts = {group: getattr(config, group) for group in GROUPS}
    choices: dict[str, Any] = {group: list(part) if group in MANY else config.choice(group) for group, part in parts.items()}
    options = {
        group: {name: _option(group, name, node) for name, node in part.items()}
        if group in MANY
        else _option(group, choices[group], part)
        for group, part in parts.items()
    }
    return {"choices": choices, "options": options, "values": _plain(config)}


def _plain(node: Any) -> Any:
    """Return a config as primitives, with enums by name: a hundred times as fast as OmegaConf, which would check types again."""
    if is_dataclass(node):
        return {field.name: _plain(getattr(node, field.name)) for field in fields(node)}
    if isinstance(node, dict):
        return {key: _plain(child) for key, child in cast(dict[Any, Any], node).items()}
    if isinstance(node, list | tuple):
        return [_plain(child) for child in cast(list[Any], node)]
    return node.name if isinstance(node, Enum) else node


def _option(group: str, name: str, node: object) -> str:
    return name if GROUPS[group].get(name) is type(node) else table_name(group, type(node))


def from_plain(plain: dict[str, Any]) -> Config:
    """Return the config that `to_plain` turned into primitives, after importing its plugins.

    Raises:
        ConfigError: a plugin is missing, or the config was written by another version, with other options or keys.
    """
    for key, value in dotted(plain["values"]).items():
        if "${" in repr(value):  # also within a list; resolving it could read the environment for the file's author
            raise ConfigError(f"the saved config has the interpolation {key}={value}, which Esper never writes: start a new run")
    load_plugins(plain["values"].get("plugins", ()))
    return _restored(plain)


def _restored(plain: dict[str, Any]) -> Config:
    """Return a config whose plugins are imported; see `from_plain`."""
    cfg = OmegaConf.structured(Config)
    try:
        for group, chosen in (ADDED | plain["options"]).items():
            many = group in MANY
            cfg[group] = {key: _class(group, name) for key, name in chosen.items()} if many else _class(group, chosen)
        cfg.merge_with(plain["values"])
    except (KeyError, OmegaConfBaseException) as error:
        raise ConfigError(f"the saved config was written by another version of esper ({error}): start a new run") from error
    return typed(cfg, plain["choices"])


def _class(group: str, name: str) -> type:
    if name not in GROUPS[group]:
        raise ConfigError(
            f"{group}={name} is not an option here: name the module that registers it, as in plugins=[my_parts], or start a new "
            f"run with one of {', '.join(GROUPS[group])}"
        )
    return GROUPS[group][name]


def differences(saved: Config, asked: Config) -> dict[str, Any]:
    """Return the keys in which two configs differ and that a resumed run may not change, with the saved values; of groups with
    another option, only the option."""
    a, b = flat(to_plain(saved)), flat(to_plain(asked))
    free = (*CHANGEABLE, *PLACES)
    found = {key: a.get(key) for key in a | b if a.get(key) != b.get(key) and not {key, key.split(".")[0]} & {*free}}
    return {key: value for key, value in found.items() if "." not in key or key.split(".")[0] not in found} or found


def is_path(override: str) -> bool:
    """Return whether an override says where data is."""
    return override.lstrip("+").partition("=")[0] in PLACES


def without_paths(overrides: Sequence[str]) -> list[str]:
    """Return the overrides without those that say where data is."""
    return [one for one in overrides if not is_path(one)]


def other_settings(saved: Config, asked: Config) -> str:
    """Return the first `differences` in words; empty if there are none."""
    found = differences(saved, asked)
    named = ", ".join(f"{key}={value}" for key, value in [*found.items()][:MOST_NAMED])
    return f"{named} and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else named


def flat(plain: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a plain config by dotted key; a group's choice stands under its name."""
    return plain["choices"] | dotted(plain["values"])


def dotted(node: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested dicts by dotted key."""
    if not isinstance(node, dict):
        return {prefix: node}
    children = cast(dict[str, Any], node).items()
    return {path: leaf for key, child in children for path, leaf in dotted(child, f"{prefix}.{key}".lstrip(".")).items()}


def resumed(saved: Config, asked: Config, overrides: list[str]) -> Config:
    """Return the config of a resumed run: the saved one with the permitted changes. Overrides that repeat what the run has are
    permitted; of a group, that is its option, whatever keys of it the run had changed.

    Args:
        saved: the config in the run's checkpoint.
        asked: the config of the command that resumes it.
        overrides: overrides of that command.

    Raises:
        ConfigError: an override asks for a change that is not permitted.
    """
    roots = [root_key(override) for override in overrides]
    keys = [override.lstrip("+~").partition("=")[0] for override in overrides]
    before, now = flat(to_plain(saved)), flat(to_plain(asked))
    unlike = differences(saved, asked)
    for root, name, override in zip(roots, keys, overrides, strict=True):
        if root in CHANGEABLE or name in PLACES:
            continue
        asks = ALIASES.get(name, name)
        part = [key for key in now | before if f"{key}.".startswith(f"{asks}.") and now.get(key) != before.get(key)]
        if asks in GROUPS:
            part = [key for key in part if key == asks]
        elif not hasattr(saved, root):  # such as experiment, which sets keys of several groups
            part = [*unlike]
        if part:
            key, free = part[0], ", ".join(key for key in CHANGEABLE if key != "resume")
            raise ConfigError(
                f"{override} cannot change when a run is resumed: the run has {key}={before.get(key)}, and the command asks for "
                f"{key}={now.get(key)}; leave {override} out, or start a new run (only {free} and the location of "
                "the data can change)"
            )
    config = from_plain(to_plain(saved))
    for root, key in zip(roots, keys, strict=True):
        repeated = root in GROUPS and asked.choice(root) == saved.choice(root)
        if (root not in CHANGEABLE and key not in PLACES) or (repeated and key == root):
            continue
        whole = root in CHANGEABLE and root in keys and not repeated
        *path, last = [root] if whole else key.split(".")  # a key of a group changes that key alone
        source, target = (reduce(getattr, path, one) for one in (asked, config))
        setattr(target, last, getattr(source, last))
    if "plugins" in roots:  # one may have moved; the run needs the others, too
        config.plugins = [*{module_of(name): name for name in [*saved.plugins, *asked.plugins]}.values()]
    if "telemetry" in keys:
        config.choices["telemetry"] = asked.choice("telemetry")
    return from_plain(to_plain(config))
