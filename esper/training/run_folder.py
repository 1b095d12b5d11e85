"""Folders of runs and sweeps: each has a name of its own, and only one process at a time writes there."""

import shlex
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryFile

from filelock import FileLock, Timeout

from esper.config import ConfigError
from esper.files import READ_ONLY, DiskError, disk

LOCK = ".lock"
"""File in a folder on which the process that writes there holds a lock. The system releases it when the process ends, however
it ends."""

REPORTS_LOCK = ".lock_reports"
"""The same for evaluations and comparisons, which may read a folder while its run goes on."""

CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints in that of a run."""

POLICY = "policy.pt"
"""File of a policy that was saved without the state of its training."""

BEST = "best"
"""Last part of a path that names the checkpoint of the policy with the highest return."""

PAGE = "run.html"
"""Page of a run in its folder."""

EXPORT = "export"
"""Folder of exported networks in that of a run."""


class BusyError(ConfigError):
    """Another process works on a folder."""


_new: dict[str, Path] = {}
"""Folder that this process has chosen under each parent."""


def new_folder(parent: str) -> str:
    """Return a new folder under a parent, named by date and time; the same one at every call of a process.

    It is the resolver `new_folder` of `hydra.run.dir` and `hydra.sweep.dir`. `create` creates the folder.
    """
    if parent not in _new:
        _new[parent] = Path(parent, f"{datetime.now():%Y-%m-%d_%H-%M-%S}")
    return str(_new[parent])


def create(folder: Path) -> Path:
    """Create a folder that `new_folder` chose, and return it: under another name if it exists, since processes never share one.

    Any other folder is the choice of the user, and is returned as it is.

    Raises:
        DiskError: it cannot be created.
    """
    parent = next((parent for parent, chosen in _new.items() if chosen == folder), None)
    if parent is None:
        return folder
    with disk(f"create {folder}"):
        Path(parent).mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            try:
                _new[parent].mkdir()
                return _new[parent]
            except FileExistsError:
                number += 1
                _new[parent] = Path(parent, f"{folder.name}_{number}")


@contextmanager
def only_writer(folder: Path) -> Generator[None]:
    """Hold the lock of a folder, creating the folder if it is missing. A process may enter several times.

    A new folder is removed if no run has begun in it.

    Raises:
        BusyError: another process holds the lock.
        DiskError: the folder cannot be written to.
    """
    with disk(f"write into {folder}"):
        new = not folder.exists() or (folder in _new.values() and not any(folder.iterdir()))
        folder.mkdir(parents=True, exist_ok=True)
        # filelock before 3.30 keeps singletons by their path as it is given: of two paths, the second would wait for the first.
        lock = FileLock(folder.resolve() / LOCK, is_singleton=True, thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise BusyError(f"another process is writing into {folder}: wait until it ends, or choose another folder") from error
    try:
        yield
    finally:
        with suppress(OSError):
            if new and {path.name for path in folder.rglob("*") if path.is_file()} <= {LOCK, "multirun.yaml"}:
                rmtree(folder)
        lock.release()


@contextmanager
def writing_reports(folder: Path) -> Generator[None]:
    """Hold the lock of a folder's reports while they are written, after waiting for others; a training run is not hindered.

    Raises:
        DiskError: the folder cannot be written to.
    """
    check_writable(folder)
    with disk(f"write into {folder}"):
        lock = FileLock(folder / REPORTS_LOCK)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def check_writable(folder: Path) -> None:
    """Raise DiskError if nothing can be written into the folder of a run, before work whose results go there."""
    try:
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        copied = f"copy it to where you can write, as in cp -r {shlex.quote(str(folder))} ., and name the copy"
        raise DiskError(f"write into {folder}", error, copied if error.errno in READ_ONLY else "") from error


def files_of(folder: Path) -> list[Path]:
    """Return all files in a folder and its subfolders; none if there is no folder."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def files_after(folder: Path) -> list[Path]:
    """Return the files that other commands have added to a finished run: its page, and exported networks."""
    page = folder / PAGE
    return [*([page] if page.exists() else []), *files_of(folder / EXPORT)]
