"""Folders of runs: names of their own, one writer at a time, and the record of every process."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from esper.config import ConfigError
from esper.files import DiskError
from esper.training import provenance, run_folder
from esper.training.provenance import Provenance, code_version, read
from esper.training.resume import check_data
from esper.training.run_folder import create, new_folder, only_writer, writing_reports
from esper.training.trainer import Trainer
from tests.forked import run_forked
from tests.training.small_run import config

HOLDER = """
import sys, time
from pathlib import Path
from filelock import FileLock
with FileLock(Path(sys.argv[1]) / ".lock"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path):
    """Another process that writes into the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_new_folders_are_never_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent, made = str(tmp_path / "single"), []
    for _ in range(3):  # three processes that start in the same second
        monkeypatch.setattr(run_folder, "_new", {parent: tmp_path / "single/2026-01-01_00-00-00"})
        made.append(create(Path(new_folder(parent))))
        assert str(made[-1]) == new_folder(parent)
    assert [folder.name for folder in made] == [f"2026-01-01_00-00-00{suffix}" for suffix in ("", "_2", "_3")]
    assert all(folder.is_dir() for folder in made)


def test_a_folder_of_the_user_is_left_alone(tmp_path: Path) -> None:
    assert create(tmp_path / "mine") == tmp_path / "mine"
    assert not (tmp_path / "mine").exists()


def test_a_folder_has_one_writer(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(ConfigError, match=f"another process is writing into {tmp_path}: wait until it ends"):
        Trainer(config(), tmp_path).run()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with only_writer(tmp_path), only_writer(tmp_path):
        pass


def test_reports_wait_for_each_other_and_not_for_training(tmp_path: Path) -> None:
    order: list[str] = []

    def report() -> None:
        with writing_reports(tmp_path):
            order.append("second")

    with only_writer(tmp_path), writing_reports(tmp_path):
        other = threading.Thread(target=report)
        other.start()
        other.join(0.3)
        order.append("first")
    other.join(10)
    assert order == ["first", "second"]


def test_two_commands_cannot_share_a_folder(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    root = Path(__file__).parents[2]
    done = run_forked("esper.train", "env=sandbox", "agent=random", f"hydra.run.dir={tmp_path}", cwd=root)
    assert done.returncode == 2
    assert done.stderr.startswith("esper: another process is writing into ")
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_provenance_keeps_every_process(tmp_path: Path) -> None:
    first = Provenance(tmp_path, 0, {"cpu": "a processor"})
    with first:
        first.save(2)
        assert read(tmp_path / provenance.FILE)[0]["status"] == "running"
    first.__exit__(RuntimeError)
    with Provenance(tmp_path, 2, {"cpu": "a processor"}) as second:
        second.save(5)
    records = json.loads((tmp_path / provenance.FILE).read_text())
    assert [(r["first_update"], r["updates"], r["status"]) for r in records] == [(0, 2, "failed"), (2, 5, "finished")]
    assert records[0]["libraries"]["torch"].startswith("2.")
    assert records[0]["wall_seconds"] >= 0
    for content in ("[{]", "[null]", '[{"plan": 1}]', '[{"esper": "1.0"}]', "[" * 100_000):
        (tmp_path / provenance.FILE).write_text(content)
        with pytest.raises(ConfigError, match=r"run.json is damaged"):
            Provenance(tmp_path, 5, {"cpu": "a processor"})


def test_the_code_version_names_the_commit_of_this_checkout_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = Path(provenance.__file__).parents[1]
    found = code_version.__wrapped__()
    if (package.parent / ".git").exists():
        head = subprocess.run(["git", "-C", str(package), "rev-parse", "HEAD"], capture_output=True, text=True).stdout
        assert found["commit"] == head.strip()
        assert isinstance(found["changed"], bool)
    # Installed into somebody else's repository, it has no commit.
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    place = tmp_path / "site-packages/esper/training"
    place.mkdir(parents=True)
    monkeypatch.setattr(provenance, "__file__", str(place / "provenance.py"))
    assert code_version.__wrapped__()["commit"] is None


def test_a_run_resumes_on_the_same_data_only() -> None:
    check_data({"hparams": {"data": "a"}}, {"data": "a"})
    check_data({"hparams": {}}, {"data": "a"})
    with pytest.raises(ConfigError, match=r"other data \(fingerprint a, now b\)"):
        check_data({"hparams": {"data": "a"}}, {"data": "b"})


@pytest.mark.parametrize(
    ("written", "kept"), [([], False), (["multirun.yaml"], False), (["multirun.yaml", "0/metrics.jsonl"], True)]
)
def test_a_new_folder_stays_only_if_a_run_has_begun_in_it(tmp_path: Path, written: list[str], kept: bool) -> None:
    folder = tmp_path / "sweep"
    with only_writer(folder):
        for name in written:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).touch()
        (folder / "1").mkdir()  # Hydra's
    assert folder.exists() == kept


def test_a_folder_that_cannot_be_written_to_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int) -> None:
        def fail(**_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("esper.training.run_folder.TemporaryFile", fail)

    refuse(errno.EROFS)
    copied = rf"cannot write into {tmp_path}: read-only file system; copy it to where you can write, as in cp -r {tmp_path} \."
    with pytest.raises(DiskError, match=copied), writing_reports(tmp_path):
        pass
    refuse(errno.ENOSPC)
    with pytest.raises(DiskError, match=r"free some space$"), writing_reports(tmp_path):
        pass
