"""The help text of esper.train, read from the dataclasses. docs/config.md lists all keys."""

import ast
import inspect
import re
import textwrap
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from itertools import pairwise
from shutil import get_terminal_size
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from omegaconf import DictConfig, ListConfig, OmegaConf

from esper.config import ALIASES, CONF, GROUPS, MANY, Config
from esper.telemetry.writers import WRITERS

USAGE = """\
  python -m esper.train                                  one run with the defaults
  python -m esper.train reward=sparse hosts=64           another reward, more hosts
  python -m esper.train 'devices=[cuda:0,cuda:1]'        two devices (quoted: the shell reads [...])
  python -m esper.train -m reward=shaped,sparse seed=1,2 four runs, one after another
  python -m esper.train -m sweep=ab_reward               an A/B comparison on the same random seeds
  python -m esper.train --cfg job                        show the config, start nothing
  python -m esper.train 'plugins=[my_parts.py]' reward=mine  an option of your own (docs/extending.md)"""


def columns() -> int:
    """Return the width of a help text [columns]: one less than the terminal's, from 20 to 118."""
    return min(118, max(20, get_terminal_size((118, 24)).columns - 1))


def _usage(width: int) -> list[str]:
    """Return `USAGE` line by line; on a narrow terminal, what a command does stands below it."""
    lines = list[str](USAGE.splitlines())
    if max(map(len, lines)) <= width:
        return lines
    pairs = [re.split(r"(?<=\S)  +|(?<=seed=1,2) ", line.strip(), maxsplit=1) for line in lines]
    return [line for command, about in pairs for line in (f"  {command}", f"      {about}")]


@cache
def field_docs(node: type) -> dict[str, str]:
    """Return the docstrings under the fields of a config dataclass and its bases, one line each."""
    return {name: doc for base in reversed(node.__mro__[:-1]) for name, doc in docs_below(base).items()}


def docs_below(kind: type) -> dict[str, str]:
    """Return the strings below the fields of a class, or below the members of an enum, one line each; those of bases are left
    out."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for here, below in pairwise(body.body):
        target = here.target if isinstance(here, ast.AnnAssign) else here.targets[0] if isinstance(here, ast.Assign) else None
        if isinstance(target, ast.Name) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            docs[target.id] = " ".join(str(below.value.value).split())
    return docs


def yaml_names(group: str) -> list[str]:
    """Return the options of a group that is a folder of YAML files."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def groups() -> dict[str, list[str]]:
    """Return the options of every group in the table, the aliases and the YAML folders."""
    tables = {group: [*options, *yaml_names(group)] for group, options in GROUPS.items()}
    aliases = {alias: list(GROUPS[group]) for alias, group in ALIASES.items()}
    return {**tables, **aliases, "experiment": yaml_names("experiment"), "sweep": yaml_names("sweep")}


def defaults() -> dict[str, list[str]]:
    """Return the default options of every group."""
    config: Any = OmegaConf.load(CONF / "config.yaml")
    chosen = {key: value for entry in config.defaults if isinstance(entry, DictConfig) for key, value in entry.items()}
    return {str(key): list(map(str, value if isinstance(value, ListConfig) else [value])) for key, value in chosen.items()}


def help_text(about: str) -> str:
    """Return the help text: usage, groups, and the keys that belong to no group."""
    width = columns()
    lines = [*textwrap.wrap(" ".join(about.split()), width), "", *_usage(width), ""]
    about_groups = "Groups (* is the default; several options where there are brackets; docs/config.md explains each):"
    lines += textwrap.wrap(about_groups, width)
    chosen = defaults()
    for group, options in groups().items():
        names = ", ".join(f"{name}*" if name in chosen.get(group, ()) else name for name in options)
        if group in ALIASES:
            names = f"the same as {ALIASES[group]}"
        shown = f"[{names}]" if group in MANY else names
        lines += textwrap.wrap(f"{group:<12}{shown}", width, initial_indent="  ", subsequent_indent=" " * 14)
    lines += textwrap.wrap(f"telemetry.writers [{', '.join(WRITERS)}]", width, initial_indent="  ", subsequent_indent=" " * 14)
    keys = "Keys of every run (--cfg job lists those of the chosen options; docs/config.md explains all):"
    lines += ["", *textwrap.wrap(keys, width)]
    docs = field_docs(Config)
    for name, default in ((field.name, field.default) for field in fields(Config) if field.name not in GROUPS):
        shown = name if default is MISSING else f"{name}={as_typed(default)}"
        lines += textwrap.wrap(f"{shown:<20}{docs[name]}", width, initial_indent="  ", subsequent_indent=" " * 22)
    return "\n".join(lines)


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", NoneType: "null", Any: "any value"}


def in_words(hint: Any) -> str:
    """Describe the values of a field of this type in plain English."""
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(in_words(part) for part in get_args(hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "one of " + ", ".join(hint.__members__)
    if get_origin(hint) is list:
        (item,) = get_args(hint)
        return "a list in brackets" if item is Any else f"a list in brackets, each {in_words(item)}"
    if is_dataclass(hint):
        return f"a group of keys out of {', '.join(field.name for field in fields(hint))}"
    return _KINDS.get(hint, "a group of keys")


def as_typed(value: object) -> str:
    """Return a value as it is typed on the command line."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, list):
        return "[" + ",".join(map(as_typed, value)) + "]"
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))
