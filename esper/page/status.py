"""How far a run has come, whether a process still works on it, and how to resume it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from esper.cli.quoting import typed_as
from esper.config import Config
from esper.telemetry.traces import traced_evaluation
from esper.text import counted
from esper.training.config_io import from_plain
from esper.training.resume import load_newest
from esper.training.run_folder import LOCK


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """The state of a run when its page is written."""

    done: int
    """Completed updates that are saved."""
    planned: int
    """Updates that the run was started for."""
    state: str
    """finished, running, killed, stopped or failed; empty for a run without records."""
    evaluated: int | None
    """Update after which the policy grew the held-out hosts; None if it has grown none."""
    now: str
    """Time of writing."""
    resume: str
    """Command that continues the run; empty for a finished or running one."""

    @property
    def updates(self) -> str:
        """Completed updates in words, such as "3 of 12 updates"."""
        return f"{self.done} of {self.planned} updates" if self.done < self.planned else counted(self.done, "update")

    @property
    def outcome(self) -> str:
        """State in words, such as "killed after update 3"; empty if unknown."""
        if self.state == "running":
            return f"still running at {self.now}"
        return self.state + ("" if self.state in ("finished", "") else f" after update {self.done}")

    @property
    def note(self) -> str:
        """Sentence that says which policy grew the held-out hosts; empty if that is evident."""
        if self.evaluated is None or (self.evaluated == self.done and self.state in ("finished", "")):
            return ""
        rest = "" if self.evaluated == self.done else f" Learning curves and costs cover {counted(self.done, 'update')}."
        return f"The policy after update {self.evaluated} grew the held-out hosts of this page.{rest}"

    @property
    def line(self) -> str:
        """All of this in one line, for a terminal."""
        found = "no held-out hosts" if self.evaluated is None else f"evaluated: the policy after update {self.evaluated}"
        return "; ".join(filter(None, [", ".join(filter(None, [self.updates, self.outcome])), found]))


def status_of(folder: Path, config: Config, done: int, history: Sequence[Mapping[str, Any]]) -> Status:
    """Return the status of a run.

    Args:
        folder: folder of the run.
        config: its config.
        done: completed updates of its newest checkpoint.
        history: records of `run.json`.
    """
    state = str(history[-1].get("status", "")) if history else ""
    if state == "running" and not written_to(folder):
        state = "killed"
    if state == "finished" and done < config.updates:  # its newest checkpoints were lost, or are damaged
        state = "stopped"
    update, held_out = traced_evaluation(folder, done=done)
    return Status(
        done=done,
        planned=config.updates,
        state=state,
        evaluated=update if held_out else None,
        now=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        resume="" if state in ("finished", "running", "") else f"python -m esper.train {typed_as('resume', folder)}",
    )


def saved_config(folder: Path) -> Config:
    """Return the config in the newest checkpoint of a run that has one.

    Raises:
        ConfigError: the checkpoint was written by another version.
        FileError: a file is damaged.
    """
    saved = load_newest(folder)
    assert saved is not None, "the caller has looked"
    return from_plain(saved["config"])


def written_to(folder: Path) -> bool:
    """Return whether a process holds the lock of a run's folder: then the run goes on. The system frees the lock of a killed
    process."""
    if not (folder / LOCK).exists():
        return False
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        return True
    except OSError:  # a folder that cannot be written to
        return False
    lock.release()
    return False
