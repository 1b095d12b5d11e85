"""Failures of single runs of a sweep: the other runs go on, and one sentence at the end names those that failed."""

import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

from hydra.core.utils import JobReturn

from esper.cli.quoting import typed_as
from esper.notices import notice
from esper.text import counted

arguments: list[str] = []
"""Arguments of this process's command, flags first."""


class Ended(SystemExit):
    """The end of a command for a reason that it has printed."""

    def __init__(self, code: int, reason: str, *, machine: bool = False) -> None:
        super().__init__(code)
        self.reason, self.machine = reason, machine


def end(code: int, reason: str, *, machine: bool = False) -> NoReturn:
    """Print the reason, and end the command with this exit code.

    Args:
        code: exit code.
        reason: a sentence.
        machine: whether the cause is the machine, such as a full disk, and not the settings of the run.
    """
    print(f"esper: {reason}", file=sys.stderr)
    raise Ended(code, reason, machine=machine)


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """The result of a failed run; a run that succeeds returns None."""

    run: str
    """Folder of the run, relative to that of the sweep."""
    reason: str
    machine: bool = False
    """Whether the cause is the machine, such as a full disk, and not the settings of the run."""


def tolerate(work: Callable[[], None], run: str) -> Failure | None:
    """Do the work of a run of a sweep; return its failure, so that the other runs go on.

    Raises:
        SystemExit: the sweep was interrupted, or nobody reads its output any more.
    """
    try:
        work()
    except Ended as ended:
        return Failure(run=run, reason=ended.reason, machine=ended.machine)
    except Exception as error:  # a bug
        notice()
        traceback.print_exc()
        return Failure(run=run, reason=f"{type(error).__name__}: {' '.join(str(error).split())}")
    return None


def end_if_failed(results: Any, folder: Path) -> None:
    """End the command of a sweep with exit code 1 if a run failed, naming all that did and the command that resumes them.

    Args:
        results: what the launcher returned, in any nesting.
        folder: folder of the sweep.
    """
    runs_of: dict[str, list[str]] = {}
    for failure in (failed := failures(results)):
        runs_of.setdefault(failure.reason.partition("; ")[0], []).append(failure.run)
    if not failed:
        return
    named = "; ".join(f"{', '.join(runs)} ({reason})" for reason, runs in runs_of.items())
    end(1, f"{len(failed)} of {counted(len([*_flat(results)]), 'run')} failed: {named}; {go_on(folder)}")


def failures(results: Any) -> list[Failure]:
    """Return the runs that failed, of what a launcher returned, in any nesting."""
    return [one.return_value for one in _flat(results) if isinstance(one.return_value, Failure)]


def go_on(folder: Path | str) -> str:
    """Return how to resume the sweep in a folder: its whole command, which a worker of a launcher does not know."""
    place = typed_as("hydra.sweep.dir", folder)
    if not arguments:
        return f"repeat the command of the sweep with {place}"
    words = [shlex.quote(word) for word in arguments if not word.startswith("hydra.sweep.dir=")]
    return f"resume with: python -m esper.train {' '.join([*words, place])}"


def _flat(results: Any) -> Iterator[JobReturn]:
    if isinstance(results, JobReturn):
        yield results
    elif isinstance(results, Sequence) and not isinstance(results, str):
        for one in cast(Sequence[Any], results):
            yield from _flat(one)
