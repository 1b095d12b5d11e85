"""The table of telemetry writers."""

from dataclasses import fields

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
        try:
            found[name] = WRITERS[name](**settings)
        except TypeError as error:
            keys = [entry.name for entry in fields(WRITERS[name])]
            why = f"its settings are {', '.join(keys)}" if keys else "it has no settings"
            raise ValueError(f"telemetry.writers={name} does not take {settings}: {why}") from error
    return found
