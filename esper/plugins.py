"""External parts: `esper.register` adds an option to a group, and plugins are the modules that call it.

A plugin is named on the command line, as in plugins=[my_parts] or plugins=[path/to/my_parts.py], or installed with an entry point
of the group `esper.parts`. Its options are then options like any other, and the run records the plugins that it needs.
"""

import importlib
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import is_dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import entry_points
from inspect import get_annotations
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

import yaml

from esper.config import CONF, GROUPS, MANY, Config, ConfigError, did_you_mean, root_key, store_option
from esper.hosts.custom import IMPORTED
from esper.notices import UserNotice
from esper.options import keys_of
from esper.telemetry.writers import WRITERS, WriterConfig
from esper.text import error_in_words

ENTRY_POINTS = "esper.parts"
"""Entry point group of plugins."""
CLOSED = ("devices", "cluster", "telemetry")
"""Groups that accept no external parts."""
_named: dict[str, str] = {}
"""Module -> plugin as it was named, files with their full paths, of those that were imported."""
_installed: list[str] = []
"""Modules of the installed plugins."""
_NAME = re.compile(r"[A-Za-z][\w.-]*")


def register(group: str, name: str, config: Any) -> None:
    """Add an option to a group, so that `group=name` chooses it.

    Args:
        group: agent, blueprint, reward, task, ... or writer, for an entry of telemetry.writers.
        name: name of the option, as typed on the command line.
        config: dataclass of the part, derived from the base config of its group. Registering the same class again does nothing.

    Raises:
        ConfigError: there is no such group, the name is taken, or the class is not a config of the group.
    """
    tables: dict[str, dict[str, Any]] = {key: table for key, table in GROUPS.items() if key not in CLOSED}
    tables["writer"] = WRITERS
    if group not in tables:
        hint = did_you_mean(group, list(tables))
        raise ConfigError(f"there is no group {group} to register {name} in: choose one of {', '.join(tables)}{hint}")
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot name an option of group {group}: use letters, digits and _ . -")
    if group in MANY and "." in name:  # it is a part of the option's keys
        raise ConfigError(f"{name!r} cannot name an option of group {group}, whose keys have dots: use letters, digits and _ -")
    option, table = f"{group}={name}", tables[group]
    if table.get(name, config) is not config:
        raise ConfigError(
            f"{option} exists already, as {_address(table[name])}: register {_address(config)} by another name, or leave one of "
            "the two out, which a run may have recorded"
        )
    if group in GROUPS and (CONF / group / f"{name}.yaml").exists():
        raise ConfigError(f"{option} exists already, as a preset in conf/: register {_address(config)} by another name")
    if not (isinstance(config, type) and is_dataclass(config) and "__dataclass_fields__" in vars(config)):
        raise ConfigError(
            f"{option} needs a dataclass, got {_address(config)}: put @dataclass(kw_only=True, slots=True) above it"
        )
    if not issubclass(config, base := _base(group)):
        raise ConfigError(f"{option} must derive from {_address(base)}, and {_address(config)} does not")
    _check_parents(option, config)
    if lost := [key for key in getattr(config, "pays", ()) if key not in config.__dataclass_fields__]:
        kind = config.__name__
        near = did_you_mean(lost[0], list(config.__dataclass_fields__)).removeprefix("; ")
        remedy = near or f"add {lost[0]}: float = 1.0"
        raise ConfigError(f"{kind}.pays names the weight {lost[0]}, but {kind} has no such field: {remedy}")
    for term in getattr(config, "pays", {}).values():
        if unread := [key for key in term.reads if key not in config.__dataclass_fields__ and not hasattr(config, key)]:
            raise ConfigError(
                f"{config.__name__}.pays has the term {term.name}, which reads {unread[0]}, but {config.__name__} has no such "
                f"field: add it, as the modes in esper/reward/modes.py do"
            )
    table[name] = config
    if group in GROUPS:
        store_option(group, name, config)


def _check_parents(option: str, config: type) -> None:
    """Raise ConfigError if a parent of a config sets keys and is no dataclass, or if several options are one text."""
    for parent in config.__mro__:
        if parent.__module__.startswith("esper."):
            break
        if "__dataclass_fields__" not in vars(parent) and (found := keys_of(config) & {*vars(parent), *get_annotations(parent)}):
            raise ConfigError(
                f"{option}: {min(found)} of {parent.__name__} has no effect, since {parent.__name__} is no dataclass: put "
                "@dataclass(kw_only=True, slots=True) above it"
            )
    for name in (f"default_{group}" for group in MANY):
        if isinstance(value := getattr(config, name, None), str):
            raise ConfigError(f"{option}: {name} = {value!r} must be several names: write {name} = ({value!r},)")


def _base(group: str) -> type:
    """Return the class that all configs of a group derive from: the type of its field in the root config."""
    if group == "writer":
        return WriterConfig
    hint = get_type_hints(Config)[group]
    return get_args(hint)[1] if group in MANY else hint


