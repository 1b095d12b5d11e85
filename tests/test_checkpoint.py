"""Checkpoints: whole or refused, whatever the process, the disk or a stranger does."""

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

import numpy as np
import pytest
import torch

from esper import checkpoint
from esper.checkpoint import CheckpointError, Checkpoints, load
from tests.checkpoint_help import STATE, assert_one_sentence, names


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


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
    monkeypatch.setattr(checkpoint, "FORMAT", 1)
    path = Checkpoints(folder).save({}, 1)
    monkeypatch.undo()
    with pytest.raises(CheckpointError) as error:
        load(path)
    assert_one_sentence(error, path.name, "format 1", "format 2")
    with pytest.raises(CheckpointError, match="has format 1 and this Esper reads format 2"):  # and is not called damaged
        Checkpoints(folder).latest()


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
        content = f"esper checkpoint 0002 {hashlib.sha256(raw).hexdigest()} {len(raw):016d}\n".encode() + raw
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
