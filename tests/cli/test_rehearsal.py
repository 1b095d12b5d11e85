"""Answers without torch: help texts and mistakes come from a process that never imports the heavy libraries."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from esper.cli import rehearsal
from esper.cli.rehearsal import HEAVY, INTERRUPTED
from tests.composed import refusal
from tests.forked import run_forked
from tests.test_rules import BAD

ROOT = Path(__file__).parents[2]
SAMPLE = [overrides for overrides, _ in BAD][3::24]
"""Overrides that break a rule: enough kinds to see that a rehearsal gives the answer of the command."""
REHEARSED = """
import json, sys
from esper.cli import rehearsal
rehearsal.stand_in()
from esper.cli.overrides import check
from tests.composed import compose_once
compose_once()
def answer(overrides):
    try:
        check(overrides.split())
    except ValueError as error:
        return str(error)
print(json.dumps([answer(overrides) for overrides in json.load(sys.stdin)]))
"""


def python(*arguments: str, path: Path = ROOT, given: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(ROOT)])}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=env, input=given, cwd=path)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder whose heavy libraries end the process when they are imported."""
    for name in HEAVY:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')\n")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code", "answer"),
    [
        ("esper.train --help", 0, "Keys of every run"),
        ("esper.evaluate --help", 0, "search_per_host"),
        ("esper.compare --help", 0, "outcomes:"),
        ("esper.train agent.gama=0.9", 2, "esper: there is no key agent.gama"),
        ("esper.train -m sweep=ab", 2, "esper: there are no arms to compare"),
        ("esper.evaluate checkpoint=nowhere", 2, "esper: checkpoint=nowhere does not exist"),
    ],
)
def test_help_and_mistakes_need_no_heavy_library(bare: Path, arguments: str, code: int, answer: str) -> None:
    done = python("-m", *arguments.split(), path=bare)
    assert (done.returncode, done.stderr if code == 0 else done.stdout) == (code, "")
    assert answer in (done.stderr if code else done.stdout)


def test_the_title_appears_before_torch_is_imported(bare: Path) -> None:
    done = python("-m", "esper.train", "hosts=8", path=bare)
    assert done.stdout == "ppo on digits: 50 updates of 8 hosts x 20 epochs, reward shaped, seed 0\nloading PyTorch\n"
    assert "torch was imported" in done.stderr
    assert {path.suffix for path in bare.iterdir()} <= {".py", ""}  # nothing is written


@pytest.mark.parametrize("heavy", ["torch", "hydra"])
def test_ctrl_c_while_libraries_are_imported_is_one_sentence(heavy: str, tmp_path: Path) -> None:
    """Torch is imported by the command, Hydra by the rehearsal first."""
    once = f"from pathlib import Path\nPath('{tmp_path}/asked').mkdir()\nraise KeyboardInterrupt\n"  # asked again, it fails
    (tmp_path / f"{heavy}.py").write_text(once)
    done = python("-m", "esper.train", path=tmp_path)
    assert done.stderr == f"{INTERRUPTED}\n"
    assert "Traceback" not in done.stderr
    assert done.returncode in (130, -2)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_an_interrupt_of_the_process_alone_is_heard_while_it_rehearses(tmp_path: Path) -> None:
    """As of an editor; Ctrl-C in a terminal reaches the fork as well."""
    (tmp_path / "torch.py").write_text("raise SystemExit('the command went on')")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-m", "esper.train"]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not children.read_text():
            time.sleep(0.01)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.communicate()[1] == f"{INTERRUPTED}\n"
    assert process.returncode in (130, -2)


def test_a_checkpoint_is_read_by_the_command_itself(bare: Path) -> None:
    done = python("-u", "-m", "esper.evaluate", "checkpoint=./best", "search_by=return", path=bare)
    assert "torch was imported" in done.stderr
    assert "without effect" not in done.stderr, "warnings of the rehearsal are repeated by the command"
    done = python("-c", "from esper.cli.rehearsal import stand_in\nstand_in()\nimport torch\nisinstance(torch.load('x'), dict)")
    assert "TypeError: a placeholder has no type" in done.stderr


@pytest.mark.slow
def test_a_rehearsal_gives_the_answers_of_the_command() -> None:
    done = python("-c", REHEARSED, given=json.dumps(SAMPLE))
    assert json.loads(done.stdout) == [str(refusal(overrides)) for overrides in SAMPLE]


def test_an_announced_run_does_not_repeat_its_title(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "announced", True)  # the fork below inherits it
    overrides = ["agent=wait", "hosts=1", "steps=1", "updates=1", "task.epoch_samples=128", f"hydra.run.dir={tmp_path}/run"]
    overrides.append("telemetry.page_hosts=0")
    done = run_forked("esper.train", *overrides, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "wait on digits" not in done.stdout
    assert "\ntrained for 0:00:" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "report"])
def test_a_reader_of_help_may_stop_early(command: str) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", f"esper.{command}", "--help"], stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert done.stderr == ""
