"""Data that moves while an experiment runs, or before it is compared; and a comparison that needs options of --config-dir."""

import json
import shlex
import shutil
import sys
from collections.abc import Callable, Generator
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import yaml
from joblib.externals.loky import get_reusable_executor

from esper import compare as C
from esper import export, report, train
from esper.cli import command as cli
from esper.cli.failures import Ended
from esper.evaluation.held_out import Evaluation
from esper.lab.cautions import anomalies
from esper.lab.design import Design, command_of
from esper.lab.integrity import check_runs
from esper.lab.runs import find_runs, with_moved_data
from esper.lab.scoring import Scoring
from tests.forked import in_fork

RUN = ["updates=2", "hosts=2", "steps=4", "telemetry=quiet", "agent=heuristic", "blueprint=[norm]", "task=table", "task.target=y"]
AB = ["-m", "sweep=ab", "arms=slots.embargo: 0,1", "root=3", "aa_control=false", "score_hosts=2", "hydra.sweep.dir=m"]


def write(path: Path, last: int) -> None:
    """Write a table of 200 rows."""
    rows = [*range(199), last]
    path.write_text("x,y\n" + "".join(f"{row / 7:.3f},{row % 5 + 0.5}\n" for row in rows))


def trained(monkeypatch: pytest.MonkeyPatch, *overrides: str) -> str:
    """Run esper.train in this process, and return what it printed, or why it was refused."""
    monkeypatch.setattr(sys, "argv", ["esper.train", *overrides])
    with redirect_stdout(StringIO()) as shown:
        try:
            cli.run(train.main)
        except Ended as refused:
            return str(refused.reason)
    return shown.getvalue()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """A folder with the experiment m, whose data moved before its second block, and again while that ran, to c.csv."""
    folder = tmp_path_factory.mktemp("moved")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        write(folder / "a.csv", 7)
        write(folder / "other.csv", 8)
        trained(monkeypatch, *AB, "blocks=1", *RUN, "task.file=a.csv")
        began = (folder / "m/design.json").read_bytes()
        (folder / "a.csv").rename(folder / "b.csv")
        for path, sentence in (("a.csv", "needs a.csv in"), ("other.csv", "m/0/block-00 was started on other data")):
            assert sentence in trained(monkeypatch, *AB, "blocks=2", *RUN, f"task.file={path}")
        assert (folder / "m/design.json").read_bytes() == began, "a refused command changes nothing"
        shown = trained(monkeypatch, *AB, "blocks=2", "task.file=b.csv", *reversed(RUN))  # the order of keys does not matter
        assert "2 of 4 runs done" in shown
        assert f"plan {Design.load(folder / 'm').digest[:12]}" in shown
        (folder / "m/1/block-01/checkpoints/checkpoint_000002.pt").unlink()
        (folder / "b.csv").rename(folder / "c.csv")
        shown = trained(monkeypatch, *AB, "blocks=2", *RUN, "task.file=c.csv")
        assert "3 of 4 runs done" in shown
        assert "\ncompare them with: python -m esper.compare m task.file=c.csv\n" in shown
        yield folder


