"""Checkpoints: states come back exactly; damaged, foreign and malicious files are refused in one sentence."""

import hashlib
import io
import os
import pickle
import random
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch

from esper import checkpoint
from esper.checkpoint import CheckpointError, Checkpoints, load
from tests.checkpoint_help import STATE, assert_one_sentence, names


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


# ---- round trip


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
    restored = torch.nn.Linear(2, 2)
    restored.load_state_dict(state["net"])
    assert torch.equal(restored.weight, net.weight)
    torch.optim.Adam(restored.parameters()).load_state_dict(state["adam"])
    assert torch.equal(torch.Generator().set_state(state["noise"]).get_state(), noise.get_state())


def test_ordinary_tools_open_a_checkpoint(folder: Path) -> None:
    path = Checkpoints(folder).save(STATE, 3)
    for options in ({}, {"mmap": True}):
        assert torch.equal(torch.load(path, weights_only=True, **options)["half"], STATE["half"])
    with ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.comment.startswith(b"esper checkpoint 0003 ")


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


def test_saving_removes_half_written_files_and_leaves_others(folder: Path) -> None:
    folder.mkdir()
    (folder / "checkpoint_000002.pt.tmp").write_bytes(b"half")
    (folder / "notes.tmp").write_text("mine")
    Checkpoints(folder).save({}, 1)
    assert names(folder) == ["checkpoint_000001.pt", "notes.tmp"]


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
def test_values_that_need_pickle_are_refused_before_anything_is_written(
    folder: Path, state: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(CheckpointError) as error:
        Checkpoints(folder).save(state, 1)
    assert_one_sentence(error, *words)
    assert not folder.exists()


# ---- what is refused when loading


def test_a_missing_file_is_named(folder: Path) -> None:
    with pytest.raises(CheckpointError) as error:
        load(folder / "checkpoint_000001.pt")
    assert_one_sentence(error, "checkpoint_000001.pt", "there is no checkpoint")


def test_an_unreadable_file_is_named(folder: Path) -> None:
    folder.mkdir()
    with pytest.raises(CheckpointError) as error:
        load(folder)
    assert_one_sentence(error, str(folder), "cannot be read")


def test_files_cut_short_or_too_long_are_refused(folder: Path) -> None:
    path = Checkpoints(folder).save({"w": torch.arange(4.0)}, 1)
    whole = path.read_bytes()
    sizes = [*range(200), *range(200, len(whole), 17), *range(len(whole) - 90, len(whole))]
    for content in [*(whole[:size] for size in sizes), whole + b"\0"]:
        path.write_bytes(content)
        with pytest.raises(CheckpointError) as error:
            load(path)
        assert_one_sentence(error, path.name, "truncated", "use another one")


def test_flipped_bits_are_refused(folder: Path) -> None:
    """Every bit of the comment, and three hundred others; none is mistaken for another format."""
    path = Checkpoints(folder).save({"w": torch.arange(4.0)}, 1)
    whole = path.read_bytes()
    archive = whole.index(b"esper checkpoint 0003")
    rng = random.Random(0)
    for bit in [*(rng.randrange(8 * archive) for _ in range(300)), *range(8 * archive, 8 * len(whole))]:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="damaged") as error:
            load(path)
        assert_one_sentence(error, path.name)


def format_4(state: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setattr(checkpoint, "FORMAT", 4)
    content = checkpoint.encode(state)
    monkeypatch.undo()
    return content


def format_2(state: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> bytes:
    torch.save(state, buffer := io.BytesIO())
    content = buffer.getvalue()
    return f"esper checkpoint 0002 {hashlib.sha256(content).hexdigest()} {len(content):016d}\n".encode() + content


@pytest.mark.parametrize(("encode", "number"), [(format_2, 2), (format_4, 4)])
def test_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encode: Any, number: int) -> None:
    path = tmp_path / "checkpoint_000001.pt"
    path.write_bytes(encode({"w": torch.ones(3)}, monkeypatch))
    for read in (lambda: load(path), Checkpoints(tmp_path).latest):
        with pytest.raises(CheckpointError) as error:
            read()
        assert_one_sentence(error, path.name, f"has format {number} and this Esper reads format 3: use the version")


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
    """Even if its digest is right."""
    mark, path = tmp_path / "executed", tmp_path / "checkpoint_000001.pt"
    if wrap == "zip":
        content = checkpoint.encode({"w": Bomb(mark)})
    else:
        raw = pickle.dumps({"w": Bomb(mark)}, protocol=2)
        content = raw + b"esper checkpoint 0003 "
        content += hashlib.sha256(content).hexdigest().encode()
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as error:
        load(path)
    assert_one_sentence(error, path.name, "not loaded")
    assert not mark.exists()
    with suppress(RuntimeError):  # raised by the plain one after it went off
        torch.load(path, weights_only=False)
    assert mark.exists(), "the bomb is a dud, so this test showed nothing"


def test_a_file_without_a_state_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.save
    monkeypatch.setattr(torch, "save", lambda state, file: real([1], file))
    (tmp_path / "a.pt").write_bytes(checkpoint.encode({}))
    with pytest.raises(CheckpointError, match="holds no state"):
        load(tmp_path / "a.pt")


# ---- the newest is damaged


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_a_damaged_newest_checkpoint_is_skipped_with_a_warning(folder: Path) -> None:
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
        pytest.raises(
            CheckpointError,
            match=r"none of the 2 checkpoints in .* can be used \(.*2\.pt is truncated",
        ),
    ):
        checkpoints.latest()


@pytest.mark.parametrize("keep", [1, 2])
def test_checkpoints_of_an_abandoned_run_are_set_aside(folder: Path, keep: int) -> None:
    """Update 9 is damaged, the run resumes from 7, and its update 8 is then the newest."""
    checkpoints = Checkpoints(folder, keep=2)
    checkpoints.save({"u": 7}, 7)
    damage(checkpoints.save({"u": 9}, 9))
    resumed = Checkpoints(folder, keep=keep)
    resumed.save({"u": 8}, 8)
    assert resumed.latest() == folder / "checkpoint_000008.pt"
    kept = ["checkpoint_000007.pt", "checkpoint_000008.pt"][-keep:]
    assert names(folder) == [*kept, "checkpoint_000009.pt.aside"]
