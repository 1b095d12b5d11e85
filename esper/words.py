"""Command lines that are one flat config dataclass, as those of esper.evaluate and esper.compare: reading them, and --help."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from esper.config import ConfigError, did_you_mean
from esper.knobs import as_typed, field_docs

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
        if key not in names:
            raise ConfigError(f"there is no key {key}: choose out of {', '.join(names)}{did_you_mean(key, names)}")
    try:
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind), OmegaConf.from_dotlist(list(words))))
    except (OmegaConfBaseException, ValueError) as error:
        raise ConfigError(str(error).split("\n")[0]) from error
    assert isinstance(config, kind)
    return config


def page(about: str | None, default: object) -> str:
    """What --help shows, of the module's docstring and the config as it is when nothing is asked for."""
    lines = [(about or "").strip(), ""]
    for name, doc in field_docs(type(default)).items():
        lines += textwrap.wrap(f"{name}={as_typed(getattr(default, name))}", 118, initial_indent="  ", subsequent_indent="  ")
        lines += textwrap.wrap(doc, 118, initial_indent="      ", subsequent_indent="      ")
    return "\n".join(lines)