def _address(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}" if isinstance(thing, type) else repr(thing)


def load_plugins(names: Iterable[str]) -> None:
    """Import the installed plugins, then those named; each is imported once per process.

    Raises:
        ConfigError: one cannot be imported, or its parts cannot be registered.
    """
    _load_installed()
    for name in names:
        _import(name)


def named_plugins() -> list[str]:
    """Return the plugins that were named and imported in this process, for another process to import."""
    return [*_named.values()]


def plugin_digests() -> dict[str, str]:
    """Return the SHA-256 of the source of every plugin and custom host in this process, by module: of its package or file."""
    return {
        name: sha256(b"".join(path.read_bytes() for path in files if path.is_file())).hexdigest()  # one may have moved
        for name, files in _sources().items()
    }


def _sources() -> dict[str, list[Path]]:
    """Return the files of every plugin and custom host in this process, by module: those of its package, or its file."""
    found: dict[str, list[Path]] = {}
    for name in dict.fromkeys([*_named, *_installed, *IMPORTED]):
        if file := getattr(sys.modules.get(name), "__file__", None):
            top = sys.modules[name.partition(".")[0]]
            found[name] = sorted(Path(top.__path__[0]).rglob("*.py")) if hasattr(top, "__path__") else [Path(file)]
    return found


def module_of(plugin: str) -> str:
    """Return the module of a plugin, named by import path or by file."""
    return Path(plugin).stem if plugin.endswith(".py") else plugin


@cache
def _load_installed() -> None:
    for point in entry_points(group=ENTRY_POINTS):
        try:
            point.load()
            _installed.append(point.module)
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"the installed plugin {point.name} ({point.value}) cannot be imported: {_why(error)}: fix or uninstall it"
            ) from error


def _import(name: str) -> None:
    """Import one plugin. If a recorded file has moved, search for it by its module name."""
    module, path = module_of(name), Path(name).absolute()
    is_file = name.endswith(".py") and path.is_file()
    if is_file and "." in module:  # Python would look for a module within a package
        raise ConfigError(f"plugins=[{name}] cannot be imported, since its name has a dot: rename the file, without dots")
    if is_file and str(path.parent) not in sys.path:
        # Append, so that no other module is hidden; also set the environment, for the processes of launchers.
        sys.path.append(str(path.parent))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(path.parent)]))
    new, before = module not in sys.modules, _options()
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.split(".")[0] and error.name != module:
            raise ConfigError(f"plugins=[{name}] cannot be imported: {_why(error)}") from error
        raise ConfigError(
            f"plugins=[{name}] is not found: run from its folder, put that on PYTHONPATH, or give the path of its file; "
            f"if a run recorded it and it has moved since, append plugins=[FOLDER/{path.name}], under the same name"
        ) from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"plugins=[{name}] cannot be imported: {_why(error)}") from error
    file = getattr(found, "__file__", None)  # modules built into Python have none
    if is_file and not (file and path.samefile(file)):
        raise ConfigError(f"plugins=[{name}] shares its name with the module {file or module}: rename the file")
    _named[module] = str(path) if is_file else name
    if new and _options() == before:
        warnings.warn(
            f"plugins=[{name}] registers no part: call esper.register(group, name, Config) in it", UserNotice, stacklevel=2
        )


def _options() -> int:
    """Return how many options all groups have."""
    return sum(map(len, GROUPS.values())) + len(WRITERS)


def _why(error: BaseException) -> str:
    """Return an error in one line, with its place in the plugin unless its message is for the user."""
    return " ".join(str(error).split()) if isinstance(error, ConfigError) else error_in_words(error)


def place_in_plugin(error: BaseException) -> str:
    """Return file and line of the last call in a plugin that led to an error, as in my_parts.py, line 12; empty if none did."""
    files = {str(path) for paths in _sources().values() for path in paths}
    calls = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    calls += getattr(error.__cause__, "places", [])  # of a worker
    places = [f"{Path(file).name}, line {line}" for file, line in calls if file in files]
    return places[-1] if places else ""


def split_plugins(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the plugins that a command line names, and its other overrides.

    The command line is read before Hydra composes the config, since options must be registered by then.

    Raises:
        ConfigError: the value is not a list of names.
    """
    names: list[str] = []
    others: list[str] = []
    for override in overrides:
        if root_key(override) != "plugins":
            others.append(override)
            continue
        value = override.partition("=")[2]
        try:
            found = yaml.safe_load(value)
        except yaml.YAMLError:
            found = None
        if not isinstance(found, list):
            raise ConfigError(
                f"plugins must be a list, got {value}: write 'plugins=[my_parts]' or 'plugins=[path/to/my_parts.py]'"
            )
        names += map(str, cast(list[object], found))
    return names, others
