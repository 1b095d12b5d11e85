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
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import RunMode
from omegaconf import OmegaConf

from esper.checkpoint import load
from esper.cli.failures import Failure
from esper.cli.sweep_position import COMMAND
from esper.lab.cell import Cell
from esper.lab.design import design
from esper.lab.launch import cores_each, end_with_parent, run_context
from esper.lab.ray_launcher import RayLauncher
from esper.lab.sweepers import CellSweeper
from esper.notices import UserNotice
from esper.pool import local
from esper.pool.cluster import ClusterError
from esper.pool.devices import find_device, take_turn
from esper.training.run_folder import CHECKPOINTS
from tests.forked import run_forked
from tests.outside.example import GROW, LEARN, TINY, beside

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "launchers"
NEEDS = {
    "joblib": "hydra_plugins.hydra_joblib_launcher",
    "slurm": "hydra_plugins.hydra_submitit_launcher",
    "ray": "ray",
}
"""Example of a launcher -> the package that it needs. That of Slurm runs on this machine where no Slurm answers."""


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 8 cores."""
    monkeypatch.setattr(local.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


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
    local.limit_cores(cores)
    try:
        assert local.available_cores() == (cores or 8)
        assert cores_each(asked) == cores  # unchanged for a worker's second cell
    finally:
        local.limit_cores(None)


def test_runs_of_a_sweep_have_names() -> None:
    hydra = {
        "mode": RunMode.MULTIRUN,
        "sweep": {"dir": "nowhere", "subdir": "plain/block-03"},
        "launcher": {"_target_": "a.BasicLauncher"},
        "job": {"num": 5},
    }
    place = run_context(OmegaConf.create(hydra))
    assert (place.name, place.shared, place.number) == ("plain/block-03", False, 0)
    hydra["launcher"] = {"_target_": "a.JoblibLauncher", "n_jobs": 2}
    place = run_context(OmegaConf.create(hydra))
    assert (place.shared, place.number) == (True, 5)
    hydra["mode"] = RunMode.RUN
    assert run_context(OmegaConf.create(hydra)).name == ""


def test_a_run_uses_only_its_cores_and_its_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, eight: None) -> None:
    from esper import train
    from esper.cli import command as cli
    from esper.lab import launch

    seen: list[object] = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)

    class FakeTrainer:
        def __init__(self, *_: object, **__: object) -> None:
            seen.extend([local.available_cores(), *map(find_device, ("auto", "cuda", "cuda:1"))])

        def run(self) -> None: ...

    monkeypatch.setattr("esper.training.trainer.Trainer", FakeTrainer)
    monkeypatch.setattr(train, "run_context", lambda _: launch.RunContext(cores=3, number=6))
    monkeypatch.setattr("esper.cli.command.ready", lambda _, **__: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["esper.train", "agent=wait"])
    try:
        cli.run(train.main)
    finally:
        local.limit_cores(None)
        take_turn(0)
    assert seen == [3, *(torch.device("cuda", number) for number in (2, 2, 1))]
    assert find_device("auto") == torch.device("cuda", 0)


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


FINE = " ".join([*GROW, *LEARN])
ROOT_SEED = 1
SMALL = {
    "joblib": ["hydra.launcher.n_jobs=2"],
    "slurm": ["hydra.launcher.cpus_per_task=1", "hydra.launcher.gpus_per_node=0"],
    "ray": [f"hydra.launcher.cpus={min(2, os.cpu_count() or 1)}"],  # on two cores one run after the other, in one process
}
"""Launcher -> overrides for a small machine."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parts of examples/plugin, which the workers of all launchers must find."""
    return beside(tmp_path_factory.mktemp("example"))


def environment(site: Path, home: Path) -> dict[str, str]:
    paths = [str(ROOT), str(site), os.environ.get("PYTHONPATH", "")]
    programs = [str(Path(sys.executable).parent), os.environ["PATH"]]
    ours = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PATH": os.pathsep.join(programs)}
    ours |= {"HOME": str(home), "RAY_worker_niceness": "0"}  # Ray keeps a key in the home; its workers give way by default
    return ours | {"OMP_NUM_THREADS": "1"}


