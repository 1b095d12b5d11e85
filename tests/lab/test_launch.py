"""Launchers: cores per run, and equal results whichever launches a run."""

import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hydra.types import RunMode
from omegaconf import OmegaConf

from esper.checkpoint import load
from esper.cli.overrides import check
from esper.config import CHECKPOINTS
from esper.env import shard_pool
from esper.lab.design import Cell, design
from esper.lab.launch import CellSweeper, cores_each, end_with_parent, run_context
from esper.training.trainer import Trainer
from tests.forked import run_forked

ROOT = Path(__file__).parents[2]
LAUNCHERS = {
    "joblib": ("hydra_plugins.hydra_joblib_launcher", ["hydra.launcher.n_jobs=2"]),
    "submitit_local": ("hydra_plugins.hydra_submitit_launcher", []),
    "esper_ray": ("ray", ["hydra.launcher.cpus=1"]),
}
"""Launcher -> the package that it needs, and its overrides."""


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 8 cores."""
    monkeypatch.setattr(shard_pool.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


@pytest.mark.parametrize(
    ("launcher", "cores"),
    [
        ({"_target_": "a.BasicLauncher"}, None),
        ({"_target_": "a.JoblibLauncher", "n_jobs": 2}, 4),
        ({"_target_": "a.JoblibLauncher", "n_jobs": 3}, 2),
        ({"_target_": "a.JoblibLauncher", "n_jobs": 20}, 1),
        ({"_target_": "a.JoblibLauncher", "n_jobs": -1}, 1),
        ({"_target_": "a.JoblibLauncher", "n_jobs": -5}, 2),
        ({"_target_": "a.LocalLauncher", "cpus_per_task": None}, 1),
        ({"_target_": "a.LocalLauncher", "cpus_per_task": 3}, 3),
        ({"_target_": "a.SlurmLauncher", "cpus_per_task": None}, None),
        ({"_target_": "a.RayLauncher", "cpus": 2}, 2),
        ({"_target_": "a.SlurmLauncher", "cpus_per_task": 6}, 6),
    ],
    ids=str,
)
def test_parallel_cells_share_the_cores(launcher: dict, cores: int | None, eight: None) -> None:
    asked = OmegaConf.create(launcher)
    assert cores_each(asked) == cores
    shard_pool.limit_cores(cores)
    try:
        assert shard_pool.available_cores() == (cores or 8)
        assert cores_each(asked) == cores  # unchanged for a worker's second cell
    finally:
        shard_pool.limit_cores(None)


def test_runs_of_a_sweep_have_names() -> None:
    hydra = {
        "mode": RunMode.MULTIRUN,
        "sweep": {"dir": "nowhere", "subdir": "plain/block-03"},
        "launcher": {"_target_": "a.BasicLauncher"},
    }
    place = run_context(OmegaConf.create(hydra))
    assert (place.name, place.shared) == ("plain/block-03", False)
    hydra["launcher"] = {"_target_": "a.JoblibLauncher", "n_jobs": 2}
    assert run_context(OmegaConf.create(hydra)).shared
    hydra["mode"] = RunMode.RUN
    assert run_context(OmegaConf.create(hydra)).name == ""


def test_a_run_uses_only_its_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, eight: None) -> None:
    from esper import train
    from esper.cli import command as cli
    from esper.lab import launch

    seen: list[int] = []

    class FakeTrainer:
        def __init__(self, *_: object, **__: object) -> None:
            seen.append(shard_pool.available_cores())

        def run(self) -> None: ...

    monkeypatch.setattr("esper.training.trainer.Trainer", FakeTrainer)
    monkeypatch.setattr(train, "run_context", lambda _: launch.RunContext(cores=3))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["esper.train", "agent=wait"])
    try:
        cli.run(train.main)
    finally:
        shard_pool.limit_cores(None)
    assert seen == [3]


def test_a_launcher_without_a_queue_gets_one_batch_per_machine(tmp_path: Path, eight: None) -> None:
    class Launcher:
        handed: list[int] = []  # noqa: RUF012

        def launch(self, jobs: list, initial_job_idx: int) -> list:
            assert initial_job_idx == sum(self.handed)
            self.handed.append(len(jobs))
            return [OmegaConf.create({"return_value": None}) for _ in jobs]

    class Sweeper(CellSweeper):
        def sweep(self, arguments: list[str]) -> None: ...

    cells = [Cell(arm="a", block=block, overrides=()) for block in range(10)]
    for asked, handed in (
        ({"_target_": "a.LocalLauncher", "cpus_per_task": 2}, [4, 4, 2]),
        ({"_target_": "a.JoblibLauncher", "n_jobs": 2}, [10]),
    ):
        Launcher.handed = []
        sweeper = Sweeper()
        sweeper.config = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}, "launcher": asked}})
        sweeper.launcher = Launcher()  # pyright: ignore[reportAttributeAccessIssue]
        sweeper.run_cells("ten", cells)
        assert Launcher.handed == handed


TINY = ["hosts=4", "steps=3", "updates=1", "devices=cpu", "telemetry=quiet", "agent.minibatches=2", "agent.epochs=1"]
FINE, BROKEN = "agent.hidden=16", "task=cifar10_baseline task.root=nowhere"


def sweep(launcher: str, folder: Path, arms: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Run one block of two arms with a launcher; with this root, arm `fine` comes first."""
    command = ["-m", "sweep=ab", f"arms={arms}", "blocks=1", "root=3", "aa_control=false", "hydra.sweep.dir=out"]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {"PYTHONPATH": path, "HOME": str(folder)}  # Ray keeps a key in the home
    return run_forked("esper.train", *command, *TINY, f"hydra/launcher={launcher}", *overrides, cwd=folder, env=env)


