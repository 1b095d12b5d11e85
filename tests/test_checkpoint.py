"""Checkpoints: whole or refused, whatever the process, the disk or a stranger does."""

import errno
import hashlib
import io
import json
import os
import pickle
import random
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from esper import checkpoint
from esper.checkpoint import CheckpointError, Checkpoints, DiskError, load

STATE: dict[str, Any] = {
    "weights": {"w": torch.arange(6.0).reshape(2, 3), 7: torch.tensor([True, False])},
    "half": torch.ones(3, dtype=torch.bfloat16),
    "list": [1, (2.5, "three"), None, b"\x00\xff"],
    "big": 2**63 + 1,
    "flag": True,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_one_sentence(error: pytest.ExceptionInfo[BaseException], *words: str) -> None:
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


# ---- what comes back


def test_round_trip_keeps_values_types_and_keys(folder: Path) -> None:
    path = Checkpoints(folder).save(STATE, 3)
    assert path.name == "checkpoint_000003.pt"
    state = load(path)
    assert list(state) == list(STATE)
    assert torch.equal(state["weights"]["w"], STATE["weights"]["w"])
    assert state["weights"][7].dtype == torch.bool
    assert torch.equal(state["half"], STATE["half"])
    assert [type(value) for value in state["list"]] == [int, tuple, type(None), bytes]
    assert (state["list"], state["big"], state["flag"]) == (STATE["list"], STATE["big"], True)


def test_module_optimiser_and_generator_states_come_back(folder: Path) -> None:
    net = torch.nn.Linear(2, 2)
    adam = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    adam.step()
    noise = torch.Generator().manual_seed(5)
    path = Checkpoints(folder).save({"net": net.state_dict(), "adam": adam.state_dict(), "noise": noise.get_state()}, 1)
    state = load(path)
    again = torch.nn.Linear(2, 2)
    again.load_state_dict(state["net"])
    assert torch.equal(again.weight, net.weight)
    torch.optim.Adam(again.parameters()).load_state_dict(state["adam"])
    assert torch.equal(torch.Generator().set_state(state["noise"]).get_state(), noise.get_state())


def test_newest_are_kept_by_number_and_not_by_name(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep=2)
    for update in (0, 1, 999_999, 1_000_000):
        checkpoints.save({"u": update}, update)
    assert names(folder) == ["checkpoint_1000000.pt", "checkpoint_999999.pt"]
    latest = checkpoints.latest()
    assert latest is not None
    assert load(latest) == {"u": 1_000_000}


def test_saving_an_update_again_replaces_it(folder: Path) -> None:
    checkpoints = Checkpoints(folder)
    checkpoints.save({"u": 1}, 1)
    assert load(checkpoints.save({"u": 2}, 1)) == {"u": 2}
    assert names(folder) == ["checkpoint_000001.pt"]


def test_keep_below_one_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="keep must be >= 1, got 0"):
        Checkpoints(folder, keep=0)


def test_reading_changes_nothing(folder: Path) -> None:
    assert Checkpoints(folder).latest() is None
    assert not folder.exists()
    Checkpoints(folder).save({}, 1)
    (folder / "checkpoint_000002.pt.tmp").write_bytes(b"another process is writing this")
    assert Checkpoints(folder).latest() == folder / "checkpoint_000001.pt"
    assert (folder / "checkpoint_000002.pt.tmp").exists()


def test_orphans_go_at_the_start_and_other_files_stay(folder: Path) -> None:
    folder.mkdir()
    (folder / "checkpoint_000002.pt.tmp").write_bytes(b"half")
    (folder / "notes.tmp").write_text("mine")
    Checkpoints(folder).prepare()
    assert names(folder) == ["notes.tmp"]


# ---- what is refused when saving


class Colour(IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"a": {"b": [1, np.float64(2.0)]}}, ("state['a']['b'][1]", "numpy.float64")),
        ({"a": np.zeros(2)}, ("state['a']", "numpy.ndarray")),
        ({"a": (1, Colour.RED)}, ("state['a'][1]", "Colour")),
        ({"a": {1, 2}}, ("state['a']", "set")),
        ({"a": SimpleNamespace()}, ("state['a']", "SimpleNamespace")),
        ({"a": {(1, 2): 3}}, ("state['a']", "(1, 2)")),
        ({"a": torch.empty(2, device="meta")}, ("state['a']", "meta")),
    ],
)
def test_what_could_not_come_back_is_refused_before_anything_is_written(
    folder: Path, state: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(CheckpointError) as error:
        Checkpoints(folder).save(state, 1)
    assert_one_sentence(error, *words)
    assert not folder.exists()


# ---- what is refused when loading


def test_missing(folder: Path) -> None:
    with pytest.raises(CheckpointError) as error:
        load(folder / "checkpoint_000001.pt")
    assert_one_sentence(error, "checkpoint_000001.pt", "there is no checkpoint")


def test_unreadable(folder: Path) -> None:
    folder.mkdir()
    with pytest.raises(CheckpointError) as error:
        load(folder)
    assert_one_sentence(error, str(folder), "cannot be read")


def test_truncations_are_refused(folder: Path) -> None:
    path = Checkpoints(folder).save({"w": torch.arange(4.0)}, 1)
    whole = path.read_bytes()
    for size in [*range(200), *range(200, len(whole), 17), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError) as error:
            load(path)
        assert_one_sentence(error, path.name, "use")
    assert "truncated" in str(error.value)
    path.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointError, match="too long"):
        load(path)


