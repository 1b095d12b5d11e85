"""Writer to Weights & Biases."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from esper.telemetry.base import Hparam, Rows, RunInfo
from esper.telemetry.tracker import Tracker, TrackerConfig, markdown

MODES = ("online", "offline")


@dataclass(kw_only=True, slots=True)
class WandbConfig(TrackerConfig):
    """A run of Weights & Biases: config, metrics by update, and as files the config, `run.html` and exported networks."""

    library: ClassVar[str] = "wandb"

    mode: str = "online"
    """online sends records as they come; offline writes them to `wandb/` in the folder of the run, for `wandb sync`."""
    project: str = "esper"
    """Project that holds the run, created if missing."""
    entity: str = ""
    """User or team that owns the project. If empty, the user who logged in with `wandb login`."""
    group: str = ""
    """Group of the run. If empty, the name of its sweep, if it belongs to one."""
    tags: list[str] = field(default_factory=lambda: list[str]())
    """Tags of the run."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"telemetry.writers=wandb has no mode {self.mode}: choose from {', '.join(MODES)}")

    def connect(self, run: RunInfo) -> "WandbTracker":
        place = {"mode": self.mode, "project": self.project, "entity": self.entity}
        return WandbTracker(run, place, self.name, group=self.group or run.sweep, tags=self.tags)


def _last_step(file: Path) -> int:
    """Return the last step in a file of W&B, 0 if there is none.

    Raises:
        OSError: W&B cannot read it.
    """
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise OSError(f"{file} cannot be read: {done.stderr.strip()}")
    records = (json.loads(line) for line in done.stdout.splitlines() if '"type":"history"' in line)
    return max((int(record["history"]["item"]["_step"]) for record in records), default=0)


class WandbTracker(Tracker):
    """Writes through a run of its own; its console and W&B's global run stay as they are."""

    library = "wandb"

    def __init__(self, run: RunInfo, place: dict[str, str], name: str, *, group: str, tags: list[str]) -> None:
        super().__init__(run, place, name)
        self._group, self._tags = group, tags
        self._run: Any = None

    def resume(self, id: str | None) -> str:
        os.environ.setdefault("WANDB_SILENT", "true")  # else it reports every file on the console
        import wandb

        init: Any = wandb.init
        self._run = init(
            id=id,
            resume="allow",
            reinit="create_new",
            dir=str(self.run.folder),
            name=self.name,
            group=self._group or None,
            tags=self._tags or None,
            mode=self.place["mode"],
            project=self.place["project"],
            entity=self.place["entity"] or None,
            settings=wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True),
        )
        return str(self._run.id)

    def last_update(self) -> int:
        """See `Tracker.last_update`. W&B writes in a process of its own, and a kill loses what that has not written yet."""
        if self.place["mode"] == "online":
            return max(0, int(self._run.step) - 1)
        files = self.run.folder.glob(f"wandb/offline-run-*/run-{self._run.id}.wandb")
        return max((_last_step(file) for file in files), default=0)

    def describe(self, title: str, hparams: Mapping[str, Hparam]) -> None:
        self._run.notes = title
        self._run.config.update(dict(hparams), allow_val_change=True)

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=update, commit=True)

    def summarise(self, rows: Rows, metrics: Mapping[str, float]) -> None:
        self._run.notes = markdown(self.title, rows)
        self._run.summary.update(dict(metrics) | {f"summary/{name}": str(text) for name, text in rows})

    def keep(self, path: Path, name: str) -> None:
        """Store a file under its name in the folder of the run: W&B has a `config.yaml` of its own."""
        if not self._run.save(str(path), base_path=str(self.run.folder), policy="now"):
            raise OSError(f"{path} was not stored")

    def end(self, *, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)
