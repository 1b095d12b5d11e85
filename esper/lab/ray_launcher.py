"""A Hydra launcher for Ray: every run is a task of a cluster, by default of this machine.

hydra-ray-launcher is not used because it requires cloudpickle < 3, which does not support Python 3.12, and a cloud client.
"""

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from esper.cli.failures import Failure
from esper.notices import UserNotice
from esper.pool.cluster import ClusterError


class RayLauncher(Launcher):
    """Submits all runs to Ray, which queues them."""

    def __init__(self, *, address: str | None, cpus: int, gpus: float) -> None:
        self.address, self.cpus, self.gpus = address, cpus, gpus
        self.config: DictConfig | None = None
        self.task: tuple[HydraContext, TaskFunction] | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config, self.task = config, (hydra_context, task_function)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # else Ray drops lines that resemble those of another run
        from esper.pool.ray_cluster import start_ray  # late: Hydra imports all plugins for every command

        start_ray(self.address, key="hydra.launcher.address")
        import ray
        from ray.exceptions import RayError, RayTaskError

        assert self.task is not None
        assert self.config is not None
        self._check_room(ray.nodes())
        run = ray.remote(max_retries=0, num_cpus=self.cpus, num_gpus=self.gpus)(_run)
        shared = ray.put((*self.task, self.config, Singleton.get_state()))
        tasks = [run.remote(shared, initial_job_idx + index, list(overrides)) for index, overrides in enumerate(job_overrides)]
        returns: list[JobReturn] = []
        for task in tasks:
            try:
                result = ray.get(task)
            except RayError as error:
                if isinstance(error, RayTaskError):  # such as a module that its machine lacks
                    reason = f"{type(error.cause).__name__}: {' '.join(str(error.cause).split())}"
                else:
                    reason = f"Ray lost its process, most likely out of memory; {' '.join(str(error).split())}"
                result = _lost(reason, job_overrides[len(returns)], initial_job_idx + len(returns))
            if not isinstance(result, JobReturn):
                sys.exit(result)
            returns.append(result)
        return returns

    def _check_room(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        """Check that a machine of the cluster has room for a run, for which Ray would otherwise wait without a word.

        Raises:
            ClusterError: this machine, which is the cluster, has not.
        """
        rooms = [node["Resources"] for node in nodes if node["Alive"]]
        asked = {"CPU": float(self.cpus), "GPU": float(self.gpus)}
        if any(all(room.get(kind, 0.0) >= count for kind, count in asked.items()) for room in rooms):
            return
        most = {kind: max((room.get(kind, 0.0) for room in rooms), default=0.0) for kind in asked}
        what = f"a run asks for {self.cpus} CPUs and {self.gpus:g} GPUs (hydra.launcher.cpus, hydra.launcher.gpus)"
        if self.address is None:
            raise ClusterError(f"{what}, but this machine has {most['CPU']:g} and {most['GPU']:g}: lower them")
        here = f"no machine of the cluster has them, but at most {most['CPU']:g} and {most['GPU']:g}"
        warnings.warn(f"{what}; {here}: the runs wait until one joins", UserNotice, stacklevel=2)


SUBDIR = "hydra.sweep.subdir="


def _lost(reason: str, overrides: Sequence[str], number: int) -> JobReturn:
    """Return the result of a run that ended outside of its command, named by its folder, or else by its number."""
    folders = [one.removeprefix(SUBDIR) for one in overrides if one.startswith(SUBDIR)]
    failure = Failure(run=folders[0] if folders else f"run {number}", reason=reason)
    return JobReturn(_return_value=failure, status=JobStatus.COMPLETED)


def _run(shared: tuple[HydraContext, TaskFunction, DictConfig, dict[Any, Any]], number: int, overrides: list[str]) -> Any:
    """Run one job in a process of Ray; return Hydra's result, or the exit code."""
    context, task_function, config, state = shared
    setup_globals()
    Singleton.set_state(state)
    sweep = context.config_loader.load_sweep_config(config, overrides)
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
    except SystemExit as stop:  # an interrupt; Ray would treat it as the end of the worker, and lose the code
        return stop.code
