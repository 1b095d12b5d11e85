"""The arms of an experiment, as they are typed: read, and written back."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml

from esper.config import ConfigError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
"""Names of arms, which are also those of folders."""
AA_CONTROL = "aa_control"
"""Name of the arm that repeats the first one with another policy seed."""
SUFFIXES = (".json", ".yaml", ".html", ".md", ".csv")
"""Endings of files in the folder of an experiment, which holds a folder for each arm."""
_ONE_LINE = 10**6
"""Width of a line at which YAML does not wrap arms."""
_ELEMENTS = r"""\[[^\[\]{}"']*\]"""
_LISTED = re.compile(
    rf"""(:[ ]+)({_ELEMENTS}(?:,[ ]*{_ELEMENTS})+|[^\s"'{{}},\[][^"'{{}},\[]*={_ELEMENTS}[^"'{{}},\[]*)(?=\s*[,}}]|\s*$)"""
)
"""Overrides with lists, and lists of lists, which YAML cannot read without quotes."""


def read_arms(arms: str | Mapping[str, Any] | None) -> dict[str, list[str]]:
    """Return the overrides of each arm by its name; see `esper.lab.design.design`.

    Raises:
        ConfigError: the text does not describe arms, or names one twice.
    """
    usage = (
        "write arms='reward: shaped,sparse', or arms='{small: agent.hidden=16, large: agent.hidden=256}', with double quotes "
        "around overrides that contain braces or commas"
    )
    if isinstance(arms, str):
        if close := re.fullmatch(r"\s*([\w./@]+):(\S.*)", arms):
            raise ConfigError(f"arms={arms!r} lacks a space after the colon: write arms='{close[1]}: {close[2]}'")
        if sign := re.fullmatch(r"\s*([\w./@]+)=(\S.*)", arms):
            raise ConfigError(f"arms={arms!r} has = in place of a colon: write arms='{sign[1]}: {sign[2]}'")
        arms = _parsed(arms, usage)
    if not arms:
        raise ConfigError(f"there are no arms to compare: {usage}")
    table = {str(name): split_overrides(own) for name, own in arms.items()}
    for name, overrides in table.items():
        if not NAME.fullmatch(name):
            raise ConfigError(f"{name!r} cannot name an arm and its folder: use letters, digits and _ . + -")
        if "." in name and Path(name).suffix in SUFFIXES:
            raise ConfigError(f"{name!r} cannot name an arm, since files of an experiment end in {Path(name).suffix}: rename it")
        if twin := next((other for other, own in table.items() if own == overrides and other != name), None):
            raise ConfigError(f"arms {name} and {twin} have the same overrides, hence the same runs: remove or change one")
    return table


def typed_arms(arms: Mapping[str, Sequence[str]]) -> str:
    """Return the value of `arms=` that gives these arms, the A/A control excepted."""
    own = {arm: list(overrides) for arm, overrides in arms.items() if arm != AA_CONTROL or not has_control(arms)}
    keys = {overrides[0].partition("=")[0] if len(overrides) == 1 else "" for overrides in own.values()}
    if len(keys) == 1 and all(keys) and all(overrides == [f"{key}={arm}"] for key in keys for arm, overrides in own.items()):
        return f"{keys.pop()}: {','.join(own)}"
    split = any(len(override.split()) != 1 for overrides in own.values() for override in overrides)
    plain = own if split else {arm: " ".join(overrides) for arm, overrides in own.items()}
    return yaml.safe_dump(plain, default_flow_style=True, sort_keys=False, width=_ONE_LINE, allow_unicode=True).strip()


def has_control(arms: Mapping[str, Sequence[str]]) -> bool:
    """Return whether `aa_control` is a control, not an arm of that name: only a control repeats the first arm's overrides."""
    first = next(iter(arms))
    return AA_CONTROL in arms and first != AA_CONTROL and list(arms[AA_CONTROL]) == list(arms[first])


def split_overrides(typed: object) -> list[str]:
    """Return overrides that are written as one text, with spaces between them, or as a list, for those that contain spaces."""
    return [str(one) for one in cast(list[object], typed)] if isinstance(typed, list) else str(typed).split()


def _named_by(value: str) -> str:
    """Return the name of an arm that is one value: of a list, as in [norm,mlp], its elements, as in norm+mlp."""
    return "+".join(re.sub(r"[\[\]\s]", "", value).split(","))


def _parsed(text: str, usage: str) -> dict[str, Any] | None:
    """Return the arms of "reward: shaped,sparse" or "{small: ..., large: ...}"; None for any other text."""
    text = _LISTED.sub(r'\1"\2"', text)
    try:
        node, read = yaml.compose(text, yaml.BaseLoader), yaml.load(text, yaml.BaseLoader)  # BaseLoader: 1e-3 stays text
    except yaml.YAMLError as error:
        raise ConfigError(f"cannot read arms={text!r}: {usage}") from error
    if not isinstance(node, yaml.MappingNode):
        return None
    names = [key.value for key, _ in node.value]
    if len(names) == 1 and isinstance(read[names[0]], str | list) and not text.lstrip().startswith("{"):
        key, values = names[0], read[names[0]]
        if isinstance(values, list) and not all(isinstance(value, str) for value in cast(list[object], values)):
            return None
        listed = values if isinstance(values, list) else re.findall(r"(?:\[[^\]]*\]|[^,\[\]])+", values)  # commas of lists stay
        chosen = [value.strip() for value in cast(list[str], listed) if value.strip()]
        names = [_named_by(value) for value in chosen]
        read = {name: [f"{key}={value}"] for name, value in zip(names, chosen, strict=True)}
    if twice := next((name for name in names if names.count(name) > 1), None):  # a dict keeps only the last one
        raise ConfigError(f"arms has two arms called {twice}: remove one; an A/A control is added by default")
    return read
