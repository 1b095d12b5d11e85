"""The table of telemetry writers."""

from dataclasses import fields
from typing import Any, cast, get_args, get_origin, get_type_hints

from esper.telemetry.aim import AimConfig
from esper.telemetry.base import WriterConfig
from esper.telemetry.console import ConsoleConfig
from esper.telemetry.csv import CsvConfig
from esper.telemetry.jsonl import JsonlConfig
from esper.telemetry.mlflow import MlflowConfig
from esper.telemetry.tensorboard import TensorBoardConfig
from esper.telemetry.wandb import WandbConfig

WRITERS: dict[str, type[WriterConfig]] = {
    "jsonl": JsonlConfig,
    "tensorboard": TensorBoardConfig,
    "console": ConsoleConfig,
    "csv": CsvConfig,
    "mlflow": MlflowConfig,
    "wandb": WandbConfig,
    "aim": AimConfig,
}
"""Name -> config. A new writer is one file and one line here."""


def check_writers(entries: list[object]) -> dict[str, WriterConfig]:
    """Return the writers of telemetry.writers by name, each with its settings.

    Args:
        entries: names, or one-key mappings from a name to settings.

    Raises:
        ValueError: a writer or a setting is unknown, or a writer is named twice.
    """
    found: dict[str, WriterConfig] = {}
    for entry in entries:
        one = entry if isinstance(entry, dict) else {str(entry): {}}
        if len(one) != 1 or not isinstance(settings := next(iter(one.values())), dict):
            raise ValueError(f"telemetry.writers must hold names, or settings as in {{csv:{{delimiter:';'}}}}, got {entry}")
        name = str(next(iter(one)))
        if name not in WRITERS:
            raise ValueError(f"telemetry.writers={name} is not known: choose from {', '.join(WRITERS)}")
        if name in found:
            raise ValueError(f"telemetry.writers names {name} twice: name it once")
        keys = [entry.name for entry in fields(WRITERS[name])]
        if not settings.keys() <= {*keys}:
            why = f"its settings are {', '.join(keys)}" if keys else "it has no settings"
            raise ValueError(f"telemetry.writers={name} does not take {settings}: {why}")
        hints = get_type_hints(WRITERS[name])
        given = {key: _typed(value, hints[key], f"telemetry.writers={name} needs {key}") for key, value in settings.items()}
        try:
            found[name] = WRITERS[name](**given)
        except TypeError as error:  # a setting of a plugin's writer is missing
            raise ValueError(f"telemetry.writers={name} does not take {settings}: its settings are {', '.join(keys)}") from error
    return found


WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", list: "a list", dict: "as in {a:b}"}
"""Type of a setting -> how a message names it."""


def _typed(value: Any, hint: Any, needed: str) -> Any:
    """Return a setting in the type of its field; a number where a text is needed becomes one. Other types, and null, are
    left alone.

    Raises:
        ValueError: it does not fit.
    """
    kind, inner = get_origin(hint) or hint, (get_args(hint) or (Any,))[-1]  # of a list or a dict
    if kind is list and isinstance(value, list):
        fitting = [_typed(one, inner, f"{needed}[{place}]") for place, one in enumerate(cast(list[Any], value))]
        return value if fitting == value else fitting
    if kind is dict and isinstance(value, dict):
        return {key: _typed(one, inner, f"{needed}.{key}") for key, one in cast(dict[Any, Any], value).items()}
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and kind in (float, str):
        return kind(value)
    if kind in WORDS and value is not None and type(value) is not kind:
        raise ValueError(f"{needed} to be {WORDS[kind]}, got {value!r}")
    return value
