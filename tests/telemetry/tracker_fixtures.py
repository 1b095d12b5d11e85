"""Runs that write to trackers, and readers of what those recorded."""

import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from esper.cli.overrides import check
from esper.telemetry.csv import read_table
from esper.telemetry.jsonl import recorded_updates
from esper.training.trainer import Trainer
from tests.forked import in_fork, run_forked

SMALL = ["env=sandbox", "hosts=4", "steps=4", "agent.minibatches=2", "agent.epochs=1", "agent.hidden=8"]
SMALL += ["agent.baseline=critic", "telemetry=quiet"]
RICH = {
    "csv": "csv",
    "mlflow": "{mlflow:{experiment:growth,name:first,tags:{team:vision}}}",
    "wandb": "{wandb:{mode:offline,project:growth,entity:me,name:first,group:mine,tags:[a]}}",
    "aim": "{aim:{repo:.,experiment:growth,name:first,tags:[a]}}",
}
"""The same with all their settings."""
SETTINGS = {"csv": "csv", "mlflow": "mlflow", "wandb": "{wandb:{mode:offline}}", "aim": "aim"}
"""Writers without a network, as on the command line."""
Table = dict[int, dict[str, float]]
"""Metrics by update."""

needs = {
    name: pytest.mark.skipif(find_spec(name) is None, reason="pip install -e '.[trackers]'")
    for name in ("mlflow", "wandb", "aim")
}
ALL = ["csv", *(pytest.param(name, marks=mark) for name, mark in needs.items())]
TRACKERS = ALL[1:]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No tracker reports its use, or an error, to its makers; nothing is found but what a test made."""
    for name, value in {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_CACHE_DIR": str(tmp_path / "cache"),
        "WANDB_CONFIG_DIR": str(tmp_path / "config"),
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def mlflow_tables(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A database of MLflow with its tables, which take two seconds to create. Where MLflow is not imported, nothing needs one."""
    if "mlflow" not in sys.modules:
        return
    place = tmp_path_factory.getbasetemp() / "tables" / "mlflow.db"
    if not place.exists():
        place.parent.mkdir(exist_ok=True)
        in_fork(lambda: {"client": str(mlflow_client(place.parent))})
    shutil.copy(place, tmp_path)


@cache
def warm(name: str) -> None:
    """Import a tracker and, with the first one, do a run, so that forks find what they need."""
    if name in needs:
        import_module({"mlflow": "mlflow.tracking"}.get(name, name))
    if name:
        warm("")
        return
    for module in ("esper.train", "esper.page.page"):
        import_module(module)
    with tempfile.TemporaryDirectory() as folder:
        Trainer(check([*SMALL, "updates=1"]), folder).run()


def writers(names: Iterable[str], settings: Mapping[str, str] = SETTINGS) -> str:
    """Return the override that chooses these writers beside JSON lines."""
    return f"telemetry.writers=[{','.join(['jsonl', *(settings[name] for name in names)])}]"


def train(tmp_path: Path, *overrides: str) -> str:
    """Run a command in `tmp_path`, and return what it printed for people."""
    for name in SETTINGS:
        if any(name in override for override in overrides):
            warm(name)
    warm("")
    done = run_forked("esper.train", *overrides, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stderr


def go_on(tmp_path: Path, names: Sequence[str], *overrides: str) -> None:
    """Run, or resume, in `run`, in a fork without a command: a second faster."""
    config = check([*SMALL, writers(names), *overrides])
    for name in ("", *names):
        warm(name)

    def run() -> dict[str, Any]:
        os.chdir(tmp_path)
        Trainer(config, tmp_path / "run", overrides=overrides).run()
        return {}

    in_fork(run)


def written(folder: Path) -> Table:
    """Return what JSON lines hold of a run."""
    return dict(recorded_updates(folder, 0, 10**9))


def identity(folder: Path, name: str) -> str:
    """Return the tracker's name of a run; that of a file is its own."""
    return "" if name == "csv" else str(json.loads((folder / f"{name}.json").read_text())["id"])


# ---- the trackers' own readers


def of_csv(tmp_path: Path, run: str = "run") -> Table:
    columns, rows = read_table(tmp_path / run / "metrics.csv")
    with (tmp_path / run / "metrics.csv").open(newline="") as file:
        assert [list(row) for row in csv.reader(file)] == [columns, *rows]
    cells = [zip(columns[1:], row[1:], strict=True) for row in rows]
    updates = [int(row[0]) for row in rows]
    return unique([(u, tag, float(cell)) for u, row in zip(updates, cells, strict=True) for tag, cell in row if cell])


def of_mlflow(tmp_path: Path, run: str = "run") -> Table:
    client, id = mlflow_client(tmp_path), identity(tmp_path / run, "mlflow")
    tags = client.get_run(id).data.metrics
    return unique([(point.step, tag, point.value) for tag in tags for point in client.get_metric_history(id, tag)])


def mlflow_client(tmp_path: Path) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")


def of_wandb(tmp_path: Path, run: str = "run") -> Table:
    items = [record["history"]["item"] for record in wandb_records(tmp_path / run) if record["type"] == "history"]
    return unique([(one["_step"], tag, float(value)) for one in items for tag, value in one.items() if tag[0] != "_"])


def wandb_records(folder: Path) -> list[dict[str, Any]]:
    """Return all records of a run, of the folders that `wandb sync` would put together."""
    from wandb.util import get_core_path

    found: list[dict[str, Any]] = []
    for file in sorted(folder.glob(f"wandb/offline-run-*/run-{identity(folder, 'wandb')}.wandb")):
        command = [get_core_path(), "leet", "inspect", "-json", "-no-observability", "-run-file", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
        found += map(json.loads, done.stdout.splitlines())
    return found


def of_aim(tmp_path: Path, run: str = "run") -> Table:
    return unique(aim_run(tmp_path, identity(tmp_path / run, "aim"))["points"])


def aim_run(folder: Path, id: str) -> dict[str, Any]:
    """Return a run as Aim's queries find it, after indexing as `aim up` does. A fork looks: Aim has threads, whose locks the next
    fork would find taken."""

    def look() -> dict[str, Any]:
        from aim import Repo
        from aim.sdk.types import QueryReportMode

        repo = Repo.from_path(str(folder))
        repo._recreate_index()
        run = next(iter(repo.query_runs(f"run.hash == '{id}'", report_mode=QueryReportMode.DISABLED).iter_runs())).run
        points: list[tuple[int, str, float]] = []
        for metric in run.metrics():
            steps, (values, *_) = metric.data.items_list()
            points += [(step, metric.name, value) for step, value in zip(steps, values, strict=True)]
        names = ("name", "experiment", "tags", "active", "description")
        return {name: getattr(run, name) for name in names} | run[...] | {"points": points}

    return in_fork(look)


def unique(values: list[tuple[int, str, float]]) -> Table:
    """Return values by update and tag, none of which may be there twice."""
    table: Table = {}
    for update, tag, value in values:
        assert tag not in table.setdefault(update, {}), f"{tag} of update {update} is recorded twice"
        table[update][tag] = value
    return table


READ: dict[str, Callable[..., Table]] = {"csv": of_csv, "mlflow": of_mlflow, "wandb": of_wandb, "aim": of_aim}
"""Reader by tracker: folder in which the command ran, and name of the run's folder in it."""
