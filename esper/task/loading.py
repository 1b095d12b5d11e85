"""The task of this process, loaded once: the check before a run, the run and its evaluations share the data."""

from esper.hosts.base import HostConfig
from esper.task.base import Task, TaskConfig

_loaded: dict[tuple[str, str], Task] = {}


def load_task(config: TaskConfig, host: HostConfig) -> Task:
    """Return the task of a config; the newest one is kept, since a task does not change.

    Raises:
        TaskError: the data is missing or damaged.
    """
    key = repr(config), repr(host)
    if key not in _loaded:
        task = config.build(host)
        _loaded.clear()
        _loaded[key] = task
    return _loaded[key]