def read(run: Path) -> tuple[list[dict], dict]:
    """Return the metrics of a run without times, and its last weights."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    measured = [{tag: value for tag, value in line.items() if not tag.startswith("time/")} for line in lines]
    return measured, load(run / CHECKPOINTS / "checkpoint_000001.pt")["agent"]["network"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of arm `fine`, without a launcher."""
    (seed,) = design({"fine": FINE}, blocks=1, root=3).seeds
    folder = tmp_path_factory.mktemp("plain")
    Trainer(check([*TINY, FINE, f"seed={seed}"]), folder).run()
    return folder


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launchers_run_alike_and_report_failures(
    launcher: str, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """joblib must run two arms; of the others, which lose or wrap the exit of a run, the second one fails."""
    package, overrides = LAUNCHERS[launcher]
    if not find_spec(package):
        pytest.skip(f"{package} is not installed")
    if launcher == "submitit_local":  # it waits 15 s for the result of a failed job
        monkeypatch.setattr("submitit.core.core.Job._results_timeout_s", 1)
    second = "agent.hidden=32" if launcher == "joblib" else BROKEN
    done = sweep(launcher, tmp_path, f'{{fine: {FINE}, second: "{second}"}}', *overrides)
    measured, weights = read(tmp_path / "out/fine/block-00")
    expected, same = read(plain)
    assert measured == expected
    torch.testing.assert_close(weights, same, rtol=0, atol=0)
    if second != BROKEN:
        assert done.returncode == 0, done.stderr
        assert read(tmp_path / "out/second/block-00")[0] != expected
        return
    assert done.returncode != 0
    assert "which does not exist: add task.download=true" in done.stderr
    assert "Traceback" not in done.stderr


def _outlive_parent(pipe: int) -> None:
    """Begin to watch the parent after its death; write into the pipe if this process is still alive 5 s later."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    while os.getppid() == parent.pid:
        time.sleep(0.01)
    end_with_parent()
    time.sleep(5)
    os.write(pipe, b"alive")


def test_workers_end_even_if_their_parent_died_before_they_began() -> None:
    end, start = os.pipe()
    parent = os.fork()
    if parent == 0:
        multiprocessing.get_context("fork").Process(target=_outlive_parent, args=(start,)).start()
        os._exit(0)
    os.waitpid(parent, 0)
    os.close(start)
    with os.fdopen(end, "rb") as pipe:
        assert pipe.read() == b""  # the end of the worker closes the pipe


def test_single_processes_do_not_end_with_the_shell_that_started_them() -> None:
    before = threading.active_count()
    end_with_parent()
    assert threading.active_count() == before
