"""The work that faults strike: training runs, sweeps in one process and in several, and comparisons.

Every case runs in forks of a process that has imported everything, so that starting it again costs a tenth of a second.
"""

import importlib
import json
import os
import runpy
import shutil
import sys
import tempfile
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from joblib.externals.loky.backend import context

from esper.checkpoint import Checkpoints, load
from esper.cli.overrides import check
from esper.config import Config
from esper.task.loading import load_task
from esper.training.run_folder import CHECKPOINTS
from esper.training.trainer import Trainer
from tests.golden.record import numbers as leaves

TINY = "hosts=4 steps=3 agent.minibatches=2 agent.epochs=2 agent.hidden=8 telemetry.every=1"
BOTH = "telemetry.writers=[jsonl,tensorboard]"
JSONL = "telemetry.writers=[jsonl]"
SMALL_HOST = "task.epoch_samples=128 task.valid_samples=64 task.batch_size=64"
ARMS = "arms={a: agent.hidden=8, b: agent.hidden=16}"
SWEEP = f"-m sweep=ab blocks=1 aa_control=false {JSONL} updates=2"
WARM = "esper.train esper.compare esper.evaluate esper.lab.comparison esper.lab.report torch.utils.tensorboard"
TIMES = ("time/", "seconds", "folder")
"""Parts of the names of numbers that may differ: times, and paths."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Something that is started in a folder, and started again in the same way to finish it."""

    several: bool = False
    """True if it has worker processes, which end half a second after their parent."""
    grows: bool = False
    """True if it is a run with hosts, into which a NaN can be put."""

    def warm(self) -> None:
        """Prepare this process, so that its forks find modules, data and caches."""

    def prepare(self, folder: Path) -> None:
        """Prepare the folder of a trial."""

    def run(self, folder: Path, *, alone: bool = False) -> None:
        """Start, or go on.

        Args:
            alone: if true, without worker processes, so that all operations are those of one process.
        """
        raise NotImplementedError

    def numbers(self, folder: Path) -> dict[str, Any]:
        """Return every number of the result by path, except times."""
        found: dict[str, Any] = {}
        for checkpoints in sorted(folder.rglob(CHECKPOINTS)):
            one = checkpoints.parent
            newest = Checkpoints(checkpoints).latest()
            assert newest is not None
            state = load(newest)
            parts: dict[str, Any] = {name: state[name] for name in ("update", "agent", "buffer", "watch")}
            for path in sorted(one.glob("*.jsonl")):
                parts[path.name] = [json.loads(line) for line in path.read_text().splitlines()]
            found |= leaves(parts, str(one.relative_to(folder)))
        return {path: value for path, value in found.items() if not any(part in path for part in TIMES)}


@cache
def config_of(overrides: str) -> Config:
    """Return the config of a run, after a first run in this process."""
    for module in WARM.split():
        importlib.import_module(module)
    context.set_start_method("fork", force=True)  # so that workers find everything warm, too
    config = check(overrides.split())
    load_task(config.task, config.host)
    with tempfile.TemporaryDirectory() as folder:
        Trainer(deepcopy(config), Path(folder)).run()
    return config


@dataclass(frozen=True, kw_only=True)
class Training(Case):
    """A training run."""

    overrides: str

    def warm(self) -> None:
        config_of(self.overrides)

    def run(self, folder: Path, *, alone: bool = False) -> None:
        Trainer(deepcopy(config_of(self.overrides)), folder).run()


@dataclass(frozen=True, kw_only=True)
class Sweep(Case):
    """A sweep, repeated with `hydra.sweep.dir` as it advises."""

    overrides: str
    launcher: str = ""

    def warm(self) -> None:
        config_of(CASES["window"].overrides)

    def run(self, folder: Path, *, alone: bool = False) -> None:
        launcher = "" if alone else self.launcher
        command("esper.train", *SWEEP.split(), ARMS, *self.overrides.split(), *launcher.split(), f"hydra.sweep.dir={folder}")


@dataclass(frozen=True, kw_only=True)
class Comparison(Sweep):
    """A comparison of the runs of a finished sweep, whose numbers are those of its files."""

    def warm(self) -> None:
        config_of(CASES["growth"].overrides)
        self._finished()

    @cache  # noqa: B019
    def _finished(self) -> Path:
        """Return the folder of a finished sweep, made in a fork."""
        folder = Path(tempfile.mkdtemp(prefix="esper-faults-sweep-")) / "sweep"
        child = os.fork()
        if child == 0:
            os.dup2(os.open(folder.with_suffix(".log"), os.O_WRONLY | os.O_CREAT), 1)
            Sweep.run(self, folder, alone=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        return folder

    def prepare(self, folder: Path) -> None:
        shutil.copytree(self._finished(), folder)

    def run(self, folder: Path, *, alone: bool = False) -> None:
        command("esper.compare", str(folder), "hosts=2", f"workers={1 if alone else 2}")

    def numbers(self, folder: Path) -> dict[str, Any]:
        files = [folder / "comparison_hosts=2.json", *sorted(folder.rglob("scored_*.json"))]
        found = dict(leaves({str(path.relative_to(folder)): json.loads(path.read_text()) for path in files}))
        return {path: value for path, value in found.items() if not path.endswith("/folder")}


def command(module: str, *arguments: str) -> None:
    """Run `python -m MODULE ...` in this process, a fork that ends with it."""
    sys.argv = [module, *arguments]
    sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


CASES: dict[str, Any] = {
    "sandbox": Training(overrides=f"{TINY} {BOTH} updates=3 env=sandbox agent.baseline=critic telemetry.decisions=true"),
    "window": Training(overrides=f"{TINY} {JSONL} updates=3 env=sandbox agent.baseline=critic buffer=window"),
    "growth": Training(overrides=f"{TINY} {BOTH} updates=3 {SMALL_HOST} devices.auto.members_per_shard=2", grows=True),
    "diverging": Training(
        overrides=f"{TINY} {JSONL} updates=3 {SMALL_HOST} task.rate_factor=[1.0,1e6] devices.auto.members_per_shard=2 steps=4",
        grows=True,
    ),
    "sweep": Sweep(overrides=f"{TINY} env=sandbox outcome=return"),
    "workers": Sweep(
        overrides=f"{TINY} env=sandbox outcome=return", launcher="hydra/launcher=joblib hydra.launcher.n_jobs=2", several=True
    ),
    "compare": Comparison(overrides=f"{TINY} {SMALL_HOST} telemetry.page_hosts=0", several=True),
}
"""Cases by name. In `diverging`, half of the hosts diverge beside healthy ones; in `workers` and `compare`, two processes work
for the one that was started."""
