"""One disturbed case: faults strike it one after another, each time it is started again, and at the end its numbers are compared
with those of a case that nothing struck.

Every process is a fork of this one, which has imported everything.
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from esper.checkpoint import CheckpointError, load
from esper.cli.command import USER_ERRORS
from esper.training.interrupt import Stopped
from tests.faults import nonfinite
from tests.faults.cases import CASES, Case
from tests.faults.injector import FAULTS, Injector
from tests.faults.nonfinite import Nan

LIMIT = 120.0
"""Time after which a process counts as hung [s]."""
PATIENCE = 10.0
"""Time for workers to end after their parent was killed [s]."""
OPERATIONS = tuple(sorted({operation for operation, _ in FAULTS.values()}))
BUSY = "another process is writing into"


@dataclass
class Outcome:
    """What came of one trial."""

    struck: list[str] = field(default_factory=lambda: list[str]())
    """The faults that struck, in order, as in kill@123. A NaN is the first."""
    problem: str = ""
    """What went wrong, empty if nothing did."""


@dataclass
class Reference:
    """An undisturbed case."""

    numbers: dict[str, Any]
    counts: dict[str, int]
    """Operations by class, in one process."""


def in_fork(work: Callable[[], None], log: Path) -> int:
    """Run something in a child process and return its exit code: 128 + the signal if one killed it."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with log.open("a") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.alarm(int(LIMIT))
            code = _exit_code(work)
            sys.settrace(None)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _exit_code(work: Callable[[], None]) -> int:
    """Return the exit code that the command would have."""
    try:
        work()
    except Stopped:
        return 130
    except USER_ERRORS as error:
        print(f"esper: {error}")
        return 2
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def numbers(case: Case, folder: Path) -> dict[str, Any]:
    """Return the numbers of a finished case, with the weights of its hosts."""
    return case.numbers(folder) | nonfinite.hosts(folder)


def reference(name: str, folder: Path, operations: Sequence[str] = OPERATIONS) -> Reference:
    """Run a case undisturbed, once per class of operations and, if it has any, once more with its workers, and demand the same
    numbers each time."""
    case = CASES[name]
    case.warm()
    folder.mkdir(parents=True, exist_ok=True)
    counts = dict.fromkeys(OPERATIONS, 0)
    counts |= {operation: _count(case, operation, folder / operation) for operation in operations}
    whole = folder / ("whole" if case.several else operations[0])
    if case.several:
        assert _go(case, whole, folder / "whole.log") == 0, (folder / "whole.log").read_text()
    found = numbers(case, whole)
    for operation in operations:
        alone = numbers(case, folder / operation)
        different = [path for path in found.keys() | alone.keys() if found.get(path) != alone.get(path)]
        different = [path for path in different if not path.endswith("/config/workers")]
        assert not different, f"{name} is not reproducible: {min(different)}"
    return Reference(found, counts)


def _count(case: Case, operation: str, folder: Path) -> int:
    """Return the number of operations of a class in an undisturbed process, which leaves its result in the folder."""
    injector, answer = Injector(operation), folder.with_suffix(".count")
    case.prepare(folder)

    def work() -> None:
        real_write = os.write
        file = os.open(answer, os.O_WRONLY | os.O_CREAT)
        nonfinite.install(None, folder)
        injector.install()
        case.run(folder, alone=True)
        sys.settrace(None)
        real_write(file, str(injector.counted() if injector.counted else injector.count).encode())

    code = in_fork(work, folder.with_suffix(".log"))
    assert code == 0, folder.with_suffix(".log").read_text()
    return int(answer.read_text())


def _go(case: Case, folder: Path, log: Path, strike: Injector | None = None, nan: Nan | None = None) -> int:
    """Start a case or go on with it, and return the exit code; while workers of a killed process hold the folder, wait."""

    def work() -> None:
        nonfinite.install(nan, folder)
        if strike:
            strike.install()
        case.run(folder)

    if not folder.exists():
        case.prepare(folder)
    deadline = time.monotonic() + (PATIENCE if case.several else 0.0)
    while True:
        code = in_fork(work, log)
        busy = code != 0 and BUSY in log.read_text().rpartition("esper: ")[2]
        if not busy or time.monotonic() > deadline:
            return code
        time.sleep(0.2)


def trial(name: str, faults: Sequence[tuple[str, int]], folder: Path, expected: Reference, nan: Nan | None = None) -> Outcome:
    """Disturb a case again and again, finish it, and compare.

    Args:
        name: a key of `CASES`.
        faults: keys of `FAULTS`, each with the number of the operation of its process at which it strikes, from 1. The rest is
            left out once the case is finished.
        folder: folder for the case, not there yet.
        expected: the case undisturbed.
        nan: a NaN that the run computes with. It is then compared with an undisturbed run with the same NaN, and that one with
            the run without.
    """
    case, log, outcome = CASES[name], folder.with_suffix(".log"), Outcome()
    wanted = expected.numbers
    if nan:
        whole = folder.with_name(f"{folder.name}-nan")
        code = _go(case, whole, log, nan=nan)
        if whole.with_suffix(".nan").exists():
            outcome.struck.append(str(nan))
        wanted = numbers(case, whole) if code == 0 else {}
        if wanted != expected.numbers:
            last = expected.numbers["./update"]
            outcome.problem = nonfinite.problem(nan, expected.numbers, wanted, last)
        if outcome.problem:
            return outcome
    for number, (fault, at) in enumerate(faults):
        operation, act = FAULTS[fault]
        marker = folder.with_suffix(f".struck{number}")
        code = _go(case, folder, log, Injector(operation, at, _strike(marker, act)), nan)
        if marker.exists():
            outcome.struck.append(f"{fault}@{at}")
        outcome.problem = _seen(code, folder, struck=marker.exists())
        if outcome.problem:
            return outcome
        if not marker.exists():
            break
    code = _go(case, folder, log, nan=nan)
    if code != 0:
        outcome.problem = f"could not be finished: code {code}: {log.read_text().splitlines()[-1]}"
        return outcome
    found = numbers(case, folder)
    different = [path for path in wanted.keys() | found.keys() if wanted.get(path) != found.get(path)]
    outcome.problem = f"{len(different)} numbers differ, as {min(different)}" if different else ""
    return outcome


def _strike(marker: Path, act: Callable[[], None]) -> Callable[[], None]:
    """Return a fault that acts only once, in whichever process of the case comes first."""
    real_mknod = os.mknod

    def strike() -> None:
        try:
            real_mknod(marker)
        except FileExistsError:
            return
        act()

    return strike


def _seen(code: int, folder: Path, *, struck: bool) -> str:
    """Return what is wrong after a process has ended, empty if nothing is."""
    if not struck and code != 0:
        return f"ended with code {code} though nothing struck"
    if code == 128 + signal.SIGALRM:
        return "hung"
    for path in sorted(folder.rglob("checkpoint_*.pt")):
        try:
            load(path)
        except CheckpointError as error:
            if path.exists():  # a worker that is still alive may remove it
                return f"unreadable checkpoint: {error}"
    return ""
