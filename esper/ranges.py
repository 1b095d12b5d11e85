"""Range checks of config values, with one error message for all of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from typing import Any, cast


def check_ranges(prefix: str, config: Any, ranges: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError for the first field of a config dataclass that is outside its range; None is always valid.

    Args:
        prefix: the config's key, such as agent; empty for the keys of a command.
        ranges: names of fields by interval, as in {"(0, 1]": ["clip"]}. An interval open at inf takes finite values only.
    """
    given = {one.name: one for one in fields(config)}
    for interval, names in ranges.items():
        low, high = map(float, interval[1:-1].split(","))
        for name in names:
            if name not in given:
                raise ValueError(
                    f"{type(config).__name__} gives {name} a range or size, but has no such field: correct or annotate it"
                )
            value = getattr(config, name)
            above = value is None or value > low or (interval[0] == "[" and value == low)
            below = value is None or value < high or (interval[-1] == "]" and value == high)
            if not (above and below):
                key, allowed = f"{prefix}.{name}".lstrip("."), _in_english(interval, low, high)
                raise ValueError(f"{key} must be {allowed}, got {value}: {_remedy(given[name])}")


def check_options(prefix: str, config: Any, kinds: Mapping[str, type[StrEnum]]) -> None:
    """Replace the texts in fields of a config dataclass by the members of their enumerations.

    Raises:
        ValueError: a text is that of no member.
    """
    for name, kind in kinds.items():
        value = getattr(config, name)
        if value not in list(kind):
            raise ValueError(f"{prefix}.{name}={value!r} is not known: choose from {', '.join(kind)}")
        setattr(config, name, kind(value))


def _remedy(one: Field[Any]) -> str:
    if is_required(one):
        return "choose a value in range"
    return "leave it out for the default" if one.default is None else f"the default is {one.default}"


def is_required(one: Field[Any]) -> bool:
    """Return whether a field of a config has no default: none at all, or OmegaConf's mark of a value that must be given."""
    return one.default == "???" or (one.default is MISSING and one.default_factory is MISSING)


LARGEST = 2**53
"""Largest finite number in a config: above it, floats and many JSON readers do not represent every integer exactly, and products
of such numbers soon overflow."""


def check_sizes(prefix: str, value: Any) -> None:
    """Raise ValueError for the first finite number of a config, at any depth, whose size exceeds `LARGEST`."""
    if is_dataclass(value):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, dict):
        parts = cast(dict[str, Any], value)
    elif isinstance(value, list):
        for one in cast(list[Any], value):
            check_sizes(prefix, one)
        return
    elif isinstance(value, (int, float)) and LARGEST < abs(value) < math.inf:
        limit = f"at most {LARGEST}" if value > 0 else f"at least -{LARGEST}"
        raise ValueError(f"{prefix} must be {limit}, got {value}: choose a number closer to zero")
    else:
        return
    for name, part in parts.items():
        check_sizes(f"{prefix}.{name}".lstrip("."), part)


def _in_english(interval: str, low: float, high: float) -> str:
    finite = "finite" if interval[-1] == ")" else ""
    if high < math.inf and low > -math.inf:
        return f"in {interval}"
    if high < math.inf:
        return f"{'at most' if interval[-1] == ']' else 'below'} {high:g}"
    least = "" if low == -math.inf else f"{'at least' if interval[0] == '[' else 'above'} {low:g}"
    return " and ".join(filter(None, [finite, least]))
