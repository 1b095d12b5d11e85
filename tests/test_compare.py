"""Comparison of experiments on disk: from runs to the report."""

import csv
import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from esper import compare as C
from esper.cli.overrides import check
from esper.config import ConfigError
from esper.lab.comparison import compare
from esper.lab.design import FILE, Claims, design
from esper.lab.evaluation import Evaluation
from esper.lab.integrity import check_runs
from esper.lab.runs import OUTCOMES, CompareConfig, Run, find_runs, records_of
from esper.lab.scoring import Scores, Scoring, score, score_all, scored_file
from esper.plugins import load_plugins
from esper.training.trainer import Trainer

TINY = [
    "updates=1",
    "hosts=4",
    "steps=2",
    "task.batch_size=1000",
    "blueprint=[norm,conv_light]",
    "telemetry=quiet",
    "agent.minibatches=1",
    "agent.epochs=1",
]


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two arms and an A/A control in two blocks; one run is missing."""
    folder = tmp_path_factory.mktemp("experiment")
    plan = Claims(score_hosts=2, question="Which <reward>?\n")
    planned = design("reward: shaped,sparse", blocks=2, root=1, common=TINY, plan=plan)
    planned.save(folder)
    for cell in planned.cells:
        if (cell.arm, cell.block) != ("sparse", 1):
            Trainer(check(list(cell.overrides)), folder / cell.folder, name=cell.folder, plan=planned.digest).run()
    return folder


def test_an_experiment_is_read_scored_and_written(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    C.main([str(experiment)])
    shown = capsys.readouterr().out
    assert "no verdict on shaped and sparse: the comparison is unfinished" in shown
    assert "1 of 6 planned runs are not finished" in shown
    assert "sparse, block 1: never started" in shown
    numbers = json.loads((experiment / "comparison.json").read_text())
    assert {run["status"] for run in numbers["runs"]} == {"finished", "never started"}
    cells = {(cell["outcome"], cell["arm"], cell["block"]): cell["value"] for cell in numbers["outcomes"]}
    assert cells["accuracy", "sparse", 1] is None
    page = (experiment / "report.html").read_text()
    assert page.count("data:image/png") == 3
    assert "sparse, block 1: never started" in page
    assert "<td>shaped</td>" in page
    assert "<pre>Which &lt;reward&gt;?" in page
    assert numbers["plan"]["sha256"] in page
    assert "<td>shaped - aa_control</td>" in page
    (look,) = [json.loads(line) for line in (experiment / "looks.jsonl").read_text().splitlines()]
    assert look["finished_runs"] == 5
    assert look["sentences"] == numbers["sentences"]
    rows = list(csv.DictReader((experiment / "comparison.csv").open()))
    assert len(rows) == 6
    assert [row["status"] for row in rows].count("finished") == 5
    measured = [name for name in OUTCOMES if name not in ("return", "online")]  # rewards differ between arms
    finished = [row for row in rows if row["status"] == "finished"]
    assert all((row[name] != "") == (name in measured) for row in finished for name in OUTCOMES)


def test_scores_are_cached(experiment: Path) -> None:
    run = next(run for run in find_runs([experiment]) if run.finished)
    first = score(run, 2)
    path = scored_file(run, 2)
    kept = json.loads(path.read_text())
    assert first["accuracy"] == pytest.approx(np.mean(kept["rows"]["policy"]["accuracy"]))
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


def test_online_accuracy_is_measured_when_it_is_the_outcome(experiment: Path) -> None:
    found = compare([experiment], CompareConfig(outcome="online", hosts=2, baselines=["wait"]))
    values = found.values("online")
    assert values["wait"].notna().all()
    assert values["shaped"].notna().all()
    assert found.hosts.loc[found.hosts["arm"] == "wait", "online"].between(0, 100).all()
    assert "online" not in compare([experiment], CompareConfig(hosts=3)).hosts


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


def swap(one: Path, other: Path) -> None:
    """Let two folders change places."""
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def edit(run: Path) -> None:
    """Raise the accuracy in training of a run that looks like a killed one: half a line follows its last update."""
    (line,) = (run / "metrics.jsonl").read_text().splitlines()
    record = json.loads(line)
    record["host/committed_accuracy"] += 20
    (run / "metrics.jsonl").write_text(json.dumps(record) + '\n{"upd')


def forge(folder: Path) -> None:
    """Replace the plan by one with another margin and a matching digest."""
    (folder / FILE).unlink()
    design("reward: shaped,sparse", blocks=2, root=1, common=TINY, plan=Claims(score_hosts=2, margin=0.1)).save(folder)


@pytest.mark.parametrize(
    ("tamper", "sentence"),
    [
        (
            lambda place: swap(place / "shaped/block-00", place / "shaped/block-01"),
            "holds the run of shaped/block-0.: move it back",
        ),
        (lambda place: swap(place / "shaped/block-00", place / "sparse/block-00"), "holds the run of s.*/block-00: move it back"),
        (
            lambda place: swap(place / "shaped/block-00/checkpoints", place / "sparse/block-00/checkpoints"),
            "shaped/block-00 was trained with reward=sparse, and design.json says reward=shaped",
        ),
        (
            lambda place: swap(place / "shaped/block-00/checkpoints", place / "shaped/block-01/checkpoints"),
            "shaped/block-00 was trained with seed=.*, and design.json says seed=",
        ),
        (
            lambda place: swap(place / "shaped/block-00/checkpoints", place / "aa_control/block-00/checkpoints"),
            "aa_control/block-00 was trained with policy_seed=None, and design.json says policy_seed=",
        ),
        (
            lambda place: shutil.copytree(place / "shaped/block-01", place / "sparse/block-01"),
            "is a copy of .*: remove one of them",
        ),
        (
            lambda place: edit(place / "shaped/block-01"),
            "block-01/metrics.jsonl was changed after training: update 1 does not have its checksum in times.jsonl; restore",
        ),
        (forge, "run.json names .*, and design.json holds plan .*: restore the changed file, or remove the run"),
        (lambda place: (place / "sparse/block-00/run.json").unlink(), "sparse/block-00/run.json names no plan"),
    ],
)
def test_tampered_experiments_are_refused(
    tamper: Callable[[Path], object], sentence: str, experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(experiment, copy)
    assert check_runs(find_runs([copy]), [copy]) == []
    assert all(records_of(run) for run in find_runs([copy]) if run.finished)
    tamper(copy)
    with pytest.raises(SystemExit) as ended:
        C.main([str(copy)])
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert re.search(sentence, shown)
    assert len(shown.splitlines()) == 1


def test_what_is_gone_or_was_added_is_named(experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(experiment, copy, ignore=shutil.ignore_patterns("comparison*", "looks*"))

    def sentences() -> list[str]:
        C.main([str(copy)])
        capsys.readouterr()
        return json.loads((copy / "comparison.json").read_text())["sentences"]

    named = [f"warning: {copy}/shaped/block-07 is not a run of this experiment and was left out: move it elsewhere"]
    named.append("shaped, block 1: lost: an earlier comparison found it finished")
    named.append(f"warning: {copy} was compared before and has no looks.jsonl: its earlier looks are unknown")
    assert not {*named} & {*sentences()}
    shutil.copytree(copy / "shaped/block-01", copy / "shaped/block-07")
    shutil.rmtree(copy / "shaped/block-01")
    found = sentences()
    assert [line for line in found if line in named] == named[:2]
    assert "sparse, block 1: never started" in found
    (copy / "looks.jsonl").unlink()
    assert [line for line in sentences() if line in named] == [named[0], named[2]]


def test_mixed_code_versions_are_a_warning(experiment: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(experiment, copy)
    path = copy / "sparse/block-00/run.json"
    (record,) = json.loads(path.read_text())
    commit = {**record["esper"], "commit": "0123456789abc", "changed": False}
    path.write_text(json.dumps([record | {"esper": commit}]))
    assert check_runs(find_runs([copy]), [copy]) == [], "other commit, same source"
    path.write_text(json.dumps([record | {"esper": commit | {"source": "1"}}]))
    (warning,) = check_runs(find_runs([copy]), [copy])
    assert "trained by different code versions, whose numbers may differ" in warning
    assert f"012345678: {copy}/sparse/block-00" in warning


def test_the_same_loose_run_twice_is_refused(experiment: Path, tmp_path: Path) -> None:
    for name in ("one", "other"):
        shutil.copytree(experiment / "shaped/block-00", tmp_path / name)
    folders = [tmp_path / "one", tmp_path / "other"]
    with pytest.raises(ConfigError, match=r"other is a copy of .*one: remove one of them, or compare only one"):
        check_runs(find_runs(folders), folders)


def test_runs_without_a_design_are_arms_by_their_differences(experiment: Path) -> None:
    loose = find_runs([experiment / "shaped", experiment / "sparse"])
    assert {run.block for run in loose} == set(design("reward: shaped,sparse", blocks=2, root=1).seeds)
    whole = {run.arm for run in find_runs([experiment / "shaped"])}
    assert whole == {"shaped"}  # only seeds differ: the folder names the arm


def test_baselines_grow_the_hosts_of_the_first_arm(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(experiment / "shaped")
    C.main([folder, "hosts=4", "outcome=return", "baselines=[wait,static,oracle,static_net,search_random_1]", "against=oracle"])
    capsys.readouterr()
    numbers = json.loads((experiment / "shaped" / "comparison.json").read_text())
    reached = {(cell["arm"], cell["block"]): cell["value"] for cell in numbers["outcomes"] if cell["outcome"] == "return"}
    assert list(dict.fromkeys(arm for arm, _ in reached)) == [
        "shaped",
        "wait",
        "static",
        "oracle",
        "static_net",
        "search_random_1",
    ]
    pairs = {(pair["first"], pair["second"]) for pair in numbers["differences"] if pair["outcome"] == "return"}
    assert pairs == {("oracle", other) for other in ("shaped", "wait", "static", "static_net", "search_random_1")}
    runs = [run for run in find_runs([experiment / "shaped"]) if run.finished]
    for run in runs:
        kept = json.loads(scored_file(run, 4).read_text())["rows"]
        assert reached["wait", run.block] == pytest.approx(np.mean(kept["wait"]["return"]))
        assert kept["policy"]["training_flops"] != kept["wait"]["training_flops"], "seeds were planted"
        assert kept["static"] == kept["wait"]  # two steps are too few to fossilize a seed
        assert kept["search_random_1"] == kept["wait"], "a search begins with nothing"
        assert kept["policy"]["parameters"] == 4 * [0], "only fossils are committed"
    for run in runs:  # each run has its own choice
        evaluation = Evaluation.load(str(run.folder), hosts=4)
        choice = evaluation.choose()
        _, oracle = evaluation.grow_schedules(choice)
        evaluation.env.close()
        kept = json.loads(scored_file(run, 4).read_text())["choice"]
        static = kept.pop("static_net")
        assert {*static} == {*kept}
        assert {**kept, "seconds": 0} == {**asdict(choice), "seconds": 0}
        assert reached["oracle", run.block] == pytest.approx(oracle.values["return"].mean())
        (cost,) = [one for one in numbers["costs"] if (one["arm"], one["block"]) == ("oracle", run.block)]
        assert (cost["search"], cost["seconds"]) == (kept["flops"], kept["seconds"])
        (cost,) = [one for one in numbers["costs"] if (one["arm"], one["block"]) == ("static_net", run.block)]
        assert cost["search"] == static["flops"] != kept["flops"]
    costs = {one["arm"]: one for one in numbers["costs"] if one["block"] == runs[0].block}
    assert costs["wait"]["total"] == 0 < costs["static"]["search"] == costs["shaped"]["total"]


def test_every_host_has_its_row(experiment: Path) -> None:
    folder = experiment / "shaped"
    C.main([str(folder), str(experiment / "sparse"), "hosts=2", "baselines=[wait]"])
    rows = list(csv.DictReader((folder / "hosts.csv").open()))
    assert len({(row["arm"], row["controller"], row["block"], row["host"]) for row in rows}) == len(rows) == 2 * (2 * 3 + 2)
    runs = list(csv.DictReader((folder / "comparison.csv").open()))
    assert len(runs) == 5
    for run in runs:
        own = [row for row in rows if all(row[key] == run[key] for key in ("arm", "controller", "block"))]
        assert len(own) == 2
        assert np.mean([float(row["accuracy"]) for row in own]) == pytest.approx(float(run["accuracy"]))


def test_evaluation_overrides_apply_to_all_policies(experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "shaped"
    shutil.copytree(experiment / "shaped", folder)
    (folder / "report.html").write_text("as trained")
    C.main([str(folder), "hosts=3", "steps=3", "baselines=[wait]", "outcome=return"])
    shown = capsys.readouterr().out
    assert "all policies were evaluated with steps=3" in shown
    assert (folder / "report.html").read_text() == "as trained"
    assert "<title>shaped, wait: return steps=3</title>" in (folder / "report_steps=3.html").read_text()
    numbers = json.loads((folder / "comparison_steps=3.json").read_text())
    assert numbers["overrides"] == ["steps=3"]
    values = {(cell["outcome"], cell["arm"], cell["block"]): cell["value"] for cell in numbers["outcomes"]}
    for run in find_runs([folder]):
        evaluation = Evaluation.load(str(run.folder), hosts=3, overrides=["steps=3"])
        outcomes = evaluation.run(["policy"])
        evaluation.env.close()
        for arm, name in (("shaped", "policy"), ("wait", "wait")):
            assert values["return", arm, run.block] == pytest.approx(outcomes[name].values["return"].mean())
        assert values["learning", "shaped", run.block] is None  # measured in training only
        assert score(run, 3) != score(run, 3, ["steps=3"])


PLUGIN = """
from dataclasses import dataclass

