"""Hydra's launcher for Ray: every run is a task of a cluster, which is this machine unless an address says otherwise.

It is our own because hydra-ray-launcher wants a cloudpickle below 3, made for Pythons before 3.12, and a cloud's client besides.
"""

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict


@dataclass(kw_only=True, slots=True)
class RayConfig:
    """Chosen by hydra/launcher=esper_ray."""

    _target_: str = "hydra_plugins.esper_sweeps.RayLauncher"
    address: str | None = None
    """Of the cluster, as ray.init knows it; null starts one on this machine, which ends with the command."""
    cpus: int = 1
    """Cores for each run, 1 or more. Ray runs as many at a time as there are cores for."""
    gpus: float = 0.0
    """GPUs for each run, 0 or more; 0.5 lets two runs share one."""


class RayLauncher(Launcher):
    """Hands all runs to Ray, which has the queue."""

    def __init__(self, *, address: str | None, cpus: int, gpus: float) -> None:
        self.address, self.cpus, self.gpus = address, cpus, gpus
        self.config: DictConfig | None = None
        self.told: tuple[HydraContext, TaskFunction] | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config, self.told = config, (hydra_context, task_function)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # else a line much like another run's is swallowed
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody was asked whether to report to Ray's makers
        import ray  # late: Hydra imports all plugins for every command

        assert self.told is not None
        assert self.config is not None
        if not ray.is_initialized():
            ray.init(address=self.address, include_dashboard=False, logging_level=logging.WARNING)
        run = ray.remote(max_retries=0, num_cpus=self.cpus, num_gpus=self.gpus)(_run)
        shared = ray.put((*self.told, self.config, Singleton.get_state()))
        tasks = [run.remote(shared, initial_job_idx + index, list(words)) for index, words in enumerate(job_overrides)]
        returns: list[JobReturn] = []
        for task in tasks:
            done = ray.get(task)
            if not isinstance(done, JobReturn):
                sys.exit(done)
            returns.append(done)
        return returns


def _run(shared: tuple[HydraContext, TaskFunction, DictConfig, dict[Any, Any]], number: int, words: list[str]) -> Any:
    """One run, in a process of Ray's: what Hydra says of it, or the exit code with which it ended."""
    context, task_function, config, state = shared
    setup_globals()
    Singleton.set_state(state)
    sweep = context.config_loader.load_sweep_config(config, words)
    with open_dict(sweep):
        sweep.hydra.job.id = f"{sweep.hydra.job.name}_{number}"
        sweep.hydra.job.num = number
    HydraConfig.instance().set_config(sweep)
    try:
        return run_job(
            hydra_context=context,
            task_function=task_function,
            config=sweep,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
    except SystemExit as stop:  # Ray takes it for the end of its worker, and says nothing of the code
        return stop.code
