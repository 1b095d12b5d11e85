"""The task of this process, loaded once: the check before a run, the run and its evaluations share the data."""

from pathlib import Path

from esper.hosts.base import HostConfig
from esper.task.base import Task, TaskConfig
from esper.task.data import DataError, TaskError
from esper.task.table import TASKS

_loaded: dict[tuple[str, str, int], Task] = {}


def load_task(config: TaskConfig, host: HostConfig) -> Task:
    """Return the task of a config; the newest one is kept, since a task does not change.

    Raises:
        TaskError: the data is missing, damaged or wrong.
    """
    key = repr(config), repr(host), _changed(config)
    if key not in _loaded:
        try:
            task = config.build(host)
        except DataError as error:
            name = next((name for name, kind in TASKS.items() if kind is type(config)), type(config).__name__)
            raise TaskError(f"task={name}: {error}") from error
        _loaded.clear()
        _loaded[key] = task
    return _loaded[key]


def _changed(config: TaskConfig) -> int:
    """Return a hash of the paths, times and sizes of the user's files and folders: a notebook may change them."""
    named = [Path(place) for name in config.own_data if (place := getattr(config, name, None))]
    paths = sorted(path for place in named for path in (place, *place.rglob("*")) if path.exists())
    return hash(tuple((str(path), (stat := path.stat()).st_mtime_ns, stat.st_size) for path in paths))
