"""docs/extending.md as it stands: every module of the page runs as a plugin, fused and not."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from esper.cli.overrides import check
from esper.plugins import load_plugins
from esper.telemetry.jsonl import read_records
from esper.training.trainer import Trainer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()
SHORT = ["hosts=2", "steps=6", "updates=1", "agent=random", "agent.wait_weight=0.2", "devices=[cpu]"]


def module(name: str) -> str:
    """The file of this name, as the page has it."""
    (code,) = [
        block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if f"plugins=[{name}]" in block.splitlines()[0]
    ]
    return code


@pytest.fixture
def outside(tmp_path: Path):
    """A folder with a module of the page, changed by a replacement where wanted, and a way to run it."""

    def run(*words: str, change: tuple[str, str] = ("", ""), name: str = "my_growth.py") -> subprocess.CompletedProcess[str]:
        code = module(name)
        assert change[0] in code
        (tmp_path / name).write_text(code.replace(*change))
        return subprocess.run(
            [sys.executable, "-m", "esper.train", f"plugins=[{name}]", *words],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def grown(done: subprocess.CompletedProcess[str]) -> int:
    """Parameters that the run's hosts have grown, as its last line says."""
    found = re.search(r"parameters grown (\d+)", done.stdout)
    assert found, done.stdout
    return int(found.group(1))


WITHOUT_STACKED_FORM = ("nn.ReLU()", "nn.PReLU()")
SEED_WITHOUT_STACKED_FORM = ("nn.SiLU()", "nn.PReLU(c)")


def test_a_host_and_a_seed_from_outside_train_and_are_evaluated(outside, tmp_path):
    done = outside("task=mine", "blueprint=[norm,swish]", *SHORT)
    assert done.returncode == 0, done.stderr
    assert "random on mine" in done.stdout
    assert grown(done) > 0
    (run,) = (tmp_path / "multirun" / "single").iterdir()
    (tmp_path / "elsewhere").mkdir()
    words = [sys.executable, "-m", "esper.evaluate", f"checkpoint={run}", "hosts=2"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    judged = subprocess.run(words, cwd=tmp_path / "elsewhere", env=env, capture_output=True, text=True, timeout=120, check=False)
    assert judged.returncode == 0, judged.stderr
    (tmp_path / "my_growth.py").rename(tmp_path / "gone.py")
    lost = subprocess.run(words, cwd=tmp_path / "elsewhere", env=env, capture_output=True, text=True, timeout=120, check=False)
    assert lost.returncode == 2
    assert lost.stderr.startswith(f"esper: plugins=[{tmp_path / 'my_growth.py'}] is not found")
    assert lost.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (WITHOUT_STACKED_FORM, "task=mine host=mine: segments.0.1 is a PReLU, which has no stacked form"),
        (SEED_WITHOUT_STACKED_FORM, "blueprint=swish: 1 is a PReLU, which has no stacked form"),
    ],
)
def test_without_stacked_forms_one_by_one_is_the_way_and_the_error_says_so(outside, change, sentence):
    refused = outside("task=mine", "blueprint=[swish]", *SHORT, change=change)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"esper: {sentence}")
    assert refused.stderr.strip().endswith("members_per_shard=1")
    assert refused.stderr.count("\n") == 1
    done = outside("task=mine", "blueprint=[swish]", *SHORT, "devices.cpu.members_per_shard=1", change=change)
    assert done.returncode == 0, done.stderr
    assert grown(done) > 0


def test_chance_is_refused_one_by_one_too(outside):
    change = ("nn.ReLU()", "nn.Dropout(0.1)")
    refused = outside("task=mine", "blueprint=[swish]", *SHORT, "devices.cpu.members_per_shard=1", change=change)
    assert refused.returncode == 2
    assert "task=mine host=mine: segments.0.1 is a Dropout, which draws from torch's global random stream" in refused.stderr


def test_an_unknown_blueprint_is_answered_with_those_that_there_are(outside):
    refused = outside("task=mine", "blueprint=[swich]", *SHORT)
    assert refused.returncode == 2
    assert "no option swich in group blueprint" in refused.stderr
    assert "did you mean swish?" in refused.stderr


def run_of(tmp_path: Path) -> Path:
    """The folder of the one run there."""
    (folder,) = (tmp_path / "multirun" / "single").iterdir()
    return folder


def test_a_governor_and_a_writer_from_outside(outside, tmp_path):
    words = ["governor=limit", "governor.loss=0", "telemetry.writers=[jsonl,{text:{digits:3}}]"]
    done = outside(*words, *SHORT, name="my_watch.py")
    assert done.returncode == 0, done.stderr
    (record,) = read_records(run_of(tmp_path) / "metrics.jsonl")
    assert record["governor/rollbacks_divergence"] == 2 * 6, "every host in every epoch"
    assert (run_of(tmp_path) / "returns.txt").read_text() == f"update 1: {record['policy/return']:.3f}\n"


def test_a_controller_from_outside_does_what_it_says(outside, tmp_path):
    words = ["hosts=4", "steps=9", "updates=1", "agent=patient", "agent.after=2", "slots=all", "devices=[cpu]"]
    done = outside(*words, name="my_controller.py")
    assert done.returncode == 0, done.stderr
    assert "patient on digits" in done.stdout
    decisions = [json.loads(line) for line in (run_of(tmp_path) / "decisions.jsonl").read_text().splitlines()]
    steps = [int(one["id"].split("/")[2]) for one in decisions]
    planted = [one for one in decisions if one["op"] == "germinate"]
    assert min(steps) == 2
    assert len({one["slot"] for one in planted}) > 1
    assert len(planted) > 4
    assert {one["op"] for one in decisions} >= {"germinate", "advance"}
    assert not any(one["refused"] for one in decisions)


def test_a_reward_from_outside_pays(outside, tmp_path):
    words = ["hosts=2", "steps=6", "updates=1", "reward=brisk", "reward.trial=2", "agent=schedule", "devices=[cpu]"]
    done = outside(*words, name="my_reward.py")
    assert done.returncode == 0, done.stderr
    (record,) = read_records(run_of(tmp_path) / "metrics.jsonl")
    assert record["reward/on_trial"] == -2 * 4, "one seed, on trial for four host epochs, and then kept"
    assert record["policy/return"] == pytest.approx(record["reward/on_trial"] + record["reward/terminal"], rel=1e-5)


@pytest.mark.usefixtures("own_parts")
def test_reinforce_of_the_page_is_short_and_beats_random(tmp_path):
    """Mean return of the last ten updates, over two seeds: random gets some 10 % of the optimum, REINFORCE more than half."""
    assert len(module("my_learner.py").splitlines()) < 80
    (tmp_path / "my_learner.py").write_text(module("my_learner.py"))
    load_plugins([str(tmp_path / "my_learner.py")])
    world = ["env=sandbox", "steps=6", "hosts=64", "updates=40", "telemetry=quiet"]

    def share(folder, *overrides):
        shares = []
        for seed in (0, 1):
            Trainer(check([*world, *overrides, f"seed={seed}"]), tmp_path / folder / str(seed)).run()
            records = read_records(tmp_path / folder / str(seed) / "metrics.jsonl")
            shares += [record["sandbox/share_of_optimum"] for record in records[-10:]]
        return sum(shares) / len(shares)

    assert share("learner", "agent=reinforce", "agent.learning_rate=0.02") > 0.5
    assert share("random", "agent=random") < 0.25
