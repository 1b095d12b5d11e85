"""Where a run stands among the others of its command: what it is called, what of the machine is its own, and how it is launched.

Which launcher runs the cells of a sweep is Hydra's choice `hydra/launcher`; what is said of it here holds for those that
docs/experiments.md lists. Any other runs its cells as if each were alone on its machine.
"""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf

from esper.checkpoint import write_whole
from esper.env.shard_pool import all_cores
from esper.lab.design import Cell


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Of one run."""

    name: str = ""
    """Its folder within that of the sweep; empty where it is the only run of its command."""
    shared: bool = False
    """Do other runs write to the same terminal at the same time?"""
    cores: int | None = None
    """How many it may use; None for all that there are."""


def find_place(hydra: Any) -> Place:
    """The place of the run that is about to begin.

    Args:
        hydra: the node `hydra` of its config.
    """
    if hydra.mode != RunMode.MULTIRUN:
        return Place()
    kind = _kind(hydra.launcher)
    cores = cores_each(hydra.launcher)
    return Place(name=str(hydra.sweep.subdir), shared=kind != "BasicLauncher", cores=cores)


def cores_each(launcher: Any) -> int | None:
    """Cores for each cell of a launcher; None where it runs one at a time, or leaves the matter to its cluster."""
    kind = _kind(launcher)
    if kind == "JoblibLauncher":
        # As joblib counts: -1 is as many cells as cores, -2 one fewer.
        cores, jobs = all_cores(), launcher.n_jobs
        return max(1, cores // max(1, jobs if jobs > 0 else cores + 1 + jobs))
    if kind == "LocalLauncher":
        return launcher.cpus_per_task or 1
    if kind == "SlurmLauncher":
        return launcher.cpus_per_task
    if kind == "RayLauncher":
        return launcher.cpus
    return None


class CellSweeper(Sweeper):
    """What Hydra wants of a sweeper whose runs are cells; which they are, a sweeper of its own says."""

    def __init__(self, **asked: Any) -> None:
        self.asked = asked
        """What the command says of the sweep, as Hydra read it."""
        self.hydra_context: HydraContext | None = None
        self.config: DictConfig | None = None
        self.launcher: Launcher | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(hydra_context, task_function, config)

    @property
    def folder(self) -> Path:
        """Of the sweep."""
        assert self.config is not None
        return Path(self.config.hydra.sweep.dir)

    def save_config(self) -> None:
        """Writes the config of the whole command into the folder, as Hydra's own sweepers do.

        Raises:
            DiskError: the disk refused.
        """
        write_whole(self.folder / "multirun.yaml", OmegaConf.to_yaml(self.config))

    def run_cells(self, title: str, cells: Sequence[Cell]) -> list[JobReturn]:
        """Hands the cells that are not done to the launcher, in order, and waits for them.

        Args:
            title: what they are, for the line that says how many there are.

        Raises:
            SystemExit: a run could not be done, and has said why.
        """
        assert self.config is not None
        assert self.launcher is not None
        asked = self.config.hydra.launcher
        jobs = [words for cell in cells if (words := cell.pending(self.folder)) is not None]
        done = len(cells) - len(jobs)
        logs = f"; what the others say is in {_logs(asked)}" if jobs and _logs(asked) else ""
        for loggers in ("hydra", "hydra_plugins"):  # launchers list all runs with all words, where the folder has the list
            logging.getLogger(loggers).setLevel(logging.WARNING)
        print(f"{self.folder}: {title}, {done} of {len(cells)} runs done{logs}", flush=True)
        results: list[JobReturn] = []
        for batch in _batches(jobs, asked):
            try:
                found = self.launcher.launch(batch, initial_job_idx=done + len(results))
            except Exception as error:
                if not type(error).__module__.startswith("submitit."):
                    raise
                print(f"esper: a run failed on its machine: {error}", file=sys.stderr)  # the traceback would be submitit's
                sys.exit(1)
            for result in found:
                _ = result.return_value  # raises what the run raised
            results += found
        return results


def _logs(asked: Any) -> str | None:
    """Where the runs of a launcher write what they say, unless it is here."""
    return str(Path(asked.submitit_folder).parent) if "submitit_folder" in asked else None


def _batches(jobs: Sequence[list[str]], launcher: Any) -> list[Sequence[list[str]]]:
    """The cells that a launcher is handed at a time.

    All launchers have a queue, except submitit's local one: it starts a process for each cell at once.
    """
    size = max(1, len(jobs))
    if _kind(launcher) == "LocalLauncher":
        size = max(1, all_cores() // (cores_each(launcher) or 1))
    return [jobs[start : start + size] for start in range(0, len(jobs), size)]


def _kind(launcher: Any) -> str:
    return str(launcher["_target_"]).rpartition(".")[2]
