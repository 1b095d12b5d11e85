"""Cell of an experiment or of a tuning: one planned run, its config, and the overrides that start or resume it."""

import warnings
from dataclasses import dataclass
from pathlib import Path

from esper.checkpoint import CheckpointError, Checkpoints, load_run, update_of
from esper.cli.overrides import config_of
from esper.cli.quoting import quoted
from esper.config import Config, ConfigError
from esper.training.config_io import is_path
from esper.training.run_folder import CHECKPOINTS


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One planned run."""

    arm: str
    block: int
    overrides: tuple[str, ...]
    """Overrides of the run."""

    @property
    def folder(self) -> str:
        """Folder of the run, relative to that of the experiment."""
        return f"{self.arm}/block-{self.block:02d}"

    def config(self) -> Config:
        """Return the config of the run, without the warnings that the run itself prints."""
        with warnings.catch_warnings(action="ignore"):
            return config_of([*self.overrides])

    def pending(self, experiment: Path) -> list[str] | None:
        """Return the overrides that start or resume the run; None if it is finished.

        Args:
            experiment: folder of the experiment.

        Raises:
            ConfigError: all of its checkpoints are damaged.
        """
        folder, subdir = experiment / self.folder, f"hydra.sweep.subdir={self.folder}"
        try:
            newest = Checkpoints(folder / CHECKPOINTS).latest()
        except CheckpointError as error:
            raise ConfigError(
                f"{folder} cannot be resumed: its checkpoints are damaged; remove it and repeat the command"
            ) from error
        if newest is None:
            return [*self.overrides, subdir]
        saved = load_run(newest)["config"]
        if update_of(newest) >= saved["values"]["updates"]:
            return None
        paths = [one for one in self.overrides if is_path(one)]  # of data that may have moved
        return [
            *(override for override in self.overrides if override.startswith("sweep=")),
            f"resume={quoted(str(folder))}",
            *([f"task={saved['choices']['task']}", *paths] if paths else []),
            "hydra.output_subdir=null",
            subdir,
        ]
