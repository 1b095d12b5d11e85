"""How an experiment or a tuning was last started, as Hydra recorded it in the folder."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from esper.training.config_io import is_path


@dataclass(frozen=True, kw_only=True, slots=True)
class LastStart:
    """What the last start had beside the experiment itself: whatever may be another one next time."""

    launcher: list[str] = field(default_factory=lambda: list[str]())
    """Overrides of Hydra's launcher."""
    paths: list[str] = field(default_factory=lambda: list[str]())
    """Overrides that say where the data of all runs was."""
    config_dir: str | None = None
    """Folder of --config-dir."""

    @property
    def flags(self) -> list[str]:
        """The flags of the command, quoted for a shell."""
        return [] if self.config_dir is None else ["--config-dir", shlex.quote(self.config_dir)]


def last_start(folder: Path) -> LastStart:
    """Return how the experiment or the tuning in a folder was last started; without a record, nothing is known."""
    try:
        hydra = yaml.safe_load((folder / "multirun.yaml").read_text(encoding="utf-8"))["hydra"]
        typed, sources = hydra["overrides"], hydra.get("runtime", {}).get("config_sources", ())
        return LastStart(
            launcher=[one for one in typed["hydra"] if one.startswith(("hydra/launcher=", "hydra.launcher."))],
            paths=[one for one in typed.get("task", ()) if is_path(one)],
            config_dir=next((one["path"] for one in sources if one["provider"] == "command-line"), None),
        )
    except (OSError, ValueError, yaml.YAMLError, TypeError, KeyError):
        return LastStart()


def config_dir_of(folders: Sequence[Path]) -> str | None:
    """Return the folder of --config-dir in the last start of the first of these experiments that had one, if it is there."""
    found = (last_start(folder).config_dir for folder in folders)
    return next((path for path in found if path is not None and Path(path).is_dir()), None)
