"""One disturbed run: a fault strikes, the run is finished by resuming it, and its numbers are compared with those of a whole run.

Every process is a fork of this one, which has imported everything, so that a trial costs milliseconds beside the run itself.
"""

import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from esper.checkpoint import CheckpointError, Checkpoints, DiskError, load
from esper.cli.overrides import check
from esper.config import CHECKPOINTS, Config, ConfigError
from esper.task.loading import load_task
from esper.training.interrupt import Stopped
from esper.training.resume import find_checkpoint
from esper.training.trainer import Trainer
from tests.faults.injector import FAULTS, Injector
from tests.golden.record import numbers as leaves

TINY = "updates=3 hosts=4 steps=3 agent.minibatches=2 agent.hidden=8 telemetry.writers=[jsonl,tensorboard] telemetry.every=1"
SMALL_HOST = "task.epoch_samples=128 task.valid_samples=64 task.batch_size=64"
CASES = {
    "sandbox": f"{TINY} env=sandbox agent.baseline=critic telemetry.decisions=true",
    "window": f"{TINY} env=sandbox agent.baseline=critic buffer=window",
    "growth": f"{TINY} {SMALL_HOST} devices.auto.members_per_shard=2",
    "diverging": f"{TINY} {SMALL_HOST} task.rate_factor=[1.0,1e6] devices.auto.members_per_shard=2 steps=4",
}
"""Name -> overrides of `esper.train`. In `diverging`, half of the hosts diverge beside healthy ones."""
LIMIT = 120.0
"""Time after which a trial counts as hung [s]."""


@dataclass(frozen=True)
class Outcome:
    """What came of one trial."""

    struck: bool
    """True if the fault struck; false if the run ended before."""
    problem: str
    """What went wrong with it, empty if nothing did."""


@cache
def config_of(case: str) -> Config:
    """Return the config of a case, after a first run in this process: its forks share modules, data and caches."""
    importlib.import_module("torch.utils.tensorboard")
    config = check(CASES[case].split())
    load_task(config.task, config.host)
    with tempfile.TemporaryDirectory() as folder:
        run(deepcopy(config), Path(folder))  # so that the forks find everything warm
    return config


def run(config: Config, folder: Path) -> None:
    """Start or resume the run in a folder, as `esper.train` does."""
    Trainer(config, folder).run()


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
            signal.alarm(int(LIMIT))
            code = _exit_code(work)
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
    except (ConfigError, CheckpointError, DiskError) as error:
        print(f"esper: {error}")
        return 2
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def numbers(folder: Path) -> dict[str, Any]:
    """Return every number of a finished run except times, by path."""
    state = load(find_checkpoint(str(folder), "folder"))
    found = dict(leaves({name: state[name] for name in ("update", "agent", "buffer", "watch")}))
    for name in ("metrics.jsonl", "decisions.jsonl", "events.jsonl"):
        path = folder / name
        if path.exists():
            found |= leaves([json.loads(line) for line in path.read_text().splitlines()], name)
    return {path: value for path, value in found.items() if "time/" not in path and "seconds" not in path}


def count(case: str, operation: str, folder: Path) -> int:
    """Return the number of operations of a class in an undisturbed run, which it leaves in the folder."""
    config, injector, answer = config_of(case), Injector(operation), folder.with_suffix(".count")

    def work() -> None:
        real_write = answer.write_text
        injector.install()
        run(config, folder)
        sys.settrace(None)
        real_write(str(injector.count))

    code = in_fork(work, folder.with_suffix(".log"))
    assert code == 0, folder.with_suffix(".log").read_text()
    return int(answer.read_text())


def trial(case: str, fault: str, at: int, folder: Path, expected: dict[str, Any]) -> Outcome:
    """Disturb a run once, finish it, and compare.

    Args:
        case: a key of `CASES`.
        fault: a key of `FAULTS`.
        at: number of the operation at which it strikes, from 1.
        folder: empty folder for the run.
        expected: numbers of an undisturbed run.
    """
    config, (operation, act) = config_of(case), FAULTS[fault]
    struck_file, log = folder.with_suffix(".struck"), folder.with_suffix(".log")

    def strike() -> None:
        os.mknod(struck_file)
        act()

    def work() -> None:
        Injector(operation, at, strike).install()
        run(deepcopy(config), folder)

    code = in_fork(work, log)
    struck = struck_file.exists()
    if not struck and code != 0:
        return Outcome(struck, f"ended with code {code} though nothing struck")
    if code == 128 + signal.SIGALRM:
        return Outcome(struck, "hung")
    for path in Checkpoints(folder / CHECKPOINTS).paths():
        try:
            load(path)
        except CheckpointError as error:
            return Outcome(struck, f"unreadable checkpoint: {error}")
    code = in_fork(lambda: run(deepcopy(config), folder), log)
    if code != 0:
        return Outcome(struck, f"could not be finished: code {code}: {log.read_text().splitlines()[-1]}")
    found = numbers(folder)
    different = [path for path in expected.keys() | found.keys() if expected.get(path) != found.get(path)]
    return Outcome(struck, f"{len(different)} numbers differ, as {min(different)}" if different else "")
