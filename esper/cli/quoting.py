"""Values of overrides as Hydra and a shell read them."""

import re
import shlex
from contextlib import suppress
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException

_PLAIN = re.compile(r"[\w./+@%-]+( [\w./+@%-]+)*", re.ASCII)
"""Texts that Hydra reads unquoted."""


def quoted(value: str) -> str:
    """Return a value quoted so that Hydra reads it back unchanged."""
    return QuotedString(value, Quote.single).with_quotes()


def unquoted(value: str) -> str:
    """Return a value as Hydra reads it, without the quotes that may be around it."""
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        with suppress(HydraException):
            return str(OverridesParser.create().parse_override(f"key={value}").value())
    return value


def typed_as(key: str, value: object) -> str:
    """Return an override as it is typed in a shell, quoted for Hydra and for the shell where they need it."""
    text, plain = str(value), False
    if _PLAIN.fullmatch(text):  # Hydra reads 2026_11_30, 1e3 and true as other types
        read = OverridesParser.create().parse_override(f"key={text}").value()
        plain = read == (text if isinstance(value, Path) else value)
    return shlex.quote(f"{key}={text if plain else quoted(text)}")
