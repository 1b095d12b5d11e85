"""Where Hydra's discovery finds Esper's sweepers and its Ray launcher: Hydra takes only classes of this package.

Hydra imports it in every program of the environment that uses Hydra. So nothing else of Esper is imported before one of them is
used: it would take seconds, and add Esper's groups to the configs of that program.
"""

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from esper.sweeps import RayConfig


def _made(name: str) -> Any:
    """Return the sweeper of this name that does the work."""
    from esper.lab import sweepers

    return getattr(sweepers, name)


class BlockSweeper(Sweeper):
    """See `esper.lab.sweepers`."""

    def __init__(self, **arguments: Any) -> None:
        self._sweeper: Sweeper = _made(type(self).__name__)(**arguments)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._sweeper.setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def sweep(self, arguments: list[str]) -> Any:
        return self._sweeper.sweep(arguments)

    @classmethod
    def preview(cls, hydra: DictConfig, common: Sequence[str]) -> list[list[str]]:
        return _made(cls.__name__).preview(hydra, common)

    @classmethod
    def check(cls, hydra: DictConfig, common: Sequence[str], configs: Sequence[Any]) -> None:
        _made(cls.__name__).check(hydra, common, configs)


class TuneSweeper(BlockSweeper):
    """See `esper.lab.sweepers`."""


class RayLauncher(Launcher):
    """See `esper.lab.ray_launcher`."""

    def __init__(self, **arguments: Any) -> None:
        from esper.lab import ray_launcher

        self._launcher = ray_launcher.RayLauncher(**arguments)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._launcher.setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        return self._launcher.launch(job_overrides, initial_job_idx)


ConfigStore.instance().store(group="hydra/launcher", name="esper_ray", node=RayConfig)