def test_flipped_bits_are_refused(folder: Path) -> None:
    """Every bit of the header, and three hundred others."""
    path = Checkpoints(folder).save({"w": torch.arange(4.0)}, 1)
    whole = path.read_bytes()
    header = whole.index(b"\n") + 1
    rng = random.Random(0)
    bits = [*range(8 * header), *(rng.randrange(8 * header, 8 * len(whole)) for _ in range(300))]
    for bit in bits:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError) as error:
            load(path)
        assert_one_sentence(error, path.name)


def test_another_format_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    path = Checkpoints(folder).save({}, 1)
    monkeypatch.undo()
    with pytest.raises(CheckpointError) as error:
        load(path)
    assert_one_sentence(error, path.name, "format 2", "format 1")


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"w": torch.ones(1)}, path)
    with pytest.raises(CheckpointError) as error:
        load(path)
    assert_one_sentence(error, "model.pt", "not a checkpoint")


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("wrap", ["zip", "plain pickle"])
def test_a_malicious_pickle_is_not_executed(tmp_path: Path, wrap: str) -> None:
    """Also where its header is right, as a stranger can make one."""
    mark, path = tmp_path / "executed", tmp_path / "checkpoint_000001.pt"
    if wrap == "zip":
        content = checkpoint.encode({"w": Bomb(mark)})
    else:
        raw = pickle.dumps({"w": Bomb(mark)}, protocol=2)
        content = f"esper checkpoint 0001 {hashlib.sha256(raw).hexdigest()} {len(raw):016d}\n".encode() + raw
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as error:
        load(path)
    assert_one_sentence(error, path.name, "not loaded")
    assert not mark.exists()
    with suppress(RuntimeError):  # what the plain one raises after it went off
        torch.load(io.BytesIO(path.read_bytes().partition(b"\n")[2]), weights_only=False)
    assert mark.exists(), "the bomb is a dud, so this test showed nothing"


def test_a_content_that_is_no_state_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.save
    monkeypatch.setattr(torch, "save", lambda state, file: real([1], file))
    (tmp_path / "a.pt").write_bytes(checkpoint.encode({}))
    with pytest.raises(CheckpointError, match="holds no state"):
        load(tmp_path / "a.pt")


# ---- the newest is damaged


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_a_damaged_newest_is_named_and_the_one_before_is_used(folder: Path) -> None:
    checkpoints = Checkpoints(folder)
    checkpoints.save({"u": 1}, 1)
    damage(checkpoints.save({"u": 2}, 2))
    with pytest.warns(UserWarning, match=r"checkpoint_000002\.pt is truncated"):
        assert checkpoints.latest() == folder / "checkpoint_000001.pt"


def test_all_damaged_is_an_error(folder: Path) -> None:
    checkpoints = Checkpoints(folder)
    damage(checkpoints.save({}, 1))
    damage(checkpoints.save({}, 2))
    with (
        pytest.warns(UserWarning, match="truncated"),
        pytest.raises(CheckpointError, match=r"none of the 2 checkpoints in .* is whole"),
    ):
        checkpoints.latest()


@pytest.mark.parametrize("keep", [1, 2])
def test_a_given_up_future_is_set_aside_and_costs_no_good_checkpoint(folder: Path, keep: int) -> None:
    """Update 9 was damaged and the run went on from 7: its 8 is now the newest."""
    checkpoints = Checkpoints(folder, keep=2)
    checkpoints.save({"u": 7}, 7)
    damage(checkpoints.save({"u": 9}, 9))
    again = Checkpoints(folder, keep=keep)
    again.save({"u": 8}, 8)
    assert again.latest() == folder / "checkpoint_000008.pt"
    kept = ["checkpoint_000007.pt", "checkpoint_000008.pt"][-keep:]
    assert names(folder) == [*kept, "checkpoint_000009.pt.aside"]


# ---- the disk refuses


