"""Writers of metrics.csv and to MLflow, Weights & Biases and Aim: what their own readers find is what metrics.jsonl holds."""

import sys
import time
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest
from joblib.externals.loky.backend import context

from esper.cli.overrides import check
from esper.telemetry.base import RunInfo
from esper.telemetry.config import QuietConfig
from esper.telemetry.csv import CsvWriter, read_table
from esper.telemetry.tracker import TrackerError
from tests.forked import Forked, run_forked
from tests.telemetry.tracker_fixtures import (
    READ,
    RICH,
    SETTINGS,
    SMALL,
    TRACKERS,
    Table,
    aim_run,
    go_on,
    identity,
    mlflow_client,
    mlflow_tables,  # noqa: F401  (a fixture)
    needs,
    no_network,  # noqa: F401  (a fixture)
    train,
    wandb_records,
    warm,
    writers,
    written,
)

PRESENT = ["csv", *(name for name in needs if find_spec(name))]
"""Trackers that are installed."""
ABSENT = [name for name in needs if name not in PRESENT]
"""Trackers that are not."""
EXPECTED = {"seed": 3, "reward": "shaped", "env": "sandbox"}
"""Some of the hyperparameters of a run."""


# ---- what a tracker shows of a run


def shown_by_csv(tmp_path: Path) -> None:
    assert (tmp_path / "run" / "metrics.csv").read_text().startswith("update,policy/return,")


def shown_by_mlflow(tmp_path: Path) -> None:
    client, id = mlflow_client(tmp_path), identity(tmp_path / "run", "mlflow")
    run = client.get_run(id)
    assert (run.info.status, run.info.run_name, run.data.tags["team"]) == ("FINISHED", "first", "vision")
    assert client.get_experiment(run.info.experiment_id).name == "growth"
    assert {key: run.data.params[key] for key in EXPECTED} == {key: str(value) for key, value in EXPECTED.items()}
    assert "ppo on sandbox" in run.data.tags["mlflow.note.content"]
    assert "| optimum |" in run.data.tags["mlflow.note.content"]
    assert {one.path for one in client.list_artifacts(id)} == {"config.yaml", "run.html"}


def shown_by_wandb(tmp_path: Path) -> None:
    records = wandb_records(tmp_path / "run")
    runs = [one["run"] for one in records if one["type"] == "run"]
    kept = {(one["project"], one["entity"], one["run_group"], tuple(one["tags"])) for one in runs}
    assert kept == {("growth", "me", "mine", ("a",))}
    assert {one["display_name"] for one in runs} == {"first"}
    config = {key: value for one in records for key, value in one.get("config", {}).get("update", {}).items()}
    assert {key: config[key] for key in EXPECTED} == EXPECTED
    summary = {key: value for one in records for key, value in one.get("summary", {}).get("update", {}).items()}
    assert summary["summary/optimum"].endswith("of it")
    files = {one["path"] for record in records for one in record.get("files", {}).get("files", ())}
    assert {"run.html", ".hydra/config.yaml"} <= files
    assert [one["exit"].get("exit_code", 0) for one in records if one["type"] == "exit"] == [0, 0]


def shown_by_aim(tmp_path: Path) -> None:
    id = identity(tmp_path / "run", "aim")
    run = aim_run(tmp_path, id)
    assert (run["name"], run["experiment"], run["tags"], run["active"]) == ("first", "growth", ["a"], False)
    assert {key: run["hparams"][key] for key in EXPECTED} == EXPECTED
    assert run["summary"]["optimum"].endswith("of it")
    assert "ppo on sandbox" in run["description"]
    assert {path.name for path in (tmp_path / ".aim_artifacts" / id).iterdir()} == {"config.yaml", "run.html"}


def recorded(tmp_path: Path) -> dict[str, Table]:
    """Return what every tracker holds of the run."""
    return {name: READ[name](tmp_path) for name in PRESENT}


def skip_absent() -> None:
    """Report a test of all trackers as skipped if it has checked only those that are installed."""
    if ABSENT:
        pytest.skip(f"all but {' and '.join(ABSENT)}, which need pip install -e '.[trackers]'")


SHOWN = {"csv": shown_by_csv, "mlflow": shown_by_mlflow, "wandb": shown_by_wandb, "aim": shown_by_aim}


@pytest.mark.slow
def test_a_command_records_every_update_and_the_rest_of_the_run(tmp_path: Path) -> None:
    """One run for all trackers: it takes longer than their records."""
    shown = ["telemetry.detail_every=2", "telemetry.page_hosts=2", writers(PRESENT, RICH)]
    warnings = train(tmp_path, *SMALL, "seed=3", "updates=2", "hydra.run.dir=run", *shown)
    assert not [name for name in PRESENT if name in warnings]
    table = written(tmp_path / "run")
    assert list(table) == [1, 2]
    assert any(tag.startswith("time/") for tag in table[1])
    assert table[2].keys() > table[1].keys(), "details come every second update, so columns are added"
    assert recorded(tmp_path) == dict.fromkeys(PRESENT, table)  # names all trackers that differ
    for name in PRESENT:
        SHOWN[name](tmp_path)
    skip_absent()


@pytest.mark.slow
def test_repeated_updates_are_recorded_once_and_missing_ones_are_sent(tmp_path: Path) -> None:
    run = tmp_path / "run"
    go_on(tmp_path, [], "updates=2")
    go_on(tmp_path, PRESENT, "updates=3")
    ids = {name: identity(run, name) for name in PRESENT}
    before = written(run)
    assert recorded(tmp_path) == dict.fromkeys(PRESENT, before), "a writer that comes later has all updates"
    (run / "checkpoints" / "checkpoint_000003.pt").unlink()
    go_on(tmp_path, PRESENT, "updates=4")
    table = written(run)
    assert {name: identity(run, name) for name in PRESENT} == ids
    assert list(table) == [1, 2, 3, 4]
    first = table | {3: before[3]}  # trackers keep the first record of a repeated update, which differs in its times only
    assert recorded(tmp_path) == {name: table if name == "csv" else first for name in PRESENT}
    skip_absent()


