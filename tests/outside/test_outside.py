"""Parts of a package outside the tree, through the command line: train, help, sweep, kill and resume, evaluate."""

import os
import signal
import time
from pathlib import Path

import pytest

from esper.checkpoint import Checkpoints, update_of
from esper.telemetry.jsonl import read_records
from tests.forked import Forked

ROOT, HERE = Path(__file__).parents[2], Path(__file__).parent
MINE = ["task=faint", "blueprint=[norm,swish]", "blueprint.swish.width=3", "governor=grim", "governor.limit=99", "host.kernel=3"]
TINY = ["agent=random", "hosts=2", "steps=4", "slots=all", "devices=[cpu]", "telemetry.page_hosts=0"]
WRITERS = 'telemetry.writers=[jsonl,{returns:{delimiter:";"}}]'


def start(module: str, *words: str, cwd: Path) -> Forked:
    path = os.pathsep.join([str(ROOT), str(HERE)])
    return Forked(f"esper.{module}", *words, cwd=cwd, env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1"})


def output(module: str, *words: str, cwd: Path, code: int = 0) -> str:
    process = start(module, *words, cwd=cwd)
    out, err = process.communicate()
    assert process.returncode == code, out + err
    return out if code == 0 else err


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run with parts from outside that was killed after its second update and resumed to the fourth."""
    cwd = tmp_path_factory.mktemp("outside")
    words = ["plugins=[my_parts]", *MINE, *TINY, "reward=thrifty", WRITERS, "hydra.run.dir=run"]
    process = start("train", *words, "updates=500", cwd=cwd)
    second = cwd / "run" / "checkpoints" / "checkpoint_000002.pt"
    deadline = time.monotonic() + 120
    while not second.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    _, err = process.communicate()
    assert second.exists(), err
    newest = Checkpoints(cwd / "run" / "checkpoints").latest()
    assert newest is not None
    output("train", "resume=run", f"updates={update_of(newest) + 2}", cwd=cwd)
    return cwd / "run"


@pytest.mark.slow
def test_a_killed_run_with_parts_from_outside_is_resumed(resumed: Path) -> None:
    records = read_records(resumed / "metrics.jsonl")
    assert [record["update"] for record in records] == list(range(1, len(records) + 1))
    assert {record["policy/return"] for record in records} == {4.0}, "one point per step"
    assert len({record["reward/present"] for record in records}) == 1
    rows = [line.split(";") for line in (resumed / "returns.csv").read_text().splitlines()]
    assert [(int(update), float(value)) for update, value in rows] == [(r["update"], r["policy/return"]) for r in records]


def test_it_is_evaluated_and_transferred_without_naming_the_plugin(resumed: Path) -> None:
    shown = output("evaluate", f"checkpoint={resumed}", "hosts=2", "controllers=[policy]", "steps=5", cwd=resumed.parent)
    assert "transfer from steps=4 to steps=5" in shown
    assert "random" in shown


def test_help_and_mistakes_name_parts_from_outside(tmp_path: Path) -> None:
    shown = " ".join(output("train", "--help", "plugins=[my_parts]", cwd=tmp_path).split())
    for option in (
        "faint",
        "narrow",
        "swish",
        "thrifty",
        "grim",
        "telemetry.writers [jsonl, tensorboard, console, csv, mlflow, wandb, aim, returns]",
    ):
        assert option in shown
    refused = output("train", "plugins=[my_parts]", "reward=thrifti", cwd=tmp_path, code=2)
    assert refused.endswith("thrifty; did you mean thrifty?\n")
    assert refused.count("\n") == 1
