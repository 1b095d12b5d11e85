"""Range checks of config values, with one error message for all of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any


def check_ranges(prefix: str, config: Any, ranges: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError for the first field of a config dataclass that is outside its range; None is always valid.

    Args:
        prefix: the config's key, such as agent; empty for the keys of a command.
        ranges: names of fields by interval, as in {"(0, 1]": ["clip"]}. An interval open at inf takes finite values only.
    """
    defaults = {field.name: field.default for field in fields(config)}
    for interval, names in ranges.items():
        low, high = map(float, interval[1:-1].split(","))
        for name in names:
            value = getattr(config, name)
            above = value is None or value > low or (interval[0] == "[" and value == low)
            below = value is None or value < high or (interval[-1] == "]" and value == high)
            if not (above and below):
                key, allowed = f"{prefix}.{name}".lstrip("."), _in_english(interval, low, high)
                raise ValueError(f"{key} must be {allowed}, got {value}: the default is {defaults[name]}")


def _in_english(interval: str, low: float, high: float) -> str:
    finite = "finite" if interval[-1] == ")" else ""
    if high < math.inf and low > -math.inf:
        return f"in {interval}"
    if high < math.inf:
        return f"{'at most' if interval[-1] == ']' else 'below'} {high:g}"
    least = "" if low == -math.inf else f"{'at least' if interval[0] == '[' else 'above'} {low:g}"
    return " and ".join(filter(None, [finite, least]))
