"""Scores of runs: cached, the same with several workers, and damaged caches or killed workers are one sentence."""

import json
import os
import re
import shutil
import signal
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from joblib.externals.loky.backend import context

from esper.cli.overrides import check
from esper.config import ConfigError
from esper.evaluation.held_out import Choice, Evaluation
from esper.evaluation.per_host import HostSearch
from esper.files import fingerprint
from esper.growth.objective import CLASSIFICATION, Numbers, RegressionLoss
from esper.lab.comparison import compare
from esper.lab.outcomes import CompareConfig
from esper.lab.runs import Run, criterion_of, find_runs
from esper.lab.scoring import (
    Scores,
    Scoring,
    objective_of,
    read_scores,
    score,
    score_all,
    score_baselines,
    scored_file,
    training_scores,
    unseen_kinds,
)
from esper.notices import UserNotice
from esper.task.digits import DigitsConfig
from esper.training.trainer import Trainer
from tests.forked import in_fork


def test_scores_are_cached(experiment: Path) -> None:
    run = next(run for run in find_runs([experiment]) if run.finished)
    first = score(run, 2)
    path = scored_file(run, 2)
    kept = json.loads(path.read_text())
    for name in ("accuracy", "return"):
        sampled, greedy = (np.mean(kept["rows"][controller][name]) for controller in ("policy", "policy_greedy"))
        assert first[name] == pytest.approx(sampled)
        assert first[f"{name}_greedy"] == pytest.approx(greedy)
    before = path.stat().st_mtime_ns
    assert score(run, 2) == first
    assert path.stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match=r"holds the scores of another checkpoint than the newest in .*: remove it"):
        score(replace(run, digest="0"), 2)
    kept["rows"]["policy"]["accuracy"] = [1.0, 3.0]
    path.write_text(json.dumps(kept))
    with pytest.raises(ConfigError, match="was edited after scoring: remove it, and the run is scored again"):
        score(run, 2)
    path.write_text(json.dumps(kept["rows"]))
    with pytest.raises(ConfigError, match="is damaged, or of an earlier version: remove it, and the run is scored again"):
        score(run, 2)
    path.unlink()
    assert score(run, 2) == first


