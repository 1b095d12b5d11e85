"""Experiments on disk: what is found, what is said, and what makes them void."""

import csv
import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from esper import compare as C
from esper import study as S
from esper.config import ConfigError, register
from esper.design import AGAIN, design
from esper.evaluate import Choice, EvaluateConfig, Evaluation
from esper.judging import judge, judged_file
from esper.overrides import check
from esper.report import pareto
from esper.runs import OUTCOMES, Run, faults, find_runs
from esper.trainer import Trainer

TINY = ["updates=1", "hosts=4", "steps=2", "task.batch_size=1000", "telemetry=quiet", "agent.minibatches=1", "agent.epochs=1"]


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two arms and a control, two blocks, trained for a moment; one run is missing."""
    register()
    folder = tmp_path_factory.mktemp("experiment")
    (folder / "plan.md").write_text("Which <reward>?\n")
    planned = design("reward: shaped,sparse", blocks=2, root=1, common=TINY, plan=str(folder / "plan.md"))
    planned.save(folder)
    for cell in planned.cells:
        if (cell.arm, cell.block) != ("sparse", 1):
            Trainer(check(list(cell.words)), folder / cell.folder).run()
    return folder


def test_an_experiment_is_read_judged_and_written(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    C.main([str(experiment), "hosts=2"])
    shown = capsys.readouterr().out
    assert "no verdict on shaped and sparse: 1 blocks" in shown or "sparse, block 1: never begun" in shown
    assert "sparse, block 1: never begun" in shown
    numbers = json.loads((experiment / "comparison.json").read_text())
    assert {run["fate"] for run in numbers["runs"]} == {"finished", "never begun"}
    assert ["sparse", 1] in numbers["missing"]["accuracy"]
    page = (experiment / "report.html").read_text()
    assert page.count("data:image/png") == 4
    assert "sparse, block 1: never begun" in page
    assert "<td>shaped</td>" in page
    assert "<pre>Which &lt;reward&gt;?" in page
    assert numbers["plan"]["sha256"] in page
    assert "<td>shaped - again</td>" in page
    rows = list(csv.DictReader((experiment / "comparison.csv").open()))
    assert len(rows) == 6
    assert [row["fate"] for row in rows].count("finished") == 5
    told = [name for name in OUTCOMES if name != "return"]  # of arms that are paid by different rewards it says nothing
    assert all(np.isfinite(float(row[name])) == (name in told) for row in rows if row["fate"] == "finished" for name in OUTCOMES)


def test_judging_is_done_once(experiment: Path) -> None:
    run = next(run for run in find_runs([experiment]) if run.finished)
    first = judge(run, 2)
    path = judged_file(run, 2)
    kept = json.loads(path.read_text())
    assert first["accuracy"] == pytest.approx(np.mean(kept["policy"]["accuracy"]))
    kept["policy"]["accuracy"] = [1.0, 3.0]
    path.write_text(json.dumps(kept))
    assert judge(run, 2)["accuracy"] == 2.0
    path.unlink()
    assert judge(run, 2) == first


def test_damaged_files_are_one_sentence(experiment: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(experiment, copy)
    run = next(run for run in find_runs([copy]) if run.finished)
    judge(run, 2)
    judged_file(run, 2).write_text('{"policy": ')
    with pytest.raises(ConfigError, match="is damaged: remove it, and the run is judged again"):
        judge(run, 2)
    judged_file(run, 2).unlink()
    (run.folder / "metrics.jsonl").unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        judge(run, 2)
    (copy / "design.json").write_text("{")
    with pytest.raises(ConfigError, match="is damaged: remove it, and repeat"):
        find_runs([copy])


def test_runs_without_a_design_are_told_apart_by_what_differs(experiment: Path) -> None:
    loose = find_runs([experiment / "shaped", experiment / "sparse"])
    assert {run.block for run in loose} == set(design("reward: shaped,sparse", blocks=2, root=1).seeds)
    whole = {run.arm for run in find_runs([experiment / "shaped"])}
    assert whole == {"shaped"}  # nothing differs but the seed: the folder's name stands for it


def test_rivals_grow_the_hosts_of_the_first_arm(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(experiment / "shaped")
    C.main([folder, "hosts=4", "outcome=return", "rivals=[wait,static,oracle]", "against=oracle", "plots=false"])
    capsys.readouterr()
    numbers = json.loads((experiment / "shaped" / "comparison.json").read_text())
    reached = numbers["outcomes"]["return"]
    assert list(reached) == ["shaped", "wait", "static", "oracle"]
    pairs = {(apart["first"], apart["second"]) for apart in numbers["differences"]["return"]}
    assert pairs == {("oracle", "shaped"), ("oracle", "wait"), ("oracle", "static")}
    runs = [run for run in find_runs([experiment / "shaped"]) if run.finished]
    for run in runs:
        kept = json.loads(judged_file(run, 4).read_text())
        assert reached["wait"][str(run.block)] == pytest.approx(np.mean(kept["wait"]["return"]))
        assert kept["policy"]["parameters"] != kept["wait"]["parameters"]
        assert kept["static"] == kept["wait"]  # in two steps nothing is kept for good
    chosen = json.loads((experiment / "shaped" / "schedules_4_hosts.json").read_text())
    for run in runs:  # the schedules that were chosen once, grown anew on the hosts of each run
        evaluation = Evaluation(EvaluateConfig(checkpoint=str(run.folder), hosts=4, controllers=["wait"]))
        _, oracle = evaluation.grow_schedules(Choice(**chosen))
        evaluation.env.close()
        assert reached["oracle"][str(run.block)] == pytest.approx(oracle.return_N.mean())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["outcome=return"], "cannot judge arms that are paid by different rewards"),
        (["rivals=[shaped]"], "rivals=shaped is not known"),
        (["against=shapd"], "against=shapd is no arm: choose out of shaped, sparse"),
        (["against=again"], "against=again is no arm"),
    ],
)
def test_what_an_experiment_cannot_tell(
    words: list[str], sentence: str, experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        C.main([str(experiment), "hosts=2", *words])
    assert sentence in capsys.readouterr().err


def test_one_cell_twice_is_refused(experiment: Path) -> None:
    with pytest.raises(ConfigError, match="are the same cell"):
        find_runs([experiment, experiment])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "there is no folder"),
        (["nowhere"], "nowhere is no folder"),
        (["."], "no finished run"),
        ([".", "outcome=acuracy"], "did you mean accuracy"),
        ([".", "margin=0"], "margin must be above 0"),
        ([".", "hosts=1"], "hosts must be 2 or more"),
        ([".", "alpha=0.7"], "alpha must be in"),
        ([".", "host=3"], "there is no key host"),
    ],
)
def test_what_cannot_be_compared(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        C.main(words)
    assert sentence in capsys.readouterr().err


def test_help_tells_keys_and_outcomes(capsys: pytest.CaptureFixture[str]) -> None:
    C.main(["--help"])
    page = capsys.readouterr().out
    assert all(name in page for name in (*OUTCOMES, *C.CompareConfig.__dataclass_fields__))


# ---- with made-up outcomes


def made_up(monkeypatch: pytest.MonkeyPatch, values: dict[str, np.ndarray]) -> S.Study:
    """The study of an experiment with these accuracies."""
    runs = [
        Run(arm=arm, block=block, folder=Path(f"{arm}/{block}"), update=1, updates=1, config={"hosts": 1, "seed": block})
        for arm, row in values.items()
        for block in range(len(row))
    ]
    monkeypatch.setattr(S, "find_runs", lambda _: runs)
    monkeypatch.setattr(S, "faults", lambda _: [])
    told = dict.fromkeys(OUTCOMES, 0.0)
    monkeypatch.setattr(S, "judge", lambda run, _: told | {"accuracy": float(values[run.arm][run.block])})
    return S.study([], C.CompareConfig())


def test_the_better_arm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((3, 12))
    found = made_up(monkeypatch, {"a": noise[0] + 60, "b": noise[1] + 66, AGAIN: noise[2] + 60})
    assert found.sentences() == ["b is better than a"]
    assert found.arms == ["a", "b", AGAIN]
    assert found.controls["accuracy"].mean.low < 0 < found.controls["accuracy"].mean.high


def test_an_arm_that_differs_from_itself_makes_it_void(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((3, 12))
    found = made_up(monkeypatch, {"a": noise[0] + 60, "b": noise[1] + 66, AGAIN: noise[2] + 65})
    assert found.sentences()[0].startswith("void: a differs from its own repetition by")


def test_the_control_is_no_pair_of_the_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((3, 12))
    found = made_up(monkeypatch, {"a": noise[0], "b": noise[1] + 1, AGAIN: noise[2]})
    (told,) = found.comparisons["accuracy"].judgements
    assert told.p_holm == told.difference.p


def test_arms_that_saw_other_data_make_it_void(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.runs.records_of", lambda _: [{}])
    runs = [Run(arm=arm, block=0, folder=Path(), config={"hosts": hosts, "seed": 1}) for arm, hosts in (("a", 32), ("b", 16))]
    assert faults(runs) == ["arms do not see the same data: hosts is a 32, b 16"]
    assert faults(runs[:1]) == []


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"policy/entropy_share_op": 0.001}, "a has stopped trying"),
        ({"policy/top_blueprint_share": 1.0}, "a knows one blueprint only"),
    ],
)
def test_policies_that_have_collapsed_make_it_void(
    record: dict[str, float], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.runs.records_of", lambda _: [record])
    (fault,) = faults([Run(arm="a", block=0, folder=Path(), config={"hosts": 1})])
    assert sentence in fault
    monkeypatch.setattr("esper.runs.records_of", lambda _: [dict.fromkeys(record, 0.5)])
    assert faults([Run(arm="a", block=0, folder=Path(), config={"hosts": 1})]) == []


def test_the_front_holds_what_nothing_beats_in_both() -> None:
    points = np.array([[3.0, 5.0], [1.0, 2.0], [2.0, 2.0], [1.0, 1.0], [4.0, 5.0], [0.5, np.nan], [5.0, 9.0]])
    assert pareto(points).tolist() == [[1, 2], [3, 5], [5, 9]]


@pytest.mark.parametrize("count", [2, 13])
def test_names_of_arms_hide_nothing_however_many(count: int) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from esper.report import COLOURS, profiles, slopes

    arms = [f"without_part_{index}" for index in range(count)]
    cells = {arm: {block: float(block + place) for block in range(3)} for place, arm in enumerate(arms)}
    colours = dict(zip(arms, COLOURS, strict=False))
    boxes = []
    for draw in (slopes, profiles):
        figure = Figure(figsize=(7, 3.8), layout="constrained")
        canvas, axes = FigureCanvasAgg(figure), figure.subplots()
        draw(axes, cells, OUTCOMES["accuracy"], colours)
        canvas.draw()
        boxes.append((axes, canvas.get_renderer()))
    axes, renderer = boxes[0]
    labels = axes.get_xticklabels()
    apart = [second.get_window_extent(renderer).x0 - first.get_window_extent(renderer).x1 for first, second in pairwise(labels)]
    assert min(apart) > 0 or all(label.get_rotation() == 30 for label in labels)
    axes, renderer = boxes[1]
    assert axes.get_legend().get_window_extent(renderer).x0 >= axes.get_window_extent(renderer).x1


def test_bands_of_many_arms_get_axes_of_their_own(experiment: Path) -> None:
    from matplotlib.figure import Figure

    from esper.report import COLOURS, FEW, learning_curves

    runs = [replace(run, arm=f"part_{index}") for run in find_runs([experiment])[:1] for index in range(FEW + 3)]
    arms = [run.arm for run in runs]
    few, many = Figure(), Figure()
    learning_curves(few, runs[:FEW], dict(zip(arms, COLOURS, strict=False)))
    learning_curves(many, runs, dict(zip(arms, COLOURS, strict=False)))
    assert [len(axes.lines) for axes in few.axes] == [FEW]
    drawn = [axes for axes in many.axes if axes.axison]
    assert [axes.get_title() for axes in drawn] == [f"part_0 and {arm}" for arm in arms[1:]]
    assert all([line.get_label() for line in axes.lines] == axes.get_title().split(" and ") for axes in drawn)


def test_a_disk_that_refuses_the_report_is_one_sentence(
    experiment: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(SystemExit) as ended:
        C.main([str(experiment), "hosts=2", "plots=false"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("esper: ")
    assert "report.html" in said
    assert said.count("\n") == 1
