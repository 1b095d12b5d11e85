"""Commands that are disturbed: signals, closed output, lost folders, killed workers. Each ends in one sentence."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
from joblib.externals.loky.backend import context
from rich.console import Console

from esper.checkpoint import Checkpoints
from esper.cli import command as cli
from esper.cli.command import in_one_sentence
from esper.train import main
from esper.training.interrupt import stop_signals
from tests.forked import Forked

ROOT = Path(__file__).parents[2]
ENDLESS = ["env=sandbox", "agent=random", "hosts=2", "steps=8", "updates=1000000"]


def wait_for(ready: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_for_checkpoints(folder: Path, runs: int = 1) -> None:
    """Wait until this many runs in a folder keep two checkpoints; the runs go on, and replace them."""
    wait_for(lambda: sum(len(list(place.glob("*.pt"))) > 1 for place in folder.rglob("checkpoints")) >= runs, 300)


def sentence(err: str) -> str:
    """The only line that is not a warning."""
    (line,) = [line for line in err.splitlines() if not line.startswith("warning: no seed can be fossilized")]
    return line


def test_the_second_interrupt_ends_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop, in_one_sentence(), stop_signals() as asked:  # noqa: PT012
        os.kill(os.getpid(), signal.SIGINT)
        assert asked.is_set()
        os.kill(os.getpid(), signal.SIGTERM)  # asks again, and does not interrupt
        os.kill(os.getpid(), signal.SIGINT)
    assert stop.value.code == 130
    assert capsys.readouterr().err == "esper: interrupted; what was saved before is intact\n"


@pytest.mark.parametrize("lines", [0, 1])
def test_a_closed_output_is_one_sentence(tmp_path: Path, lines: int) -> None:
    """Also where the title was read, and PyTorch is being loaded."""
    command = [sys.executable, "-m", "esper.train", *ENDLESS, "telemetry.writers=[jsonl,console]", f"hydra.run.dir={tmp_path}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(lines):
            process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == 1
    assert sentence(err) == "esper: the output pipe was closed; what was saved before is intact"


def test_a_removed_folder_is_one_sentence(tmp_path: Path) -> None:
    """PyTorch cannot be loaded from there."""
    command = ["mkdir", "gone", "&&", "cd", "gone", "&&", "rmdir", "../gone", "&&", sys.executable, "-m", "esper.train"]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        ["sh", "-c", " ".join(command)], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (2, "esper: the current folder was removed: change to another one\n")


@pytest.mark.parametrize(
    ("lost", "why"),
    [("", r"esper: cannot (write|save) .*: no such file or directory; restore the folder, or start a new run"),
     ("tensorboard", r"esper: cannot write TensorBoard events to .*: no such file or directory; restore the folder")],
)  # fmt: skip
def test_a_folder_removed_in_mid_run_is_one_sentence(tmp_path: Path, lost: str, why: str) -> None:
    run = tmp_path / "run"
    process = Forked("esper.train", *ENDLESS, "telemetry.writers=[jsonl,tensorboard]", f"hydra.run.dir={run}", cwd=tmp_path)
    wait_for_checkpoints(run)
    (run / lost).rename(tmp_path / "elsewhere")
    _, err = process.communicate()
    assert process.returncode == 2
    assert re.match(why, sentence(err))


def test_a_run_saves_again_where_its_checkpoints_were_removed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save({}, 1)
    checkpoints.folder.rename(tmp_path / "elsewhere")
    checkpoints.save({}, 2)
    newest = checkpoints.latest()
    assert newest is not None
    assert newest.name == "checkpoint_000002.pt"


def test_sigterm_in_a_sweep_advises_the_command_of_the_sweep(tmp_path: Path) -> None:
    process = Forked("esper.train", "-m", *ENDLESS, "seed=1,2", "telemetry=quiet", "hydra.sweep.dir=mine", cwd=tmp_path)
    wait_for_checkpoints(tmp_path)
    process.send_signal(signal.SIGTERM)
    command = shlex.join(["-m", *ENDLESS, "seed=1,2", "telemetry=quiet", "hydra.sweep.dir=mine"])
    assert sentence(process.communicate()[1]).endswith(f"; resume with: python -m esper.train {command}")
    assert process.returncode == 130


def workers(parent: int) -> list[int]:
    """The processes that work for a process: those of joblib, without its resource tracker."""
    found: list[int] = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            owner = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if owner == parent and "resource_tracker" not in (place / "cmdline").read_text():
                found.append(int(place.name))
        except OSError:
            continue
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_killed_process_of_a_sweep_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = ["sweep=ab", "outcome=return", "arms=agent.wait_weight: 1,2", "blocks=1", "aa_control=false"]
    overrides = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=mine", "telemetry=quiet", *ENDLESS]
    said: dict[str, tuple[int | None, str]] = {}
    for killed, sweep in (("parent", ours), ("worker", ["seed=1,2"]), ("nobody", ["seed=3,4"])):
        (tmp_path / killed).mkdir()
        words = ["-m", *sweep, *overrides]
        process = Forked("esper.train", *words, cwd=tmp_path / killed, env={"PYTHONPATH": str(ROOT)})
        monkeypatch.setattr(context, "_DEFAULT_START_METHOD", "fork")  # workers of the next sweeps find everything imported
        wait_for_checkpoints(tmp_path / killed, runs=2)  # a worker that has not begun does not yet watch its parent
        working = workers(process.pid)
        assert working
        if killed == "nobody":
            process.send_signal(signal.SIGINT)
        else:
            os.kill(process.pid if killed == "parent" else working[0], signal.SIGKILL)
        _, errors = process.communicate()
        said[killed] = (process.returncode, errors)
        wait_for(lambda pids=working: not any(map(alive, pids)), 20)
    assert (said["worker"][0], said["nobody"][0]) == (2, 130)
    again = r"[^\n]* resume with: python -m esper.train -m seed=\d,\d [^\n]* hydra.sweep.dir=mine"
    assert re.search(rf"esper: the process of a run was killed, {again}", said["worker"][1])
    assert re.search(rf"esper: interrupted; what was saved before is intact;{again}", said["nobody"][1])


@pytest.mark.parametrize(
    ("error", "why"),
    [(OSError(28, "No space left on device", "x/config.yaml"), "esper: cannot use x/config.yaml: no space left on device; free"),
     (PermissionError(13, "Permission denied", "x"), "esper: cannot use x: permission denied; choose a writable folder"),
     (RuntimeError("no such cluster"), r"esper: Hydra cannot run this command \(RuntimeError: no such cluster\)")],
)  # fmt: skip
def test_errors_of_hydra_are_one_sentence(
    error: Exception, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = compile("def save(*_, **__): raise error", "hydra/core/utils.py", "exec")  # as raised in Hydra's code
    exec(saved, names := {"error": error})
    monkeypatch.setattr("hydra.core.utils._save_config", names["save"])
    monkeypatch.setattr(sys, "argv", ["esper.train", "env=sandbox", "agent=random", "hydra.run.dir=run"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        cli.run(main)
    assert stop.value.code == 2
    assert re.match(why, capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_a_bug_in_a_run_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.train.limit_cores", lambda cores: [].pop())
    monkeypatch.setattr(sys, "argv", ["esper.train", "env=sandbox", "agent=random", "hydra.run.dir=run"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(IndexError):
        cli.run(main)


def test_an_output_without_a_character_prints_a_question_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    output = TextIOWrapper(BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    with in_one_sentence():
        Console(file=output).print("0.5 ± 0.1")
    output.flush()
    assert output.buffer.getvalue() == b"0.5 ? 0.1\n"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    "command",
    [
        f"-m esper.train {' '.join(ENDLESS)} updates=2",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("-m esper.train --help", "-m esper.report run")),
    ],
)
def test_a_command_may_have_no_output(command: str, tmp_path: Path) -> None:
    """As of a service that closes its outputs."""
    (tmp_path / "run").mkdir()
    done = subprocess.run(f"{shlex.quote(sys.executable)} {command} >&- 2>errors", shell=True, cwd=tmp_path, check=False)
    errors = (tmp_path / "errors").read_text()
    assert "Traceback" not in errors
    assert done.returncode == (2 if "report" in command else 0), errors