def refuse_with(number: int) -> Any:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO, errno.EDQUOT])
def test_a_refusal_at_any_call_leaves_the_checkpoint_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    checkpoints = Checkpoints(folder)
    checkpoints.save({"u": 1}, 1)
    monkeypatch.setattr(checkpoint.os, call, refuse_with(number))
    with pytest.raises(DiskError) as error:
        checkpoints.save({"u": 2}, 2)
    monkeypatch.undo()
    assert_one_sentence(
        error,
        str(folder),
        os.strerror(number).lower(),
        "checkpoint_000002.pt",
        "checkpoint_000001.pt from before is intact",
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


def test_short_writes_are_completed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(checkpoint.os, "write", lambda fd, data: real(fd, bytes(data[:100])))
    assert torch.equal(load(Checkpoints(folder).save(STATE, 1))["half"], STATE["half"])


def test_bytes_and_names_reach_the_disk_in_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File synced, then renamed, then the folder synced: with no power cut at hand, the order of calls is the test."""
    checkpoints = Checkpoints(folder)
    checkpoints.prepare()
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


def test_a_file_system_that_cannot_sync_folders_will_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    checkpoints = Checkpoints(small_disk)
    checkpoints.save({"w": torch.ones(10_000)}, 1)
    with pytest.raises(DiskError) as error:
        checkpoints.save({"w": torch.ones(60_000)}, 2)
    assert_one_sentence(error, str(small_disk), "no space left", "free some space", "checkpoint_000001.pt from before is intact")
    assert names(small_disk) == ["checkpoint_000001.pt"]
    assert load(small_disk / "checkpoint_000001.pt")["w"].sum() == 10_000
    checkpoints.save({"w": torch.ones(10_000)}, 2)


def test_a_file_system_that_is_really_read_only(small_disk: Path) -> None:
    Checkpoints(small_disk).save({"u": 1}, 1)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(DiskError) as error:
        Checkpoints(small_disk).save({"u": 2}, 2)
    assert_one_sentence(error, str(small_disk), "read-only file system", "choose a folder")
    assert load(small_disk / "checkpoint_000001.pt") == {"u": 1}


READ_ONLY = """
import os, sys
from pathlib import Path
from esper.checkpoint import Checkpoints, DiskError, load
folder = Path(sys.argv[1])
load(folder / "checkpoint_000001.pt")  # imports what it needs, while it may read where that lies
if os.geteuid() == 0:
    os.setgid(65534); os.setuid(65534)
try:
    Checkpoints(folder).save({"u": 2}, 2)
except DiskError as error:
    print(error)
print(load(folder / "checkpoint_000001.pt"))
"""


def test_a_folder_that_one_may_really_not_write_to(tmp_path: Path) -> None:
    """In a process without root's rights, which permission bits do not stop."""
    Checkpoints(tmp_path).save({"u": 1}, 1)
    for parent in [tmp_path, *tmp_path.parents][:-1]:
        if not parent.stat().st_mode & 0o001 and os.geteuid() == 0:
            parent.chmod(parent.stat().st_mode | 0o011)
    tmp_path.chmod(0o555)
    try:
        done = subprocess.run([sys.executable, "-c", READ_ONLY, tmp_path], capture_output=True, text=True, timeout=60)
    finally:
        tmp_path.chmod(0o755)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    assert str(tmp_path) in lines[0]
    assert "permission denied; choose a folder" in lines[0]
    assert lines[1] == "{'u': 1}"


# ---- kill -9

KILLS = 15
HARNESS = """
import json, os, random, signal, sys, time, warnings
from pathlib import Path
import torch
from esper.checkpoint import Checkpoints, load, update_of

torch.set_num_threads(1)
warnings.simplefilter("error")  # a damaged newest checkpoint is only a warning elsewhere
folder, kills, rng, halves, newest = Path(sys.argv[1]), int(sys.argv[2]), random.Random(1), 0, 0

def forever(first):
    checkpoints = Checkpoints(folder)
    for update in range(first, 10**6):
        checkpoints.save({"update": update, "w": torch.full((300_000,), float(update))}, update)

for kill in range(kills):
    child = os.fork()
    if child == 0:
        try:
            forever(newest + 1)
        finally:
            os._exit(1)
    # Killed after a whole save, so that each life leaves a newer checkpoint than the last.
    while not [path for path in Checkpoints(folder).paths() if update_of(path) > newest]:
        if os.waitpid(child, os.WNOHANG)[0]:
            sys.exit("the saving process ended by itself")
        time.sleep(0.001)
    time.sleep(rng.uniform(0, 0.05))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    halves += bool(list(folder.glob("*.tmp")))
    path = Checkpoints(folder).latest()
    state = load(path)
    assert state["update"] > newest and bool((state["w"] == state["update"]).all()), path
    newest = state["update"]
Checkpoints(folder).save({"update": newest + 1}, newest + 1)
assert len(Checkpoints(folder).paths()) == 2
print(json.dumps({"newest": newest, "halves": halves, "left": [p.name for p in folder.glob("*.tmp")]}))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system that forks")
def test_killed_at_any_time_the_newest_checkpoint_is_whole(folder: Path) -> None:
    """One process that has loaded torch, and children of it that save without end and are killed, 15 times."""
    folder.mkdir()
    command = [sys.executable, "-c", HARNESS, str(folder), str(KILLS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["newest"] >= KILLS
    assert report["halves"] > 0, "no kill hit a save that was under way, so this test showed nothing"
    assert report["left"] == []
