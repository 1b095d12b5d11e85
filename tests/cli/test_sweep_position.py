"""A run of a sweep says which of how many it is, and how long all will take."""

import re
from pathlib import Path

import pytest

from esper.cli import command
from esper.cli.sweep_position import VARIABLE, begin_sweep, position_of
from tests.forked import run_forked


def test_the_time_left_follows_the_runs_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert position_of(0, shared=False) == ""
    clock = [1000.0]
    monkeypatch.setattr("esper.cli.sweep_position.time.time", lambda: clock[0])
    monkeypatch.setenv(VARIABLE, "")
    begin_sweep(9)
    assert position_of(0, shared=False) == "run 1 of 9"
    clock[0] += 240.0
    assert position_of(2, shared=False) == "run 3 of 9, about 14 min left for all"
    assert position_of(2, shared=True) == "run 3 of 9"


def test_a_sweep_over_values_shows_the_place_of_each_run(tmp_path: Path) -> None:
    words = ["-m", "env=sandbox", "seed=1,2", "steps=6", "updates=1", "hosts=4", "agent=random", f"hydra.sweep.dir={tmp_path}"]
    words.append("telemetry.page_hosts=0")
    done = run_forked("esper.train", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    places = [line for line in done.stdout.splitlines() if re.match(r"run \d of", line)]
    assert [place.partition(":")[0].partition(",")[0] for place in places] == ["run 1 of 2", "run 2 of 2"]
    assert "seed=1" in places[0]
    assert "left for all: " in places[1]
    assert "seed=2" in places[1]
    assert "esper.compare" not in done.stdout, "there is one arm"


def test_a_sweep_over_values_ends_with_the_command_that_compares_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["-m", "env=sandbox", "agent.wait_weight=1,2", "steps=6", "updates=1", "hosts=4", "agent=random"]
    words += [f"hydra.sweep.dir={tmp_path}", "telemetry=quiet"]
    done = run_forked("esper.train", *words, cwd=tmp_path)
    last = done.stdout.splitlines()[-1]
    assert last == f"all runs are finished; compare them with: python -m esper.compare {tmp_path} outcome=return"
    monkeypatch.setattr("esper.lab.report.draw", lambda *_: [])  # the fork inherits it
    done = run_forked(*last.partition("python -m ")[2].split(), "hosts=2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv(VARIABLE, "")  # which the check of a sweep sets
    tasks = ["task=digits,digits_mlp", "agent=wait", "hosts=2", "steps=1", "updates=1", "task.epoch_samples=128"]
    _, comparison = command._look_ahead([*tasks, f"hydra.sweep.dir={tmp_path}/tasks"], "config", many=True, show=False)
    assert not comparison, "different tasks are not compared"
    for unlike in (["env=sandbox", "agent.gamma=0.9,1"], ["env=sandbox,growth", "agent=wait", "hosts=2", "steps=1", "updates=1"]):
        _, comparison = command._look_ahead([*unlike, f"hydra.sweep.dir={tmp_path}/unlike"], "config", many=True, show=False)
        assert not comparison, "returns of other discounts or environments are not compared"
    seeds = ["env=sandbox", "policy_seed=1,2", f"hydra.sweep.dir={tmp_path}/seeds"]
    assert not command._look_ahead(seeds, "config", many=True, show=False)[1], "nor is one arm with itself"
    hosts = ["agent=wait,random", "steps=1", "task.epoch_samples=128", "hosts=2", f"hydra.sweep.dir={tmp_path}/hosts"]
    comparison = f"python -m esper.compare {tmp_path}/hosts"
    assert command._look_ahead(hosts, "config", many=True, show=False)[1] == comparison
