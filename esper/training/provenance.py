"""The provenance of a run: which code, libraries and machine computed it, by which commands, and at what cost."""

import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from esper.config import ConfigError
from esper.files import DiskError, write_whole
from esper.notices import UserNotice
from esper.plugins import plugin_digests
from esper.training.interrupt import Stopped

FILE = "run.json"
"""Name of the file in a run's folder."""
LIBRARIES = ("torch", "numpy", "numba", "scikit-learn", "hydra-core", "omegaconf", "gymnasium")
"""Libraries whose version can change the numbers of a run."""


@cache
def code_version() -> dict[str, Any]:
    """Return the version of this package, a digest of its source, its commit and whether files differ from that.

    The last two are null without a Git checkout.
    """
    package = Path(__file__).parents[1]

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(package), *arguments], capture_output=True, text=True, timeout=10, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    # An installed package may lie in the checkout of another project, which does not track it.
    tracked = git("ls-files", "--error-unmatch", "__init__.py") is not None
    changed = git("status", "--porcelain", "--untracked-files=no", ".") if tracked else None
    source = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(package.rglob("*.py"))))
    return {
        "version": installed("esper-growth"),
        "source": source.hexdigest(),
        "commit": git("rev-parse", "HEAD") if tracked else None,
        "changed": None if changed is None else bool(changed),
    }


def versions() -> dict[str, Any]:
    """Return `code_version`, with the digests of the plugins of this process under "plugins" where there are any."""
    plugins = plugin_digests()
    return code_version() | ({"plugins": plugins} if plugins else {})


def installed(name: str) -> str | None:
    """Return the version of an installed distribution; None if there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def peak_memory() -> int | None:
    """Return the most memory that this process has held [bytes]; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class Provenance:
    """The record of one process that works on a run, in a file that keeps the records of all of them."""

    def __init__(
        self,
        folder: Path,
        update: int,
        machines: Mapping[str, str],
        *,
        cell: str | None = None,
        plan: str | None = None,
        tuned: Mapping[str, Mapping[int, float]] | None = None,
        data: str = "",
        mistakes: Sequence[str] = (),
    ) -> None:
        """
        Args:
            folder: folder of the run.
            update: number of completed updates when the process starts.
            machines: the processor or GPU behind each device of the config, by the device's name.
            cell: folder of the run relative to that of its sweep; None for a single run.
            plan: digest of the experiment of which the run is a cell, if any.
            tuned: measured time of training by hosts per shard [s], of the devices for which it was measured.
            data: sizes of the data in a line, empty if no hosts are trained.
            mistakes: likely mistakes in the data, in sentences.

        Raises:
            ConfigError: the file is damaged.
        """
        self.path = folder / FILE
        self._begun = time.perf_counter(), time.process_time()
        self._before = read(self.path)
        self._record: dict[str, Any] = {
            "cell": cell,
            "plan": plan,
            "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": platform.node(),
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "devices": dict(machines),
            "tuned": tuned or {},
            "data": data,
            "mistakes": list(mistakes),
            "python": platform.python_version(),
            "esper": versions(),
            "libraries": {name: installed(name) for name in LIBRARIES},
            "first_update": update,
            "updates": update,
        }

    def __enter__(self) -> "Provenance":
        self.save(self._record["updates"])
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        stopped = kind is not None and issubclass(kind, Stopped | KeyboardInterrupt)
        with suppress(DiskError) if kind else nullcontext():  # the first error is the one to report
            self.save(self._record["updates"], "stopped" if stopped else "failed" if kind else "finished")

    def save(self, update: int, status: str = "running") -> None:
        """Write the record.

        Args:
            update: number of completed updates.
            status: running, stopped, failed or finished. A process that was killed stays at running.

        Raises:
            DiskError: writing failed.
        """
        wall, cpu = self._begun
        times = {"wall_seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
        self._record |= {"updates": update, "status": status, **{name: round(value, 2) for name, value in times.items()}}
        self._record["memory_bytes"] = peak_memory()
        write_whole(self.path, json.dumps([*self._before, self._record], indent=1) + "\n")


def seconds_spent(path: Path) -> float:
    """Return the time that all processes recorded in this file have spent on a run, up to their last saved update [s].

    Raises:
        ConfigError: the file is damaged.
    """
    return float(sum(record.get("wall_seconds", 0.0) for record in read(path)))


def warn_of_changed_parts(run: Path) -> None:
    """Warn if a plugin or a custom host of this process has another source than when the run in a folder was trained."""
    with suppress(ConfigError):  # a damaged file is reported where it is needed
        trained = [record for record in read(run / FILE) if record.get("updates", 0) > record.get("first_update", 0)]
        before = [record.get("esper") or {} for record in trained]
        for name, digest in plugin_digests().items():
            if any(one.get("plugins", {}).get(name, digest) != digest for one in before):
                text = f"the source of {name} has changed since this run was trained: restore it, or expect other numbers"
                warnings.warn(text, UserNotice, stacklevel=3)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the records of all processes that worked on a run, oldest first; none if there is no file.

    Raises:
        ConfigError: the file is damaged.
    """
    if not path.exists():
        return []
    text, table = (str, type(None)), (dict, type(None))
    kinds = {"cell": text, "plan": text, "esper": table}
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
        if type(records) is not list or not all(
            isinstance(one.get(name), kind) for one in records for name, kind in kinds.items()
        ):
            raise ValueError
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged: move it away; the run then writes a new file") from error
    return records
