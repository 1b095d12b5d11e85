"""Trackers that fail: the run goes on, what they lack is sent later, and what is lost is said."""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from esper.cli.overrides import check
from esper.files import FileError
from esper.telemetry.base import RunInfo
from esper.telemetry.config import QuietConfig
from esper.telemetry.jsonl import read_records
from esper.telemetry.tracker import Tracker, TrackerConfig, TrackerError, file_of
from esper.telemetry.writers import WRITERS
from esper.training.trainer import Trainer
from tests.forked import in_fork
from tests.telemetry.tracker_fixtures import SMALL, needs, no_network, warm  # noqa: F401

RUNS: dict[str, dict[str, Any]] = {}
"""What the board holds, by the name of the run."""
FAILING: set[str] = set()
"""Calls that fail: those of a method, or of log in an update, as in log3."""


@dataclass(kw_only=True, slots=True)
class BoardConfig(TrackerConfig):
    """A tracker in memory."""

    library: ClassVar[str] = "board"
    project: str = "p"
    """Project."""

    def ready(self) -> None: ...

    def connect(self, run: RunInfo) -> Tracker:
        return Board(run, {"project": self.project}, self.name)


class Board(Tracker):
    library = "board"

    def _reach(self, call: str) -> dict[str, Any]:
        if call in FAILING:
            raise RuntimeError(f"the server is gone\n({call}).")
        return RUNS[self._id]

    def resume(self, id: str | None) -> str:
        self._id = id or f"run{len(RUNS)}"
        RUNS.setdefault(self._id, {"name": self.name, "updates": [], "files": [], "ends": []})
        self._reach("resume")
        return self._id

    def describe(self, title: str, hparams: Mapping[str, Any]) -> None:
        self._reach("describe")["title"] = title

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        self._reach(f"log{update}")["updates"].append((update, dict(metrics)))

    def summarise(self, rows: Any, metrics: Mapping[str, float]) -> None:
        self._reach("summarise")["summary"] = dict(metrics)

    def keep(self, path: Path, name: str) -> None:
        self._reach("keep")["files"].append(name)

    def end(self, *, finished: bool) -> None:
        self._reach("end")["ends"].append(finished)


@pytest.fixture(autouse=True)
def board(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WRITERS, "board", BoardConfig)
    RUNS.clear()
    FAILING.clear()