import esper
from esper.reward.modes import SparseConfig


@dataclass(kw_only=True, slots=True)
class FreeConfig(SparseConfig):
    \"\"\"A reward from outside.\"\"\"


esper.register("reward", "free", FreeConfig)
"""


@pytest.mark.usefixtures("own_parts")
def test_workers_give_the_scores_of_one_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The workers import the plugin that the runs recorded."""
    plugin = tmp_path / "free_reward.py"
    plugin.write_text(PLUGIN)
    load_plugins([str(plugin)])
    first, second = tmp_path / "by_1", tmp_path / "by_2"
    for seed in (1, 2):
        Trainer(check([*TINY, "reward=free", f"plugins=[{plugin}]", f"seed={seed}"]), first / f"{seed}").run()
    shutil.copytree(first, second)
    tables: list[list[float]] = []
    for workers, folder in enumerate((first, second), start=1):
        C.main([str(folder), "hosts=2", "baselines=[wait,oracle]", f"workers={workers}"])
        shown = capsys.readouterr().out
        assert "scored 2 of 2" in shown
        cells = json.loads((folder / "comparison.json").read_text())["outcomes"]
        tables.append([float("nan") if cell["value"] is None else cell["value"] for cell in cells])
    assert np.isfinite(tables[0]).any()
    assert tables[0] == pytest.approx(tables[1], nan_ok=True)
    for run in find_runs([second]):
        scored_file(run, 2).write_text("[")
    with pytest.raises(SystemExit) as ended:
        C.main([str(second), "hosts=2", "baselines=[wait]", "workers=2"])
    assert ended.value.code == 2
    assert "is damaged: remove it, and the run is scored again" in capsys.readouterr().err


