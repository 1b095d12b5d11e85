"""Context of a run within its command: its name, its share of the machine, and its launcher.

`hydra/launcher` chooses the launcher. This module supports the launchers in docs/howto/machines.md; with any other, each cell
uses the whole machine.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hydra.types import RunMode

from esper.cli.sweep_position import COMMAND
from esper.lab.design import Design
from esper.pool.local import all_cores


@dataclass(frozen=True, kw_only=True, slots=True)
class RunContext:
    """Name and resources of one run of a command."""

    name: str = ""
    """Folder of the run, relative to that of the sweep; empty for a single run."""
    shared: bool = False
    """If true, other runs write to the same terminal at the same time."""
    cores: int | None = None
    """Number of cores to use, at least 1; None for all."""
    number: int = 0
    """Index of the run in its sweep, by which GPUs are assigned in turn; 0 if runs do not overlap."""
    plan: str | None = None
    """Digest of the experiment of which the run is a cell; None if there is none."""


def run_context(hydra: Any) -> RunContext:
    """Return the context of the run that is about to start.

    Args:
        hydra: node `hydra` of its config.
    """
    if hydra.mode != RunMode.MULTIRUN:
        return RunContext()
    kind = _kind(hydra.launcher)
    cores = cores_each(hydra.launcher)
    experiment = Design.find(Path(hydra.sweep.dir))
    plan = experiment.digest if experiment else None
    shared = kind != "BasicLauncher"
    number = int(hydra.job.num) if shared else 0
    return RunContext(name=str(hydra.sweep.subdir), shared=shared, cores=cores, number=number, plan=plan)


def end_with_parent() -> None:
    """End this process when the command that started it dies, if it is a worker process, as of joblib, or a job of submitit on
    this machine. A killed run can be resumed.

    Otherwise the worker would finish its run, lock the folder of the run until then, and never exit.
    """
    if parent := multiprocessing.parent_process():
        _end_with(lambda: os.getppid() == parent.pid)
    elif os.environ.get("SUBMITIT_EXECUTOR") == "local" and (command := os.environ.get(COMMAND)):
        _end_with(partial(_lives, int(command)))  # the parent is a process of submitit, which lives on


def _lives(process: int) -> bool:
    """Return whether a process of this user exists."""
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


_watched: list[threading.Thread] = []


def _end_with(lives: Callable[[], bool]) -> None:
    """End this process when the command no longer lives: it may have died before this process began."""
    if any(thread.is_alive() for thread in _watched):  # workers run several cells; a fork has none of the threads
        return

    def watch() -> None:
        while lives():
            time.sleep(0.5)
        os._exit(1)

    _watched[:] = [threading.Thread(target=watch, daemon=True, name="end_with_parent")]
    _watched[0].start()


def cores_each(launcher: Any) -> int | None:
    """Return the cores per cell of a launcher; None if it runs one cell at a time, or leaves this to its cluster."""
    kind = _kind(launcher)
    if kind == "JoblibLauncher":
        # joblib's convention: -1 runs as many cells as cores, -2 one fewer.
        cores, jobs = all_cores(), launcher.n_jobs
        return max(1, cores // max(1, jobs if jobs > 0 else cores + 1 + jobs))
    cores = launcher.get("cpus_per_task", launcher.get("cpus"))  # as submitit or Ray calls it
    return 1 if cores is None and kind == "LocalLauncher" else cores


def batches(jobs: Sequence[list[str]], launcher: Any) -> list[Sequence[list[str]]]:
    """Split jobs into batches to launch one after another.

    All launchers have a queue except submitit's local one, which starts a process for every job at once.
    """
    size = max(1, len(jobs))
    if _kind(launcher) == "LocalLauncher":
        size = max(1, all_cores() // (cores_each(launcher) or 1))
    return [jobs[start : start + size] for start in range(0, len(jobs), size)]


def _kind(launcher: Any) -> str:
    return str(launcher["_target_"]).rpartition(".")[2]