@pytest.fixture
def moved(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the experiment, beside the data."""
    shutil.copytree(place, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy" / "m"


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs the main function of a command that must fail, and returns its message."""

    def run(main: Callable[[list[str]], None], *arguments: str) -> str:
        with pytest.raises(SystemExit):
            main([*arguments])
        return capsys.readouterr().err

    return run


@pytest.mark.usefixtures("no_figures")
def test_an_experiment_goes_on_and_is_compared_as_planned(moved: Path, refused, capsys: pytest.CaptureFixture[str]) -> None:
    where = {str(run.folder.relative_to(moved)): run.config["task.file"] for run in find_runs([moved])}
    assert where == {"0/block-00": "a.csv", "1/block-00": "a.csv", "0/block-01": "b.csv", "1/block-01": "c.csv"}
    design = Design.load(moved)
    assert "task.file=a.csv" in design.common, "the digest covers the first path"
    assert "task.file=c.csv" in command_of(design, moved).split()
    assert command_of(design, moved, new=True).endswith(" task.file=c.csv"), "a new experiment needs the data, too"
    assert "the task needs a.csv" in refused(C.main, "m")
    C.main(["m", "task.file=c.csv"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "no verdict on 0 and 1 yet: 2 of 10 blocks are finished" in shown
    assert "exploratory" not in shown
    assert json.loads((moved / "comparison.json").read_text())["warnings"] == []
    C.main(["m"])  # stored scores need no data
    assert json.loads((moved / "comparison.json").read_text())["warnings"] == []
    capsys.readouterr()
    C.main(["m", "task.file=other.csv"])
    assert "hence no verdict: task.file=other.csv was not planned" in " ".join(capsys.readouterr().out.split())
    assert (moved / "comparison_task.file=other.csv.json").exists()


def test_other_data_under_another_path_is_told(moved: Path) -> None:
    runs = find_runs([moved])
    assert check_runs(runs, [moved]) == []
    changed = [replace(run, data="1" * 16) if run.config["task.file"] == "b.csv" else run for run in runs]
    assert "were trained on different data" in check_runs(changed, [moved])[0]
    arms = [replace(run, data=run.arm) for run in runs]
    assert any("task.file is 0 a.csv and b.csv, 1 a.csv and c.csv" in line for line in anomalies(arms))
    assert not any("task.file" in line for line in anomalies(runs))


def test_a_path_at_which_only_some_runs_find_their_data_is_a_transfer(moved: Path) -> None:
    runs = find_runs([moved])
    found, rest = with_moved_data(runs, ["steps=5", "task.file=c.csv"])
    assert rest == ["steps=5"]
    assert {run.config["task.file"] for run in found} == {"c.csv"}
    elsewhere = [replace(runs[0], data="1" * 16), *runs[1:]]
    assert with_moved_data(elsewhere, ["steps=5", "task.file=c.csv"]) == (elsewhere, ["steps=5", "task.file=c.csv"])
    assert with_moved_data(runs, ["steps=5"]) == (runs, ["steps=5"])
    here = Scoring(hosts=2, baselines=(), arm="0", overrides=["steps=5"])
    assert here.overrides_of(found[0]) == ["task.file=c.csv", "steps=5"]
    assert replace(here, overrides=["task=digits"]).overrides_of(found[0]) == ["task=digits"], "which needs no table"


def test_a_run_is_evaluated_where_its_data_is(moved: Path, refused, monkeypatch: pytest.MonkeyPatch) -> None:
    run = moved / "0/block-00"
    same, other, both = (
        Evaluation.load(str(run), hosts=2, overrides=overrides)
        for overrides in (["task.file=c.csv"], ["task.file=other.csv"], ["steps=5", "task.file=c.csv"])
    )
    assert (same.transfer.slug, other.transfer.slug, both.transfer.slug) == ("", "task.file=other.csv", "steps=5")
    assert same.env.hparams() == both.env.hparams() != other.env.hparams()
    export.main([f"checkpoint={run}", "hosts=2", "task.file=c.csv"])
    assert [path.name for path in (run / "export").iterdir()] == ["update_000002_host_0_of_2_episode_0_policy"]
    other = "task.file=other.csv is other data than the run was trained on"
    for word, sentence in (
        ("file=c.csv", "heuristic learns nothing"),
        ("file=other.csv", other),
        ("batch_size=2", "leave task.b"),
    ):
        assert sentence in refused(export.main, f"checkpoint={run}", "format=policy", f"task.{word}")
    for path, sentence in (("a.csv", "needs a.csv"), ("other.csv", other)):
        assert sentence in refused(report.main, str(run), f"task.file={path}")
        assert not (run / "run.html").exists()
    report.main([str(run), "task.file=c.csv"])
    before = (run / "run.html").read_bytes()
    report.main([str(run)])  # the traces need no data
    assert (run / "run.html").read_bytes() == before
    (run / "run.html").unlink()
    shutil.rmtree(run / "trace")
    assert "page: " in trained(monkeypatch, "resume=m/0/block-00", "task.file=c.csv", "telemetry.page_hosts=2")
    assert (run / "run.html").exists()


@pytest.mark.slow
def test_arms_with_different_files_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, file in enumerate(("a.csv", "b.csv")):
        write(tmp_path / file, number)
    ab = [one for one in AB if not one.startswith("arms=")]
    arms = 'arms={{a: "task.file={place}a.csv", b: "task.file={place}b.csv"}}'
    trained(monkeypatch, *ab, arms.format(place=""), "blocks=1", *RUN)
    (first, _) = (path for path in (tmp_path / "m").glob("*/block-00"))
    shutil.rmtree(first)  # as if interrupted after the first run
    assert "1 of 2 runs done" in trained(monkeypatch, *ab, arms.format(place=""), "blocks=1", *RUN)
    assert "2 of 4 runs done" in trained(monkeypatch, *ab, arms.format(place=""), "blocks=2", *RUN)
    (tmp_path / "new").mkdir()
    for file in ("a.csv", "b.csv"):
        (tmp_path / file).rename(tmp_path / "new" / file)
    assert "4 of 4 runs done" in trained(monkeypatch, *ab, arms.format(place="new/"), "blocks=2", *RUN)
    write(tmp_path / "new/b.csv", 5)
    assert "/block-00 was started on other data" in trained(monkeypatch, *ab, arms.format(place="new/"), "blocks=2", *RUN)


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("workers", [1, 2])
def test_options_of_ones_own_are_found_again(
    workers: int, tmp_path: Path, refused, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Policies are scored with a preset, also in other processes, after the data has moved."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my own/host").mkdir(parents=True)
    (tmp_path / "my own/host/wide.yaml").write_text("defaults: [mlp, _self_]\nwidth: 24\n")
    flag = ["--config-dir", "my own"]
    write(tmp_path / "a.csv", 7)
    trained(monkeypatch, *flag, *AB, "blocks=1", *RUN, "task.file=a.csv", "score_overrides=host=wide")
    assert shlex.split(command_of(Design.load(tmp_path / "m"), tmp_path / "m"))[-2:] == ["--config-dir", str(tmp_path / "my own")]
    (tmp_path / "a.csv").rename(tmp_path / "z.csv")

    def compared() -> dict[str, str]:
        with redirect_stdout(StringIO()) as shown:
            C.main(["m", f"workers={workers}", "task.file=z.csv"])
        if workers > 1:
            get_reusable_executor().shutdown()
        return {"shown": shown.getvalue()}

    assert "all policies were evaluated with host=wide\n" in in_fork(compared)["shown"]
    stored = "scored_000002_2_hosts_host=wide.json"
    assert all(json.loads((tmp_path / f"m/{arm}/block-00/{stored}").read_text())["rows"]["policy"]["accuracy"] for arm in "01")
    (tmp_path / "m/multirun.yaml").write_text(yaml.safe_dump({"hydra": {"overrides": {"hydra": []}}}))
    assert "there is no option wide in group host" in refused(C.main, "m")
    C.main(["m", *flag])
    assert "all policies were evaluated with host=wide\n" in capsys.readouterr().out
    for words, sentence in ((["--config-dir"], "--config-dir is not a folder"), (["-cd=nowhere"], "nowhere is not a folder")):
        assert sentence in refused(C.main, "m", *words)


@pytest.mark.slow
def test_a_tuning_goes_on_where_its_data_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed")
    monkeypatch.chdir(tmp_path)
    tune = ["-m", "sweep=tune", "slots.embargo=0,1", "blocks=1", "score_hosts=2", "hydra.sweep.dir=t", *RUN]
    write(tmp_path / "a.csv", 7)
    write(tmp_path / "other.csv", 8)
    assert "trial-000" in trained(monkeypatch, *tune, "task.file=a.csv", "trials=1")
    (tmp_path / "a.csv").rename(tmp_path / "b.csv")
    (tmp_path / "t/baseline/block-00/scored_000002_2_hosts.json").unlink()  # as if killed before it was written
    for file, sentence in (("other.csv", "t/baseline/block-00 was started on other data"), ("a.csv", "needs a.csv in")):
        assert sentence in trained(monkeypatch, *tune, f"task.file={file}", "trials=2")
    assert "trial-001" in trained(monkeypatch, *tune, "task.file=b.csv", "trials=2")
    state = json.loads((tmp_path / "t/tuning.json").read_text())
    assert len(state["trials"]) == 2
    assert "task.file=a.csv" in state["common"]
    assert "differs in common" in trained(monkeypatch, *tune, "task.file=b.csv", "task.valid_samples=20", "trials=2")
