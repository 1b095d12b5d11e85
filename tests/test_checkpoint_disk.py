"""Checkpoints on a disk that fails, and in a process that is killed."""

import errno
import io
import os
import random
import signal
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from esper import checkpoint
from esper.checkpoint import Checkpoints, load, update_of
from esper.files import DiskError, write_whole
from tests.checkpoint_help import assert_one_sentence, names
from tests.forked import in_fork


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


# ---- failing disks


def fail_with(number: int) -> Any:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


class Unwritable(io.BytesIO):
    """A file that opens and takes nothing."""

    number = 0

    def write(self, data: Any) -> int:
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO, errno.EDQUOT])
def test_a_failure_of_any_call_leaves_the_checkpoint_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    checkpoints = Checkpoints(folder)
    checkpoints.save({"u": 1}, 1)
    monkeypatch.setattr(Unwritable, "number", number)
    if call in ("open", "write"):
        monkeypatch.setattr(Path, "open", fail_with(number) if call == "open" else lambda *_: Unwritable())
    else:
        monkeypatch.setattr(checkpoint.os, call, fail_with(number))
    with pytest.raises(DiskError) as error:
        checkpoints.save({"u": 2}, 2)
    monkeypatch.undo()
    assert_one_sentence(
        error,
        str(folder),
        os.strerror(number).lower(),
        "checkpoint_000002.pt",
        "the previous checkpoint_000001.pt is intact",
    )
    assert error.value.errno == number
    assert names(folder) == ["checkpoint_000001.pt"]
    assert load(folder / "checkpoint_000001.pt") == {"u": 1}
    checkpoints.save({"u": 2}, 2)


def test_an_interruption_leaves_nothing_half_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(folder)
    checkpoints.save({"u": 1}, 1)

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save({"u": 2}, 2)
    assert names(folder) == ["checkpoint_000001.pt"]


def test_bytes_and_names_reach_the_disk_in_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is synced, then renamed, then the folder is synced."""
    checkpoints = Checkpoints(folder)
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(descriptor: int) -> None:
        calls.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def watched_replace(source: Path, target: Path) -> None:
        calls.append("rename")
        replace(source, target)

    monkeypatch.setattr(checkpoint.os, "fsync", watched_fsync)
    monkeypatch.setattr(checkpoint.os, "replace", watched_replace)
    checkpoints.save({}, 1)
    assert calls == ["file", "rename", "folder"]


def test_a_file_system_that_cannot_sync_folders_is_enough(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(checkpoint.os, "fsync", fsync)
    assert load(Checkpoints(folder).save({"u": 1}, 1)) == {"u": 1}


def mount(folder: Path, options: str) -> None:
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a file system may not be mounted here: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a small file system needs Linux and root")
    mount(folder, "size=256k")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    checkpoints = Checkpoints(small_disk)
    checkpoints.save({"w": torch.ones(10_000)}, 1)
    with pytest.raises(DiskError) as error:
        checkpoints.save({"w": torch.ones(60_000)}, 2)
    assert_one_sentence(error, str(small_disk), "no space left", "free some space", "the previous checkpoint_000001.pt is intact")
    assert names(small_disk) == ["checkpoint_000001.pt"]
    assert load(small_disk / "checkpoint_000001.pt")["w"].sum() == 10_000
    checkpoints.save({"w": torch.ones(10_000)}, 2)


def test_a_read_only_file_system(small_disk: Path) -> None:
    Checkpoints(small_disk).save({"u": 1}, 1)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(DiskError) as error:
        Checkpoints(small_disk).save({"u": 2}, 2)
    assert_one_sentence(error, str(small_disk), "read-only file system", "choose a writable folder")
    assert load(small_disk / "checkpoint_000001.pt") == {"u": 1}


def test_a_folder_without_write_permission(tmp_path: Path) -> None:
    """In a fork without root's rights, since permission bits do not stop root."""
    Checkpoints(tmp_path).save({"u": 1}, 1)
    for parent in [tmp_path, *tmp_path.parents][:-1]:
        if not parent.stat().st_mode & 0o001 and os.geteuid() == 0:
            parent.chmod(parent.stat().st_mode | 0o011)

    def save() -> dict[str, Any]:
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        error = ""
        try:
            Checkpoints(tmp_path).save({"u": 2}, 2)
        except DiskError as refused:
            error = str(refused)
        return {"error": error, "kept": load(tmp_path / "checkpoint_000001.pt")}

    load(tmp_path / "checkpoint_000001.pt")  # imports what it needs, while it may read where that lies
    tmp_path.chmod(0o555)
    try:
        found = in_fork(save)
    finally:
        tmp_path.chmod(0o755)
    assert str(tmp_path) in found["error"]
    assert "permission denied; choose a writable folder" in found["error"]
    assert "\n" not in found["error"]
    assert found["kept"] == {"u": 1}


# ---- kill -9

KILLS = 15


def save_forever(folder: Path, first: int) -> None:
    checkpoints = Checkpoints(folder)
    for update in range(first, 10**6):
        checkpoints.save({"update": update, "w": torch.full((300_000,), float(update))}, update)


def kill_while_saving(folder: Path) -> dict[str, Any]:
    """Kill processes that save into a folder, and load what each leaves."""
    signal.alarm(120)  # a fork has no other limit
    warnings.simplefilter("error")  # a damaged newest checkpoint is only a warning elsewhere
    rng, halves, newest = random.Random(1), 0, 0
    for _ in range(KILLS):
        if (child := os.fork()) == 0:
            try:
                signal.alarm(60)  # it outlives no parent that is stopped
                save_forever(folder, newest + 1)
            finally:
                os._exit(1)
        # Killed after a whole save, so that each life leaves a newer checkpoint than the last.
        while not [path for path in Checkpoints(folder).paths() if update_of(path) > newest]:
            if os.waitpid(child, os.WNOHANG)[0]:
                raise RuntimeError("the saving process ended by itself")
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        halves += bool(list(folder.glob("*.tmp")))
        path = Checkpoints(folder).latest()
        assert path is not None
        state = load(path)
        assert state["update"] > newest
        assert bool((state["w"] == state["update"]).all()), path
        newest = state["update"]
    Checkpoints(folder).save({"update": newest + 1}, newest + 1)
    left = [path.name for path in folder.glob("*.tmp")]
    return {"newest": newest, "halves": halves, "kept": len(Checkpoints(folder).paths()), "left": left}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system that forks")
def test_killed_at_any_time_the_newest_checkpoint_is_whole(folder: Path) -> None:
    """Forked children save without end and are killed, 15 times."""
    folder.mkdir()
    report = in_fork(lambda: kill_while_saving(folder))
    assert report["newest"] >= KILLS
    assert report["halves"] > 0, "no kill hit a save that was under way, so this test showed nothing"
    assert report["kept"] == 2
    assert report["left"] == []


def test_a_small_file_is_replaced_atomically(tmp_path, monkeypatch):
    path = tmp_path / "design.json"
    write_whole(path, "old")
    with monkeypatch.context() as broken:
        broken.setattr(checkpoint.os, "replace", fail_with(errno.ENOSPC))
        with pytest.raises(DiskError, match=r"design\.json"):
            write_whole(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["design.json"]
    write_whole(path, "new")
    assert path.read_text() == "new"
