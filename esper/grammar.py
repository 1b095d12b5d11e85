"""Hydra's grammar of overrides, which also reads keys of a device: `devices.cuda:0.precision=bf16`."""

import re
from functools import wraps
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

_DEVICE = re.compile(r"^([+~]*devices\.cuda):(\d+)(?=[.=]|$)")
_STAND_IN = re.compile(r"^(devices\.cuda)___(\d+)")


def read_device_keys() -> None:
    """Let Hydra read keys such as `devices.cuda:0.precision`: its grammar has no colon in a key.

    The launchers of a sweep parse overrides in their own processes, so this is done where the groups are stored.
    """
    original = OverridesParser.parse_rule
    if hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    def parse_rule(self: OverridesParser, s: str, rule_name: str) -> Any:
        parsed = original(self, _DEVICE.sub(r"\1___\2", s), rule_name)
        if isinstance(parsed, Override):
            parsed.key_or_group, parsed.input_line = _STAND_IN.sub(r"\1:\2", parsed.key_or_group), s
        return parsed

    OverridesParser.parse_rule = parse_rule