class Deadly:
    """A scoring that kills its process."""

    baselines = ()

    @staticmethod
    def scores(_: Run) -> Scores:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")


def test_scoring_starts_no_more_processes_than_runs(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, started = [run for run in find_runs([experiment]) if run.finished], list[int]()
    monkeypatch.setattr(
        "esper.lab.scoring.Parallel", lambda n_jobs, **_: lambda jobs: started.append(n_jobs) or [{} for _ in jobs]
    )
    assert len(list(score_all(runs, cast(Scoring, Deadly()), workers=10**9))) == len(runs)
    assert started == [len(runs)]


def test_a_killed_worker_is_one_sentence(experiment: Path) -> None:
    runs = [run for run in find_runs([experiment]) if run.finished]
    with pytest.raises(ConfigError, match="killed, most likely out of memory: set workers below 2; runs scored so far are kept"):
        list(score_all(runs, cast(Scoring, Deadly()), workers=2))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["outcome=return"], "cannot compare arms that are paid by different reward"),
        (["strata=[tusk]"], "strata=tusk is not a key of these runs"),
        (["baselines=[shaped]"], "baselines=shaped is not known"),
        (["against=shapd"], "against=shapd is not an arm: choose from shaped, sparse"),
        (["against=again"], "against=again is not an arm"),
        (["agent=random"], "agent=random cannot be changed in an evaluation, since a policy is evaluated as it was trained"),
        (["task=mnist6k"], "did you mean mnist5k?"),
        (["policy_seed=3"], "policy_seed=3 cannot be changed in an evaluation, since it has no effect"),
        (["slots=all", "agent.hidden=3"], "agent.hidden=3 cannot be changed in an evaluation"),
        (["steps=3", "outcome=learning"], "outcome=learning is measured in training, which steps=3 does not change"),
        (["seed=3"], "seed=3 would score all runs on the same hosts"),
    ],
)
def test_settings_that_do_not_fit_the_experiment_are_refused(
    arguments: list[str], sentence: str, experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        C.main([str(experiment), "hosts=2", *arguments])
    assert sentence in capsys.readouterr().err


def test_duplicate_cells_are_refused(experiment: Path) -> None:
    with pytest.raises(ConfigError, match="are the same cell"):
        find_runs([experiment, experiment])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "no folder is given"),
        (["nowhere"], "nowhere is not a folder"),
        (["."], "no finished run"),
        ([".", "outcome=acuracy"], "did you mean accuracy"),
        ([".", "margin=nan"], "margin must be finite and above 0, got nan: leave it out for the default"),
        ([".", "hosts=1"], "hosts must be at least 2"),
        ([".", "baselines=[search_hyperbnd_4]"], "did you mean hyperband"),
        ([".", "baselines=[search_random]"], "baselines=search_random is not known: write search_random_4"),
        ([".", "alpha=0.7"], "alpha must be in"),
        ([".", "workers=0"], "workers must be at least 1"),
        ([".", "figures=gif"], "choose from png, pdf, svg"),
        ([".", "hostt=3"], "there is no key hostt"),
        ([".", "rivals=[wait]"], "there is no key rivals any more: write baselines"),
        ([".", "outcome=catastrophes"], "outcome catastrophes is now called rollbacks"),
    ],
)
def test_invalid_arguments_are_refused(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        C.main(arguments)
    assert sentence in capsys.readouterr().err


def test_help_lists_keys_and_outcomes(capsys: pytest.CaptureFixture[str]) -> None:
    C.main(["--help"])
    page = capsys.readouterr().out
    assert all(name in page for name in (*OUTCOMES, *C.CompareConfig.__dataclass_fields__))


def test_a_full_disk_is_one_sentence(
    experiment: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in find_runs([experiment]):
        if run.finished:
            score(run, 2)  # cached scores are not written again
    capsys.readouterr()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(SystemExit) as ended:
        C.main([str(experiment), "hosts=2"])
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert shown.startswith("esper: ")
    assert "report.html" in shown
    assert shown.count("\n") == 1
