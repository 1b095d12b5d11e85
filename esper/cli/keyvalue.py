"""Command lines of a flat config dataclass, for esper.evaluate and esper.compare: parsing and help text."""

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from esper.cli.help import as_typed, columns, field_docs, in_words
from esper.cli.rehearsal import close_output
from esper.config import ConfigError, did_you_mean, renamed
from esper.ranges import check_sizes

C = TypeVar("C")


def show_help(text: str) -> None:
    """Print a help text. A reader that stops early, such as `head`, is no error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        close_output()


def split_folders(arguments: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Return the folders among the arguments of a command, and the others: an argument with = that names no folder is a key.

    Raises:
        ConfigError: an argument is a flag.
    """
    if flag := next((one for one in arguments if one.startswith("-") and not Path(one).is_dir()), None):
        raise ConfigError(f"this command has no flag {flag.partition('=')[0]}: see --help")
    keys = [argument for argument in arguments if "=" in argument and not Path(argument).is_dir()]
    return [Path(argument) for argument in arguments if argument not in keys], keys


def read_overrides(kind: type[C], overrides: Sequence[str], also: Iterable[str] = (), base: C | None = None) -> C:
    """Parse overrides of the form key=value into a config.

    Args:
        base: config with other defaults than those of its class.
        also: other keys of the command line, which are parsed elsewhere and listed in the message on an unknown key.

    Raises:
        ConfigError: an override is invalid.
    """
    names = [*field_docs(kind), *also]
    for override in overrides:
        key, equals, _ = override.partition("=")
        if not equals:
            raise ConfigError(f"{override} is not of the form key=value: the keys are {', '.join(names)}")
        if key not in names:
            hint = did_you_mean(key, names).removeprefix("; ")
            known = f"{hint} the keys are {', '.join(names)}" if hint else f"choose from {', '.join(names)}"
            raise ConfigError(renamed(key) or f"there is no key {key}: {known}")
    config = OmegaConf.structured(base or kind)
    hints = get_type_hints(kind)
    for override in overrides:
        key, _, value = override.partition("=")
        if key in hints:
            config = _with(config, key, value, hints[key])
    try:
        whole = OmegaConf.to_object(config)
        check_sizes("", whole)
    except OmegaConfBaseException as error:  # an interpolation, or the validation of the config
        named = f"{error.full_key}: " if error.full_key else ""
        raise ConfigError(f"{named}{str(error).splitlines()[0]}") from error
    except ValueError as error:
        raise ConfigError(str(error)) from error
    assert isinstance(whole, kind)
    return whole


def _with(config: Any, key: str, value: str, hint: Any) -> Any:
    """Return the config with one more override; text is taken literally, so that 1e-3 may be a name."""
    try:
        if hint in (str, str | None) and value != "null":
            return OmegaConf.merge(config, {key: value})
        return OmegaConf.merge(config, OmegaConf.from_dotlist([f"{key}={value}"]))
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(f"{key} must be {in_words(hint)}, got {value}") from error


def help_of(about: str | None, default: object) -> str:
    """Return the help text: the module's docstring and the default config."""
    lines, width = list[str](), columns()
    for paragraph in (about or "").strip().split("\n\n"):
        lines += [*textwrap.wrap(paragraph, width), ""]
    for name, doc in field_docs(type(default)).items():
        lines += textwrap.wrap(f"{name}={as_typed(getattr(default, name))}", width, initial_indent="  ", subsequent_indent="  ")
        lines += textwrap.wrap(doc, width, initial_indent="      ", subsequent_indent="      ")
    return "\n".join(lines)
