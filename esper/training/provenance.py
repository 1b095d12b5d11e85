"""The provenance of a run: which code, libraries and machine computed it, by which commands, and at what cost."""

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from esper.checkpoint import write_whole

FILE = "run.json"
"""Name of the file in a run's folder."""
LIBRARIES = ("torch", "numpy", "scikit-learn", "hydra-core", "omegaconf", "gymnasium")
"""Libraries whose version can change the numbers of a run."""


@cache
def code_version() -> dict[str, Any]:
    """Return the version of this package, with the commit and whether files differ from it; null without a Git checkout."""
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
    return {
        "version": installed("esper-growth"),
        "commit": git("rev-parse", "HEAD") if tracked else None,
        "changed": None if changed is None else bool(changed),
    }


def installed(name: str) -> str | None:
    """Return the version of an installed distribution; None if there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def device_name(device: torch.device) -> str:
    """Return the name of the processor of a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()


class Provenance:
    """Records one process that works on a run, in a file that keeps all of them."""

    def __init__(self, folder: Path, *, update: int, devices: Sequence[torch.device]) -> None:
        """
        Args:
            folder: folder of the run.
            update: number of completed updates when the process starts.
            devices: devices of the hosts.
        """
        self.path = folder / FILE
        self._begun = time.perf_counter(), time.process_time()
        self._before = read(self.path)
        self._record: dict[str, Any] = {
            "command": shlex.join(["python", "-m", "esper.train", *sys.argv[1:]]),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": platform.node(),
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "devices": {str(device): device_name(device) for device in devices},
            "python": platform.python_version(),
            "esper": code_version(),
            "libraries": {name: installed(name) for name in LIBRARIES},
            "first_update": update,
        }
        self.save(update, "running")

    def save(self, update: int, status: str) -> None:
        """Write the record.

        Args:
            update: number of completed updates.
            status: running, stopped or finished. A process that was killed stays at running.

        Raises:
            DiskError: the disk refused.
        """
        wall, cpu = self._begun
        self._record |= {
            "updates": update,
            "status": status,
            "wall_seconds": round(time.perf_counter() - wall, 2),
            "cpu_seconds": round(time.process_time() - cpu, 2),
        }
        write_whole(self.path, json.dumps([*self._before, self._record], indent=1) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """Return the records of all processes that worked on a run, oldest first; none if the file is missing or damaged."""
    try:
        records = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    return records if isinstance(records, list) else []
