"""A run of a sweep that fails: the others go on, and the command ends with one sentence that names it."""

import errno
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra.core.utils import JobReturn, JobStatus

from esper.cli import failures
from esper.cli.command import in_one_sentence
from esper.cli.failures import Failure, end_if_failed, tolerate
from esper.config import ConfigError
from esper.files import DiskError
from tests.forked import run_forked

BREAKS = """
from dataclasses import dataclass
import esper
from esper.agent.scripted.base import Wait, WaitConfig

@dataclass(kw_only=True, slots=True)
class BreaksConfig(WaitConfig):
    late: int = 0
    def build(self, spec, *, seed, buffer=None):
        self.late // (self.late - 1)
        return Wait(spec)

esper.register("agent", "breaks", BreaksConfig)
"""


def refused() -> None:
    with in_one_sentence():
        raise ConfigError("no such thing: choose another; or none")


def broken() -> None:
    with in_one_sentence():
        raise ZeroDivisionError("division by zero")


def full() -> None:
    with in_one_sentence():
        raise DiskError("write", OSError(errno.ENOSPC, "No space left"))


def interrupted() -> None:
    with in_one_sentence():
        raise KeyboardInterrupt


def unread() -> None:
    with in_one_sentence():
        raise BrokenPipeError


def test_failures_are_results() -> None:
    assert tolerate(lambda: None, "a") is None
    assert tolerate(refused, "a") == Failure(run="a", reason="no such thing: choose another; or none")
    assert tolerate(full, "a") == Failure(run="a", reason="cannot write: no space left; free some space", machine=True)


def test_bugs_keep_their_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert tolerate(broken, "b") == Failure(run="b", reason="ZeroDivisionError: division by zero")
    assert capsys.readouterr().err.startswith("Traceback")


@pytest.mark.parametrize(("work", "code"), [(interrupted, 130), (unread, 1)])
def test_interrupts_end_the_sweep(work: Callable[[], None], code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        with pytest.raises(SystemExit) as ended:
            tolerate(work, "a")
    assert ended.value.code == code


def test_equal_reasons_are_named_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def returned(value: object) -> JobReturn:
        return JobReturn(_return_value=value, status=JobStatus.COMPLETED)

    monkeypatch.setattr(failures, "arguments", ["-m", "seed=1,2", "hydra.sweep.dir=my sweep"])
    results = [[returned(Failure(run=run, reason=f"{why}; remedy"))] for run, why in (("0", "x"), ("2", "y"), ("3", "x"))]
    end_if_failed([[returned(None)], None], Path("out"))
    with pytest.raises(SystemExit) as ended:
        end_if_failed([None, [[returned(None)], *results]], Path("my sweep"))
    assert ended.value.code == 1
    again = "python -m esper.train -m seed=1,2 'hydra.sweep.dir=my sweep'"
    assert capsys.readouterr().err == f"esper: 3 of 4 runs failed: 0, 3 (x); 2 (y); resume with: {again}\n"
    monkeypatch.setattr(failures, "arguments", ["-m", "--config-dir", "mine", "seed=1,2"])
    assert failures.go_on("out").endswith(" -m --config-dir mine seed=1,2 hydra.sweep.dir=out")


@pytest.mark.parametrize(
    "sweep",
    [
        ["agent.late=1,0"],
        pytest.param(
            ["sweep=ab", "arms=agent.late: 1,0", "outcome=return", "blocks=1", "root=0", "aa_control=false"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_other_runs_go_on_and_the_command_resumes_the_failed_one(sweep: list[str], tmp_path: Path) -> None:
    plugin = tmp_path / "my_breaks.py"
    plugin.write_text(BREAKS)
    words = ["-m", *sweep, "plugins=[my_breaks.py]", "agent=breaks", "env=sandbox", "hosts=4", "steps=3", "updates=1"]
    words += ["telemetry=quiet", "hydra.sweep.dir=out"]
    done = run_forked("esper.train", *words, cwd=tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    name = "1/block-00" if len(sweep) > 1 else "0"
    assert last.startswith(f"esper: 1 of 2 runs failed: {name} (my_breaks.py, line 10: ZeroDivisionError: ")
    assert "compare them with" not in done.stdout
    assert len(list(tmp_path.glob("out/**/metrics.jsonl"))) == 1
    plugin.write_text(BREAKS.replace("self.late // (self.late - 1)", ""))
    done = run_forked("esper.train", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("out/**/metrics.jsonl"))) == 2
