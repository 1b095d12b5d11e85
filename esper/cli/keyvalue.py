"""Command lines that are one flat config dataclass, as those of esper.evaluate and esper.compare: reading them, and --help."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from esper.cli.help import as_typed, field_docs, in_words
from esper.config import RENAMED, ConfigError, did_you_mean

C = TypeVar("C")


def read_words(kind: type[C], words: Sequence[str], also: Iterable[str] = ()) -> C:
    """The config that words of the form key=value make.

    Args:
        also: other keys that may stand beside these, and are read elsewhere; named where a key is not known.

    Raises:
        ConfigError: a word does not fit.
    """
    names = [*field_docs(kind), *also]
    for word in words:
        key, equals, _ = word.partition("=")
        if not equals:
            raise ConfigError(f"{word} is not of the form key=value: the keys are {', '.join(names)}")
        if RENAMED.get(key) in names:
            raise ConfigError(f"{key} is now called {RENAMED[key]}")
        if key not in names:
            raise ConfigError(f"there is no key {key}: choose out of {', '.join(names)}{did_you_mean(key, names)}")
    config = OmegaConf.structured(kind)
    hints = get_type_hints(kind)
    for word in words:
        key, _, value = word.partition("=")
        if key in hints:
            config = _with(config, key, value, hints[key])
    try:
        whole = OmegaConf.to_object(config)
    except (OmegaConfBaseException, ValueError) as error:  # the config's own rules
        raise ConfigError(str(error).split("\n")[0]) from error
    assert isinstance(whole, kind)
    return whole


def _with(config: Any, key: str, value: str, hint: Any) -> Any:
    """The config with one more word; text is taken as it stands, so that 1e-3 may be a name."""
    try:
        if hint in (str, str | None) and value != "null":
            return OmegaConf.merge(config, {key: value})
        return OmegaConf.merge(config, OmegaConf.from_dotlist([f"{key}={value}"]))
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(f"{key} must be {in_words(hint)}, got {value}") from error


def page(about: str | None, default: object) -> str:
    """What --help shows, of the module's docstring and the config as it is when nothing is asked for."""
    lines = [(about or "").strip(), ""]
    for name, doc in field_docs(type(default)).items():
        lines += textwrap.wrap(f"{name}={as_typed(getattr(default, name))}", 118, initial_indent="  ", subsequent_indent="  ")
        lines += textwrap.wrap(doc, 118, initial_indent="      ", subsequent_indent="      ")
    return "\n".join(lines)
