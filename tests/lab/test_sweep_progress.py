"""Progress of a sweep."""

import json
from pathlib import Path

import pytest

from esper.lab.sweep_progress import SweepProgress


def write(folder: Path, *statuses: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps([{"cell": None, "plan": None, "esper": {}, "status": one} for one in statuses]))


def test_runs_side_by_side_are_counted_when_they_finish(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("esper.lab.sweep_progress.time.monotonic", lambda: now[0])
    folders = [tmp_path / name for name in "abc"]
    write(folders[0], "finished")  # to be continued with more updates
    progress = SweepProgress(folders, done=2)
    write(folders[1], "running")
    progress.look()
    assert capsys.readouterr().out == "", "nothing has finished in this command"
    now[0] = 60.0
    write(folders[0], "finished", "finished")
    write(folders[1], "finished")
    progress.look()
    assert capsys.readouterr().out.splitlines() == ["run 3 of 5 done, about 2 min left", "run 4 of 5 done, about 30 s left"]
    with progress:
        write(folders[2], "failed", "finished")
    assert capsys.readouterr().out == "run 5 of 5 done\n"


def test_a_failed_run_is_not_left(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("esper.lab.sweep_progress.time.monotonic", lambda: now[0])
    folders = [tmp_path / name for name in "abc"]
    progress, now[0] = SweepProgress(folders, done=0), 60.0
    write(folders[0], "failed")
    progress.look()
    write(folders[1], "finished")
    progress.look()
    assert capsys.readouterr().out == "run 1 of 3 done, about 30 s left\n"
