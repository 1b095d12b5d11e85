"""Launchers: what each leaves to a run, and that a run does not depend on who launched it."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hydra.types import RunMode
from omegaconf import OmegaConf

from esper.checkpoint import load
from esper.cli.command import spelled_out
from esper.config import CHECKPOINTS
from esper.env import shard_pool
from esper.lab.design import Cell
from esper.lab.launch import CellSweeper, cores_each, run_context

ROOT = Path(__file__).parents[2]
LAUNCHERS = {
    "joblib": ("hydra_plugins.hydra_joblib_launcher", ["hydra.launcher.n_jobs=2"]),
    "submitit_local": ("hydra_plugins.hydra_submitit_launcher", []),
    "esper_ray": ("ray", ["hydra.launcher.cpus=1"]),
}
"""The package that each needs, and the words it is run with."""


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
def test_cells_that_run_side_by_side_share_the_cores(launcher: dict, cores: int | None, eight: None) -> None:
    asked = OmegaConf.create(launcher)
    assert cores_each(asked) == cores
    shard_pool.limit_cores(cores)
    try:
        assert shard_pool.available_cores() == (cores or 8)
        assert cores_each(asked) == cores  # a worker's second cell has as many as its first
    finally:
        shard_pool.limit_cores(None)


def test_a_run_of_a_sweep_has_a_name() -> None:
    hydra = {"mode": RunMode.MULTIRUN, "sweep": {"subdir": "plain/block-03"}, "launcher": {"_target_": "a.BasicLauncher"}}
    place = run_context(OmegaConf.create(hydra))
    assert (place.name, place.shared) == ("plain/block-03", False)
    hydra["launcher"] = {"_target_": "a.JoblibLauncher", "n_jobs": 2}
    assert run_context(OmegaConf.create(hydra)).shared
    hydra["mode"] = RunMode.RUN
    assert run_context(OmegaConf.create(hydra)).name == ""


def test_a_run_keeps_to_its_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, eight: None) -> None:
    from esper import train
    from esper.cli import command as cli
    from esper.lab import launch

    seen: list[int] = []

    class Looks:
        def __init__(self, *_: object, **__: object) -> None:
            seen.append(shard_pool.available_cores())

        def run(self) -> None: ...

    monkeypatch.setattr("esper.training.trainer.Trainer", Looks)
    monkeypatch.setattr(train, "run_context", lambda _: launch.RunContext(cores=3))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["esper.train", "agent=wait"])
    try:
        cli.run(train.main)
    finally:
        shard_pool.limit_cores(None)
    assert seen == [3]


def test_a_launcher_without_a_queue_is_handed_as_many_runs_as_there_are_cores(tmp_path: Path, eight: None) -> None:
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


TINY = [
    "hosts=4",
    "steps=3",
    "updates=1",
    "telemetry=quiet",
    "telemetry.writers=[jsonl,console]",
    "agent.minibatches=2",
    "agent.epochs=1",
]


def sweep(launcher: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Two runs of one block."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    more = spelled_out(
        ["sweep=ab", "arms={small: agent.hidden=16, large: agent.hidden=32}", "blocks=1", "root=3", "aa_control=false"]
    )
    return subprocess.run(
        [sys.executable, "-m", "esper.train", "-m", *more, *TINY, f"hydra/launcher={launcher}", "hydra.sweep.dir=out", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "HOME": str(folder)},  # Ray keeps a key there
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def read(run: Path) -> tuple[list[dict], dict]:
    """What was measured, without what a clock said; and the last weights."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    measured = [{tag: value for tag, value in line.items() if not tag.startswith("time/")} for line in lines]
    return measured, load(run / CHECKPOINTS / "checkpoint_000001.pt")["agent"]["network"]


@pytest.fixture(scope="module")
def basic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("basic")
    done = sweep("basic", folder)
    assert done.returncode == 0, done.stderr
    assert "[HYDRA]" not in done.stdout
    return folder / "out"


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_same_run_under_every_launcher(launcher: str, basic: Path, tmp_path: Path) -> None:
    package, words = LAUNCHERS[launcher]
    if not find_spec(package):
        pytest.skip(f"{package} is not installed")
    done = sweep(launcher, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    said = done.stdout + "".join(path.read_text() for path in (tmp_path / "out").glob(".submitit/*/*_log.out"))
    for arm in ("small", "large"):
        assert f"{arm}/block-00: ppo on digits" in said
        measured, weights = read(tmp_path / "out" / arm / "block-00")
        expected, same = read(basic / arm / "block-00")
        assert measured == expected
        torch.testing.assert_close(weights, same, rtol=0, atol=0)
    assert expected != read(basic / "small" / "block-00")[0]  # the arms do differ, and so would a mistaken file


@pytest.mark.parametrize("launcher", ["submitit_local", "esper_ray"])  # which lose or wrap the exit of a run
def test_a_run_that_cannot_be_done_is_said_in_a_sentence(launcher: str, tmp_path: Path) -> None:
    package, words = LAUNCHERS[launcher]
    if not find_spec(package):
        pytest.skip(f"{package} is not installed")
    done = sweep(launcher, tmp_path, *words, "task=cifar10_baseline", "task.root=nowhere")
    assert done.returncode != 0
    assert "which is not there: download" in done.stderr
    assert "Traceback" not in done.stderr