def test_scores_keep_the_code_version_of_each_controller(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old file has one for all of them, which a baseline that is added later does not change."""
    folder = shutil.copytree(experiment / "shaped", tmp_path / "shaped", ignore=shutil.ignore_patterns("scored_*"))
    run = next(run for run in find_runs([folder]) if run.finished)
    score(run, 2)
    path = scored_file(run, 2)
    old = {name: value for name, value in json.loads(path.read_text()).items() if name != "sha256"}
    assert {*old["esper"]} == {*old["rows"]} == {"policy", "policy_greedy"}
    old["esper"] = {"version": "0", "source": "before", "commit": None, "changed": None}
    path.write_text(json.dumps({**old, "sha256": fingerprint(old)}))
    score_baselines(run, Scoring(hosts=2, baselines=["random"], arm=run.arm))
    versions = {name: version["source"] for name, version in read_scores(run, path)["esper"].items()}
    assert versions.pop("random") != "before"
    assert {*versions.values()} == {"before"}
    assert any(
        "scored by different code versions" in one
        for one in compare([folder], CompareConfig(hosts=2, baselines=["random"])).warnings
    )


@pytest.mark.slow
def test_baselines_are_chosen_by_the_criterion_and_kept_with_it(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(experiment / "shaped", tmp_path / "shaped", ignore=shutil.ignore_patterns("scored_*"))
    run = next(run for run in find_runs([folder]) if run.finished)
    names, asked, choose = ["schedule", "oracle", "static_net", "search_random_2", "wait"], list[str](), Evaluation.choose

    def chosen(self: Evaluation, *, static: bool = False, by: str = "return") -> Choice:
        asked.append(by)
        return replace(choose(self, static=static, by=by), seconds=float(len(by)))

    monkeypatch.setattr(Evaluation, "choose", chosen)
    monkeypatch.setattr("esper.lab.scoring.HostSearch", lambda one, *, by: asked.append(by) or HostSearch(one, by=by))
    for by in ("return", "validation"):
        scoring = Scoring(hosts=2, baselines=names, arm=run.arm, by=by)
        scores = score_baselines(run, scoring)
        assert {*scores} == {*names}
        assert all(row[f"{name}_greedy"] == row[name] for row in scores.values() for name in ("accuracy", "return"))
        assert asked == [by] * 3, "none of the other criterion is reused"
        score_baselines(run, scoring)
        assert len(asked) == 3
        asked.clear()
    stored = read_scores(run, scored_file(run, 2))
    assert {*stored["rows"]} >= {*names, *(f"{name} by validation" for name in names[:4])}
    for by in ("return", "validation"):
        found = Scoring(hosts=2, baselines=names, arm=run.arm, by=by).read(run)
        assert {*names} <= {*found["rows"]}
        assert found["choice"]["seconds"] == found["choice"]["static_net"]["seconds"] == len(by)
        suffix = "" if by == "return" else " by validation"
        assert found["rows"]["search_random_2"] == stored["rows"][f"search_random_2{suffix}"]


@pytest.mark.parametrize(("outcome", "by"), [("return", "return"), ("return_greedy", "return"), ("accuracy", "validation")])
def test_the_outcome_tells_the_criterion(outcome: str, by: str) -> None:
    assert criterion_of(outcome, Run(arm="a", block=0, folder=Path())) == by
    assert criterion_of(outcome, Run(arm="a", block=0, folder=Path(), saved={"options": {"env": "sandbox"}})) == "return"


def test_scores_on_other_data_are_not_mixed(experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in one file; files of earlier versions do not say which data they are of."""
    folder = tmp_path / "copy"  # whose scores no other test reads
    shutil.copytree(experiment, folder)
    run = next(run for run in find_runs([folder]) if run.finished)
    score(run, 2)
    path, added = scored_file(run, 2), Scoring(hosts=2, baselines=["random"], arm=run.arm)
    before = path.read_bytes()
    monkeypatch.setattr("esper.task.data.Data.fingerprint", lambda _: "other")
    with pytest.warns(UserWarning, match="trained on other data"), pytest.raises(ConfigError, match="holds scores on other data"):
        score_baselines(run, added)
    assert path.read_bytes() == before
    old = {name: value for name, value in json.loads(before).items() if name not in ("data", "sha256")}
    path.write_text(json.dumps({**old, "sha256": fingerprint(old)}))
    with pytest.warns(UserWarning, match="trained on other data"):
        score_baselines(run, added)
    assert "data" not in read_scores(run, path)


def test_hosts_without_data_are_scored(tmp_path: Path) -> None:
    config = check(["env=sandbox", "agent=random", "hosts=4", "steps=6", "updates=1", "telemetry=quiet"])
    Trainer(config, tmp_path / "arm" / "run").run()
    (run,) = find_runs([tmp_path / "arm"])
    scores = score(run, 4)
    assert np.isfinite(scores["return"])
    assert read_scores(run, scored_file(run, 4))["data"] == ""
    with pytest.raises(
        ConfigError, match="outcome=accuracy is not measured with env=sandbox, which trains no hosts: add outcome=re"
    ):
        compare([tmp_path / "arm"], CompareConfig(hosts=2))


def test_overrides_that_look_alike_in_a_name_have_files_of_their_own() -> None:
    run = Run(arm="a", block=0, folder=Path())
    names = [scored_file(run, 2, [f"task.folder=/data/set{mark}a"]).name for mark in "/_"]
    assert len({*names}) == 2
    assert scored_file(run, 2, ["steps=9", "hosts=4"]).name == "scored_000000_2_hosts_steps=9_hosts=4.json"


def test_what_hosts_learn_is_what_their_task_builds(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = next(run for run in find_runs([experiment]) if run.finished)
    assert objective_of(run) == CLASSIFICATION
    assert objective_of(run, ["task=diabetes", "task.objective=huber", "blueprint=[norm]"]) == Numbers(RegressionLoss.huber)
    monkeypatch.setattr(DigitsConfig, "build_objective", lambda _: Numbers(), raising=False)  # as a task of a plugin may
    assert objective_of(run) == Numbers()


def test_online_accuracy_is_measured_when_it_is_the_outcome(experiment: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(experiment / "shaped", tmp_path / "shaped")  # whose scores no other test reads
    found = compare([folder], CompareConfig(outcome="online", hosts=2, baselines=["wait"]))
    values = found.values("online")
    assert values["wait"].notna().all()
    assert values["shaped"].notna().all()
    assert found.hosts.loc[found.hosts["arm"] == "wait", "online"].between(0, 100).all()
    assert "online" not in compare([experiment], CompareConfig(hosts=2)).hosts


def test_outcomes_of_training_are_means_over_regular_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Update 5 is recorded after an anomaly, update 8 as the last one."""
    tags = ("update", "governor/rollbacks_divergence", "governor/rollbacks_decline", "host/committed_accuracy")
    values = [(3.0, 1.0, 0.0, 50.0), (5.0, 9.0, 9.0, 0.0), (6.0, 0.0, 2.0, 60.0), (8.0, 0.0, 0.0, 70.0)]
    monkeypatch.setattr("esper.lab.scoring.records_of", lambda _: [dict(zip(tags, row, strict=True)) for row in values])
    run = Run(arm="a", block=0, folder=Path(), updates=8, config={"hosts": 4, "telemetry.every": 3})
    assert training_scores(run) == {"learning": 60.0, "rollbacks": 3 / 4 / 3}


def test_hosts_of_kinds_that_an_oracle_does_not_know_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"oracle": {"instance": ["ooo shift@2", "oxo", "ooo shift@3"]}}
    stored = {"choice": {"for_kind": {"ooo, an event stays": "wait"}}, "rows": rows}
    monkeypatch.setattr("esper.lab.scoring.read_scores", lambda *_: stored)
    runs, scoring = [Run(arm="a", block=0, folder=Path())] * 2, Scoring(hosts=3, baselines=["oracle"], arm="a")
    (warning,) = unseen_kinds(runs, scoring)
    assert warning.startswith("2 of the 6 hosts of the oracle are of kinds that it was not chosen on")
    stored["choice"]["for_kind"]["oxo"] = "wait"
    assert not unseen_kinds(runs, scoring)


def test_damaged_files_are_one_sentence(experiment: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(experiment, copy)
    run = next(run for run in find_runs([copy]) if run.finished)
    score(run, 2)
    scored_file(run, 2).write_text('{"policy": ')
    with pytest.raises(ConfigError, match="is damaged: remove it, and the run is scored again"):
        score(run, 2)
    scored_file(run, 2).unlink()
    (run.folder / "metrics.jsonl").unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        score(run, 2)
    (copy / "design.json").write_text("{")
    with pytest.raises(ConfigError, match="is damaged, or of an earlier version: restore it"):
        find_runs([copy])


class Deadly(Scoring):
    """A scoring that kills its process."""

    def scores(self, run: Run) -> Scores:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")


class Odd(Scoring):
    """A scoring that warns."""

    def scores(self, run: Run) -> Scores:
        warnings.warn("odd", UserNotice, stacklevel=1)
        return Scoring.scores(self, run)


def test_scoring_starts_no_more_processes_than_runs(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, started = [run for run in find_runs([experiment]) if run.finished], list[int]()
    monkeypatch.setattr(
        "esper.lab.scoring.Parallel", lambda n_jobs, **_: lambda jobs: started.append(n_jobs) or [({}, []) for _ in jobs]
    )
    assert len(list(score_all(runs, Deadly(hosts=2, baselines=(), arm="shaped"), workers=10**9))) == len(runs)
    assert started == [len(runs)]


def test_a_killed_worker_and_a_damaged_file_in_one_are_one_sentence(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(context, "_DEFAULT_START_METHOD", "fork")  # so that workers find everything imported

    def scored_by(scoring: Scoring, folder: Path) -> dict[str, Any]:
        runs, lines = [run for run in find_runs([folder]) if run.finished], list[str]()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("default")
            scores = list(score_all(runs, scoring, workers=2, log=lines.append))
        return {"scores": scores, "lines": lines, "told": [str(one.message) for one in told]}

    killed = "killed, most likely out of memory: set workers below 2; runs scored so far are kept"
    with pytest.raises(ConfigError, match=killed):
        in_fork(lambda: scored_by(Deadly(hosts=2, baselines=(), arm="shaped"), experiment))
    folder = shutil.copytree(experiment / "shaped", tmp_path / "shaped")
    fine = Odd(hosts=2, baselines=(), arm="shaped")
    for path in folder.rglob("scored_*"):
        path.unlink()
    capfd.readouterr()
    found = in_fork(lambda: scored_by(fine, folder))
    assert len(found["scores"]) == 2
    assert found["told"].count("odd") == 2
    assert "odd" not in capfd.readouterr().err, "the command shows each warning once"
    assert re.search(r"^scored 1 of 2: \S+, about \d+ (s|min) left$", found["lines"][1])
    assert found["lines"][2].startswith("scored 2 of 2")
    for run in find_runs([folder]):
        scored_file(run, 2).write_text("[")
    with pytest.raises(ConfigError, match="is damaged: remove it, and the run is scored again"):
        in_fork(lambda: scored_by(fine, folder))