@pytest.mark.slow
def test_runs_of_a_sweep_are_runs_of_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at a time, which create the database, the experiment and the repository at the same time."""
    (tmp_path / "mlflow.db").unlink(missing_ok=True)
    monkeypatch.setattr(context, "_DEFAULT_START_METHOD", "fork")  # so that workers find everything imported
    for library in needs:
        pytest.importorskip(library)
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    launcher = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=both"]
    train(tmp_path, "-m", *SMALL, "updates=1", "seed=1,2", writers(SETTINGS), *launcher)
    group = f"{tmp_path.name}/both"
    for name in ("0", "1"):
        run = f"both/{name}"
        assert all(READ[tracker](tmp_path, run) == written(tmp_path / run) for tracker in READ)
        mlflow = mlflow_client(tmp_path).get_run(identity(tmp_path / run, "mlflow"))
        assert (mlflow.info.run_name, mlflow.data.tags["sweep"]) == (name, group)
        wandb = [one["run"] for one in wandb_records(tmp_path / run) if one["type"] == "run"]
        assert {(one["display_name"], one["run_group"]) for one in wandb} == {(name, group)}
        aim = aim_run(tmp_path, identity(tmp_path / run, "aim"))
        assert (aim["name"], aim["experiment"]) == (name, group)
    assert len({identity(tmp_path / "both" / name, tracker) for name in "01" for tracker in needs}) == 6


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=needs[name]) for name in ("wandb", "aim")])
def test_a_killed_run_goes_on_without_a_gap(name: str, tmp_path: Path) -> None:
    """A tracker's own process and its locks do not survive as ours would."""
    warm(name)
    process = Forked("esper.train", *SMALL, "updates=100000", writers([name]), "hydra.run.dir=run", cwd=tmp_path)
    checkpoints = tmp_path / "run" / "checkpoints"
    deadline = time.monotonic() + 60
    while not (checkpoints / "checkpoint_000005.pt").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.kill()
    assert process.wait() < 0, process.communicate()[1]
    updates = max(written(tmp_path / "run")) + 1
    train(tmp_path, "resume=run", f"updates={updates}")
    table = READ[name](tmp_path)
    assert list(table) == list(range(1, updates + 1))
    assert table[updates] == written(tmp_path / "run")[updates]


# ---- mistakes


def test_a_missing_library_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = "telemetry.writers={} needs its library: install the extra trackers, as in "
    sentence += "pip install -c constraints.txt -e '.[trackers]'"
    for name in needs:
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(TrackerError) as error:
            check([writers([name])]).telemetry.ready()
        assert str(error.value) == sentence.format(name)
    done = run_forked("esper.train", *SMALL, writers(["aim"]), "hydra.run.dir=run", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, f"esper: {sentence.format('aim')}\n")
    assert not (tmp_path / "run").exists()


BROKEN = {
    "mlflow": "{mlflow:{tracking_uri:'http://127.0.0.1:9'}}",
    "wandb": "{wandb:{mode:online}}",
    "aim": "{aim:{repo:file}}",
}
"""A server that is not there, nobody logged in, and a repository that is a file."""


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_that_cannot_be_opened_is_one_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run_forked("esper.train", *SMALL, f"telemetry.writers=[jsonl,{BROKEN[name]}]", "hydra.run.dir=run", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"esper: {name} cannot open a run: ")
    assert done.stderr.endswith(f"; correct its settings, or leave {name} out of telemetry.writers\n")


# ---- the CSV file


def test_csv_has_a_column_per_metric_and_takes_a_delimiter(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    writer = CsvWriter(path, delimiter=";")
    writer.write(1, {"host/loss": float("inf")})
    writer.write(2, {"host/loss": 0.5, "policy/return": 1e-300})
    assert path.read_text() == "update;host/loss;policy/return\n1;inf;\n2;0.5;1e-300\n"
    CsvWriter(path, resume_update=1)
    assert path.read_text() == "update,host/loss,policy/return\n1,inf,\n", "rewritten with another delimiter"


def test_a_finished_run_gets_its_table_afterwards(tmp_path: Path) -> None:
    with closing(QuietConfig().build(RunInfo(folder=tmp_path, total_updates=2))) as telemetry:
        for update in (1, 2):
            telemetry.update(update, {"host/loss": 0.5 / update})
    late = QuietConfig(writers=["jsonl", "csv"])
    assert late.lacking(tmp_path, 2) == ["csv"]
    late.build(RunInfo(folder=tmp_path, resume_update=2, total_updates=2), ["csv"]).close()
    assert read_table(tmp_path / "metrics.csv")[1] == [["1", "0.5"], ["2", "0.25"]]
    assert late.lacking(tmp_path, 2) == []


def test_csv_drops_a_row_that_a_kill_cut_short_and_refuses_a_foreign_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("update,a\n1,2.0\n2,2.")
    CsvWriter(path, resume_update=2)
    assert read_table(path) == (["update", "a"], [["1", "2.0"]])
    for text, sentence in {
        "update,a\n1,2.0\nx,3\n": "line 3 of .* does not fit its columns",
        "update,a\n1\n": "line 2 of .* does not fit its columns",
        "a,b\n": "is not a table of updates",
    }.items():
        path.write_text(text)
        with pytest.raises(ValueError, match=sentence):
            CsvWriter(path, resume_update=5)
        assert path.read_text() == text