def read(run: Path) -> tuple[list[dict], dict]:
    """Return the metrics of a run without times, and its last weights."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    measured = [{tag: value for tag, value in line.items() if not tag.startswith("time/")} for line in lines]
    return measured, load(run / CHECKPOINTS / "checkpoint_000001.pt")["agent"]["network"]


@pytest.fixture(scope="module")
def plain(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of arm `fine`, without a launcher."""
    planned = design({"fine": FINE, "broken": "steps=9"}, blocks=1, root=ROOT_SEED, aa_control=False)
    assert planned.order == [["broken", "fine"]]
    (seed,) = planned.seeds
    folder = tmp_path_factory.mktemp("plain")
    words = [*TINY, *FINE.split(), "devices=[cpu]", f"seed={seed}", "hydra.run.dir=run"]
    done = run_forked("esper.train", *words, cwd=folder, env=environment(site, folder))
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_every_launcher_has_an_example() -> None:
    assert {path.stem for path in EXAMPLES.iterdir()} == NEEDS.keys()
    assert all(len(path.read_text().splitlines()) < 60 and os.access(path, os.X_OK) for path in EXAMPLES.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("launcher", NEEDS)
def test_launchers_run_alike_and_a_failure_ends_no_other_run(launcher: str, site: Path, plain: Path, tmp_path: Path) -> None:
    """In the example of each launcher, with the parts of a package and of a file; the run that fails comes first."""
    if not find_spec(NEEDS[launcher]):
        pytest.skip(f"{NEEDS[launcher]} is not installed")
    arms = f'arms={{fine: "{FINE}", broken: "governor=off optimiser.learning_rate=1e15"}}'
    sweep = [arms, "blocks=1", f"root={ROOT_SEED}", "aa_control=false", "hydra.sweep.dir=out", *TINY[:3], "devices=[cpu]"]
    sweep += [f"plugins=[{ROOT / 'tests/outside/my_parts.py'}]", "telemetry.writers=[jsonl,markdown,returns]"]
    sweep += ["telemetry.page_hosts=0"]
    command, env = [EXAMPLES / f"{launcher}.sh", *sweep, *SMALL[launcher]], os.environ | environment(site, tmp_path)
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("esper: 1 of 2 runs failed: broken/block-00 (hosts 0, ")
    assert "have a non-finite loss, gradient or batch statistic" in last
    assert "; resume with: python -m esper.train -m sweep=ab" in last
    assert last.endswith("hydra.sweep.dir=out")
    assert "Traceback" not in done.stderr
    assert (tmp_path / "out/fine/block-00/returns.csv").read_text(), "the writer of the file was found in a worker"
    measured, weights = read(tmp_path / "out/fine/block-00")
    expected, same = read(plain)
    assert measured == expected
    torch.testing.assert_close(weights, same, rtol=0, atol=0)


def test_a_run_whose_process_ray_loses_counts_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="pip install -e '.[ray]'")

    class Task:
        remote = staticmethod(lambda shared, number, overrides: number)

    def get(number: int) -> JobReturn:
        if number == 7:
            raise ray.exceptions.WorkerCrashedError
        if number == 8:
            raise ray.exceptions.RayTaskError("run", "its traceback", ImportError("no libfoo"))
        return JobReturn(_return_value=None, status=JobStatus.COMPLETED)

    machine = {"Alive": True, "Resources": {"CPU": 2.0}}
    fakes = {"is_initialized": lambda: True, "put": lambda it: it, "remote": lambda **_: lambda _: Task, "get": get}
    fakes |= {"nodes": lambda: [machine]}
    for name, fake in fakes.items():
        monkeypatch.setattr(ray, name, fake)
    launcher = RayLauncher(address=None, cpus=1, gpus=0.0)
    launcher.setup(hydra_context=None, task_function=print, config=OmegaConf.create({}))  # pyright: ignore[reportArgumentType]
    lost, broken, other = launcher.launch([["hydra.sweep.subdir=trial-003/block-00"], [], []], initial_job_idx=7)
    assert broken.return_value == Failure(run="run 8", reason="ImportError: no libfoo")
    assert other.return_value is None
    assert isinstance(lost.return_value, Failure)
    assert lost.return_value.run == "trial-003/block-00"
    assert lost.return_value.reason.startswith("Ray lost its process, most likely out of memory; ")
    launcher.cpus = 8
    with pytest.raises(
        ClusterError, match=r"a run asks for 8 CPUs and 0 GPUs \(hydra.* but this machine has 2 and 0: lower them"
    ):
        launcher.launch([[]], initial_job_idx=0)
    launcher.address = "auto"
    with pytest.warns(UserNotice, match="no machine of the cluster has them, but at most 2 and 0: the runs wait until one joins"):
        launcher.launch([[]], initial_job_idx=0)


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


def _outlive_command(pipe: int, command: int) -> None:
    os.environ |= {"SUBMITIT_EXECUTOR": "local", COMMAND: str(command)}
    end_with_parent()
    time.sleep(5)
    os.write(pipe, b"alive")
    os._exit(0)


def test_a_job_of_submitit_ends_with_its_command() -> None:
    """Not with its parent, which is a process of submitit."""
    command = subprocess.Popen(["sleep", "60"])
    end, start = os.pipe()
    if os.fork() == 0:
        _outlive_command(start, command.pid)
    os.close(start)
    command.kill()
    command.wait()
    with os.fdopen(end, "rb") as pipe:
        assert pipe.read() == b""


def test_single_processes_do_not_end_with_the_shell_that_started_them() -> None:
    before = threading.active_count()
    end_with_parent()
    assert threading.active_count() == before
