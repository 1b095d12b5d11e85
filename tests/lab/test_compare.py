"""The compare command: from the runs of an experiment to its report, and arguments that are refused."""

import csv
import html
import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from esper import compare as C
from esper.cli.overrides import check
from esper.config import ConfigError
from esper.evaluation.held_out import Evaluation
from esper.files import DiskError
from esper.lab import comparison, integrity
from esper.lab.about import WORDS
from esper.lab.design import AnalysisPlan, Design, design
from esper.lab.outcomes import OUTCOMES, RETURNS
from esper.lab.report import HEAD
from esper.lab.runs import Run, find_runs
from esper.lab.scoring import score, scored_file
from esper.training.trainer import Trainer
from tests.lab.small_runs import TINY


def test_an_experiment_is_read_scored_and_written(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    C.main([str(experiment)])
    shown = capsys.readouterr().out
    assert "no verdict on shaped and sparse yet: runs are missing (1 of 2 blocks are finished)" in " ".join(shown.split())
    assert shown.startswith("5 of 6 runs finished: no verdict yet; continue with python -m esper.train -m ")
    assert "1 of 6 planned runs is not finished" in shown
    assert "sparse, block 1: never started" in shown
    numbers = json.loads((experiment / "comparison.json").read_text())
    assert {run["status"] for run in numbers["runs"]} == {"finished", "never started"}
    cells = {(cell["outcome"], cell["arm"], cell["block"]): cell["value"] for cell in numbers["outcomes"]}
    assert cells["accuracy", "sparse", 1] is None
    page = (experiment / "report.html").read_text()
    assert page.count("<svg") == 1 + 3, "paired differences and the other figures"
    assert "sparse, block 1: never started" in page
    assert "<td>shaped</td>" in page
    assert "<pre>Which &lt;reward&gt;?" in page
    assert numbers["plan"]["sha256"] in page
    assert "<td>shaped - aa_control</td>" in page
    assert all(f"<td>{html.escape(word)}</td><td>{html.escape(meaning)}</td>" in page for word, meaning in WORDS.items())
    explained = {head.removesuffix(", 95 % interval").removesuffix(", unpaired") for head in HEAD}
    assert explained - {"first - second"} <= {word.removesuffix(", 95 % interval").replace("block", "blocks") for word in WORDS}
    look = json.loads((experiment / "looks.jsonl").read_text().splitlines()[-1])  # other tests of the session look, too
    assert look["finished_runs"] == 5
    assert look["sentences"] == numbers["sentences"]
    rows = list(csv.DictReader((experiment / "comparison.csv").open()))
    assert len(rows) == 6
    assert [row["status"] for row in rows].count("finished") == 5
    measured = [name for name in OUTCOMES if name not in (*RETURNS, "online")]  # rewards differ between arms
    finished = [row for row in rows if row["status"] == "finished"]
    assert all((row[name] != "") == (name in measured) for row in finished for name in OUTCOMES)


@pytest.mark.usefixtures("no_figures")
def test_unlike_runs_are_refused_before_any_is_scored(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    growth, sandboxed = ({"options": {"env": env}} for env in ("growth", "sandbox"))
    digits = Run(arm="a", block=0, folder=Path("a"), updates=1, update=1, saved=growth, config={"task": "digits"})
    table = replace(digits, arm="b", folder=Path("b"), config={"task": "table"})
    sandbox = replace(digits, arm="c", folder=Path("c"), saved=sandboxed, config={"task": "digits", "env": "a preset of it"})
    refuse = integrity.refuse_unlike
    refuse([digits, digits], [], planned=False, overrides=())
    refuse([digits, table], [], planned=True, overrides=())
    refuse([digits, table], [], planned=False, overrides=["task=digits"])
    refuse([digits, table], ["task"], planned=False, overrides=())
    with pytest.raises(ConfigError, match=r"^these runs learn different tasks \(digits, table\) .* or set strata=\[task\]$"):
        refuse([digits, table], [], planned=False, overrides=())
    with pytest.raises(ConfigError, match=r"^a trains hosts, and c does not: compare them separately$"):
        refuse([digits, sandbox], [], planned=True, overrides=())
    copy = shutil.copytree(experiment, tmp_path / "copy", ignore=shutil.ignore_patterns("comparison*", "looks*", "report*"))
    for path in copy.glob("shaped/block-00/scored*"):
        path.unlink()
    monkeypatch.setattr(comparison, "anomalies", lambda *_: ["odd"])
    C.main([str(copy), "outcome=parameters"])
    shown = capsys.readouterr().out
    assert shown.index("warning: odd") < shown.index("scored 1 of 5"), "a reader may stop in time"
    assert shown.count("warning: odd") == 1
    assert "read this with the 1 warning above the scores" in shown
    assert (copy / "report_outcome=parameters.html").exists()
    assert not (copy / "report.html").exists(), "that of the planned outcome"
    assert "odd" in json.loads((copy / "comparison_outcome=parameters.json").read_text())["warnings"]


def test_several_experiments_keep_what_their_plans_agree_on(experiment: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    design = Design.load(experiment)
    replace(design, root=99, plan=replace(design.plan, margin=7.0)).save(other)
    _, config, _ = C.parse([str(experiment), str(other)])
    assert config.hosts == design.plan.score_hosts
    assert config.margin is None, "on which they do not agree"


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_baselines_grow_the_hosts_of_the_first_arm(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(experiment / "shaped")
    C.main([folder, "hosts=2", "outcome=return", "baselines=[wait,static,oracle,static_net,search_random_1]", "against=oracle"])
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
        kept = json.loads(scored_file(run, 2).read_text())["rows"]
        assert reached["wait", run.block] == pytest.approx(np.mean(kept["wait"]["return"]))
        assert kept["policy"]["training_flops"] != kept["wait"]["training_flops"], "seeds were planted"
        assert kept["static"] == kept["wait"]  # two steps are too few to fossilize a seed
        assert {**kept["search_random_1"], "seeds": [[]] * 2} == kept["wait"], "a search begins with nothing"
        assert kept["policy"]["parameters"] == 2 * [0], "only fossils are committed"
    for run in runs[-1:]:  # not the choice of the first one
        evaluation = Evaluation.load(str(run.folder), hosts=2)
        choice = evaluation.choose()
        _, oracle = evaluation.grow_schedules(choice)
        evaluation.env.close()
        kept = json.loads(scored_file(run, 2).read_text())["choice"]
        static = kept.pop("static_net")
        assert {*static} == {*kept}
        assert {**kept, "seconds": 0} == {**asdict(choice), "seconds": 0}
        assert reached["oracle", run.block] == pytest.approx(oracle.values["return"].mean())
        (cost,) = [one for one in numbers["costs"] if (one["arm"], one["block"]) == ("oracle", run.block)]
        assert (cost["search"], cost["seconds"]) == (kept["flops"], kept["seconds"])
        (cost,) = [one for one in numbers["costs"] if (one["arm"], one["block"]) == ("static_net", run.block)]
        assert cost["search"] == static["flops"] != kept["flops"]
    about = " ".join((experiment / "shaped" / "report.html").read_text().split())
    assert "baseline on the held-out hosts of shaped, chosen by return" in about
    costs = {one["arm"]: one for one in numbers["costs"] if one["block"] == runs[0].block}
    assert costs["wait"]["total"] == 0 < costs["static"]["search"] == costs["shaped"]["total"]


@pytest.mark.usefixtures("no_figures")
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


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
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
    for run in find_runs([folder])[-1:]:
        evaluation = Evaluation.load(str(run.folder), hosts=3, overrides=["steps=3"])
        outcomes = evaluation.run(["policy"])
        evaluation.env.close()
        for arm, name in (("shaped", "policy"), ("wait", "wait")):
            assert values["return", arm, run.block] == pytest.approx(outcomes[name].values["return"].mean())
        assert values["learning", "shaped", run.block] is None  # measured in training only
        assert score(run, 3) != score(run, 3, ["steps=3"])


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_planned_overrides_of_the_scoring_need_not_be_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = AnalysisPlan(score_hosts=2, score_overrides=["steps=3", "task.data_share=[0.5]"])
    found = design("task.data_share: [0.25],[1]", blocks=1, root=1, aa_control=False, common=TINY, plan=plan)
    folder, other = tmp_path / "here", tmp_path / "other"
    found.save(folder)
    replace(found, plan=AnalysisPlan(score_hosts=2)).save(other)
    for cell in found.cells:
        Trainer(check(list(cell.overrides)), folder / cell.folder, name=cell.folder, plan=found.digest).run()
    C.main([str(folder)])
    shown = " ".join(capsys.readouterr().out.split())
    assert "all policies were evaluated with steps=3 task.data_share=[0.5]" in shown
    assert "see different data" not in shown
    assert json.loads((folder / "looks.jsonl").read_text())["overrides"] == plan.score_overrides
    outcomes = {row["arm"]: float(row["accuracy"]) for row in csv.DictReader((folder / "comparison.csv").open())}
    assert outcomes == {run.arm: score(run, 2, plan.score_overrides)["accuracy"] for run in find_runs([folder])}
    C.main([str(folder), "steps=4"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "exploratory, hence no verdict: steps=4 was not planned" in shown
    assert "all policies were evaluated with steps=4 task.data_share=[0.5]" in shown
    assert (folder / "comparison_steps=4.csv").exists()
    C.main([str(folder), "outcome=learning"])
    assert "all policies were evaluated with" not in capsys.readouterr().out, "it was measured in training"
    with pytest.raises(SystemExit):
        C.main([str(folder), str(other)])
    assert "these experiments planned different score_overrides: compare them separately" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["outcome=return"], "cannot compare arms with different reward"),
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


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "no folder is given"),
        (["x", "--resolve"], "this command has no flag --resolve: see --help"),
        (["nowhere"], "nowhere is not a folder"),
        (["."], "no finished run"),
        ([".", "outcome=acuracy"], "did you mean accuracy"),
        ([".", "margin=nan"], "margin must be finite and above 0, got nan: leave it out for the default"),
        ([".", "hosts=1"], "hosts must be at least 2"),
        ([".", "baselines=[wait,static,wait]"], "baselines=wait is named twice: name it once"),
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


@pytest.mark.usefixtures("no_figures")
def test_a_full_disk_is_one_sentence(
    experiment: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in find_runs([experiment]):
        if run.finished:
            score(run, 2)  # cached scores are not written again
    capsys.readouterr()
    with monkeypatch.context() as patched:
        patched.setattr(C, "record_look", Mock(side_effect=DiskError("write looks.jsonl", OSError(30, "Read-only file system"))))
        with pytest.raises(SystemExit):
            C.main([str(experiment), "hosts=2"])
        shown = capsys.readouterr()
        assert "no verdict" in shown.out, "what was found is shown"
        assert shown.err.startswith("esper: cannot write looks.jsonl")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(SystemExit) as ended:
        C.main([str(experiment), "hosts=2"])
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert shown.startswith("esper: ")
    assert "report.html" in shown
    assert shown.count("\n") == 1