def run(folder: Path, updates: int, *overrides: str) -> list[str]:
    """Train, and return the warnings about the board."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Trainer(check([*SMALL, f"updates={updates}", "telemetry.writers=[jsonl,board]", *overrides]), folder).run()
    return [str(one.message) for one in caught if "board" in str(one.message)]


def recorded(name: str = "run0") -> list[int]:
    return [update for update, _ in RUNS[name]["updates"]]


def test_a_server_that_comes_back_gets_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FAILING.update(["log2", "log3"])
    log = Board.log

    def back(self: Board, update: int, metrics: Mapping[str, float]) -> None:
        tries.append(update)
        if len(tries) > 3:
            FAILING.clear()
        log(self, update, metrics)

    tries: list[int] = []
    monkeypatch.setattr(Board, "log", back)
    said = run(tmp_path, 5)
    assert said == ["board failed: the server is gone (log2); the run goes on, and what board lacks is sent when it works again"]
    assert tries[:4] == [1, 2, 2, 2], "each attempt begins with the first that is missing"
    assert recorded() == [1, 2, 3, 4, 5]
    assert RUNS["run0"]["ends"] == [True]


def test_a_slow_failure_is_not_repeated_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, tries = [0.0], list[float]()

    def gone(self: Board, update: int, metrics: Mapping[str, float]) -> None:
        tries.append(now[0])
        now[0] += 3.0  # a timeout
        raise TimeoutError

    monkeypatch.setattr(Board, "log", gone)
    monkeypatch.setattr("esper.telemetry.tracker.time.monotonic", lambda: now[0])
    telemetry = QuietConfig(writers=["jsonl", "board"]).build(RunInfo(folder=tmp_path, total_updates=20))
    telemetry.start("title", {})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for update in range(1, 21):
            telemetry.update(update, {"policy/return": 1.0})
            now[0] += 5.0
        telemetry.finish()
        telemetry.close()
    said = [str(one.message).partition(";")[0].partition(", which")[0] for one in caught]
    assert said == ["board failed: TimeoutError", "board lacks 20 updates, 1 to 20"]
    assert tries == [0.0, 33.0, 66.0, 99.0, 112.0], "after 3 s of waiting, 30 s without; once more at the end"


def test_what_is_lacking_at_the_end_is_said_and_sent_by_a_resume(tmp_path: Path) -> None:
    FAILING.update(["log2", "end"])
    said = run(tmp_path, 3)
    assert said[1:] == [
        f"board lacks 2 updates, 2 to 3, which the files of the run have: resume={tmp_path} sends it when board works"
    ]
    assert recorded() == [1]
    assert len(read_records(tmp_path / "metrics.jsonl")) == 3, "the run and its files are whole"
    FAILING.clear()
    assert run(tmp_path, 4) == []
    assert recorded() == [1, 2, 3, 4]
    assert RUNS.keys() == {"run0"}
    assert RUNS["run0"]["ends"] == [True]


def test_a_run_that_is_stopped_is_not_finished(tmp_path: Path) -> None:
    telemetry = QuietConfig(writers=["jsonl", "board"]).build(RunInfo(folder=tmp_path, name="a/b"))
    telemetry.start("title", {})
    telemetry.close()
    assert (RUNS["run0"]["ends"], RUNS["run0"]["name"]) == ([False], "a/b")
    QuietConfig(writers=["jsonl", "board"]).attach(tmp_path, [tmp_path / "run.html"])
    assert RUNS["run0"]["files"] == [], "files come when the run has finished"


def test_files_go_to_the_finished_run_and_a_failure_is_a_warning(tmp_path: Path) -> None:
    run(tmp_path, 1)
    telemetry = QuietConfig(writers=["jsonl", "board"])
    telemetry.attach(tmp_path, [tmp_path / "run.html", tmp_path / "export" / "host" / "network.py"])
    assert RUNS["run0"]["files"] == ["run.html", "export/host/network.py"]
    assert (RUNS["run0"]["ends"], RUNS.keys()) == ([True, True], {"run0"})
    FAILING.add("keep")
    with pytest.warns(UserWarning, match=r"board did not accept run\.html: the server is gone \(keep\)$"):
        telemetry.attach(tmp_path, [tmp_path / "run.html"])
    assert json.loads(file_of(tmp_path, "board").read_text())["finished"]


def test_a_finished_run_that_was_sent_to_a_tracker_afterwards_gets_files_made_later(tmp_path: Path) -> None:
    QuietConfig().build(RunInfo(folder=tmp_path)).close()
    late = QuietConfig(writers=["jsonl", {"board": {"project": "q", "name": "mine"}}]).build(RunInfo(folder=tmp_path))
    late.finish()
    late.close()
    QuietConfig().attach(tmp_path, [tmp_path / "run.html"])  # as in its checkpoint
    QuietConfig(writers=["jsonl", "board"]).attach(tmp_path, [tmp_path / "again.html"])
    assert (RUNS.keys(), RUNS["run0"]["name"]) == ({"run0"}, "mine")
    assert RUNS["run0"]["files"] == ["run.html", "again.html"]
    file = file_of(tmp_path, "board")
    record = json.loads(file.read_text())
    file.write_text(json.dumps({name: part for name, part in record.items() if name != "settings"}))
    QuietConfig().attach(tmp_path, [tmp_path / "third.html"])
    assert RUNS.keys() == {"run0"}, "runs of earlier versions go by their place"
    assert RUNS["run0"]["files"][-1] == "third.html"


def test_the_summary_of_a_finished_run_stays_and_a_tracker_that_lacks_it_gets_it(tmp_path: Path) -> None:
    FAILING.add("summarise")
    run(tmp_path, 2)
    FAILING.clear()
    run(tmp_path, 2)
    assert RUNS["run0"]["ends"][-1], "it lacked its summary"
    RUNS["run0"]["summary"] = {"kept": 1.0}
    records = (tmp_path / "run.json").read_text()
    run(tmp_path, 2)
    assert RUNS["run0"]["summary"] == {"kept": 1.0}
    assert (tmp_path / "run.json").read_text() == records
    run(tmp_path, 2, "telemetry.writers=[jsonl,{board:{project:q}}]")
    assert recorded("run1") == [1, 2]


def test_another_project_gets_a_run_of_its_own_with_all_updates(tmp_path: Path) -> None:
    run(tmp_path, 2)
    assert run(tmp_path, 3, "telemetry.writers=[jsonl,{board:{project:q}}]") == []
    assert (recorded("run0"), recorded("run1")) == ([1, 2], [1, 2, 3])


def test_without_json_lines_a_later_tracker_says_what_it_lacks(tmp_path: Path) -> None:
    run(tmp_path, 2, "telemetry.writers=[]")
    assert run(tmp_path, 3, "telemetry.writers=[board]") == ["board lacks 2 updates, 1 to 2: there is no metrics.jsonl"]
    assert recorded() == [3]


def test_a_tracker_that_cannot_be_opened_ends_the_command(tmp_path: Path) -> None:
    FAILING.add("resume")
    with pytest.raises(TrackerError, match=r"^board cannot open a run: the server is gone \(resume\); correct its settings, or"):
        run(tmp_path, 1)
    FAILING.clear()
    run(tmp_path, 1)
    FAILING.add("resume")
    with pytest.raises(TrackerError, match=r"or remove .*board\.json to start a new one, or leave board out"):
        run(tmp_path, 2)


@pytest.mark.parametrize("text", ["", "[]", '{"id": 1, "place": {}}', '{"id": "a", "place": {}, "other": 1}'])
def test_a_damaged_file_is_one_sentence(text: str, tmp_path: Path) -> None:
    file_of(tmp_path, "board").write_text(text)
    with pytest.raises(FileError, match=r"board\.json is damaged: move it away, and the run goes on as a new one in the tracker"):
        run(tmp_path, 1)


# ---- real trackers on a real disk that fills up


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=needs[name]) for name in ("mlflow", "aim")])
def test_a_full_disk_of_a_tracker_does_not_end_the_run(name: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a small file system needs Linux and root")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a file system may not be mounted here: {mounted.stderr.strip()}")
    settings = {"mlflow": f"{{mlflow:{{tracking_uri:'sqlite:///{disk}/m.db'}}}}", "aim": f"{{aim:{{repo:{disk}}}}}"}[name]
    warm(name)

    def trained() -> dict[str, Any]:
        os.chdir(tmp_path)
        trainer = Trainer(check([*SMALL, "updates=4", f"telemetry.writers=[jsonl,{settings}]"]), tmp_path / "run")
        learn = trainer.learn

        def fill(episode: Any) -> dict[str, float]:
            if trainer.update == 1:
                subprocess.run(["dd", "if=/dev/zero", f"of={disk}/big", "bs=4k"], capture_output=True, check=False)
            return learn(episode)

        trainer.learn = fill
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.run()
        return {"said": [str(one.message) for one in caught if name in str(one.message)]}

    try:
        said = in_fork(trained)["said"]
        assert [record["update"] for record in read_records(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4]
        assert [text.split(":")[0] for text in said[:1]] == [f"{name} failed"]
        (disk / "big").unlink()

        def resumed() -> dict[str, Any]:
            Trainer(check([*SMALL, "updates=5", f"telemetry.writers=[jsonl,{settings}]"]), tmp_path / "run").run()
            return {"record": json.loads(file_of(tmp_path / "run", name).read_text())}

        assert in_fork(resumed)["record"]["update"] == 5
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
