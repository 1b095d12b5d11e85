"""Checkpoints that survive a kill at any instruction; a damaged checkpoint is never loaded.

A file is the zip archive that `torch.save` writes, so `torch.load` can open it, with this comment appended:

    esper checkpoint 0003 <sha256 of all bytes before this digest, 64 hex digits>

The digest covers every bit, so damage is always detected. Nothing is unpickled before the digest is verified, and then only
tensors and primitives.
"""

import hashlib
import io
import os
import re
import warnings
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from esper.files import FileError, disk, replace_file
from esper.memory import memory_shortage
from esper.notices import UserNotice
from esper.ranges import check_ranges

Value = TypeVar("Value")

FORMAT = 3
"""Version of the file format, incremented when older files can no longer be read.

1: until November 2026, with configs that have no groups `env`, `buffer` and `host`. 2: with a line of text before the archive.
"""

_COMMENT = re.compile(rb"esper checkpoint ([0-9]{4}) ([0-9a-f]{64})")
_COMMENT_BYTES = len(b"esper checkpoint 0003 ") + 64
_NAME = re.compile(r"checkpoint_([0-9]{6,})\.pt")
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_PRIMITIVES = (bool, int, float, str, bytes, type(None))


class CheckpointError(FileError):
    """A checkpoint cannot be used. The message is one sentence that names the file and the remedy."""


class CheckpointNotFoundError(CheckpointError):
    """A checkpoint that does not exist, or no longer."""


class FormatError(CheckpointError):
    """A checkpoint was written by another version of this program."""


@dataclass(kw_only=True, slots=True)
class CheckpointsConfig:
    """Which checkpoints of a run are kept, besides the one with the highest return."""

    keep: int = 2
    """Number of newest checkpoints to keep, at least 1. Higher: more disk space, and older states to return to."""

    def __post_init__(self) -> None:
        check_ranges("checkpoints", self, {"[1, inf]": ["keep"]})


class Checkpoints:
    """The checkpoints of one run, in one folder. Reading (`latest`, `load`) never changes the folder."""

    def __init__(self, folder: Path | str, keep: int = 2) -> None:
        """
        Args:
            folder: folder of the files, created by the first `save`.
            keep: number of newest checkpoints to keep, at least 1. Higher: more disk space, and older states to return to.
        """
        if keep < 1:
            raise ValueError(f"keep must be >= 1, got {keep}")
        self.folder = Path(folder)
        self.keep = keep

    def save(self, state: Mapping[str, Any], update: int, *, best: int | None = None) -> Path:
        """Save a state as the newest checkpoint; a crash at any instruction leaves it or the previous one intact.

        Checkpoints of later updates belong to an abandoned run; they are renamed to `*.aside`.

        Args:
            state: tensors, numbers, strings, bytes and None, in dicts, lists and tuples to any depth. A view is saved
                with its whole storage.
            update: number of completed updates, at least 0.
            best: update of a checkpoint to keep besides the newest.

        Raises:
            CheckpointError: the state holds something else; nothing was written.
            DiskError: writing failed; earlier checkpoints are intact.
        """
        refuse(state)
        content = encode(state)
        path = self.path(update)
        before = self.paths()
        intact = f"the previous {before[-1].name} is intact" if before else "there is no earlier checkpoint"
        with disk(f"save {path.name} in {self.folder}", intact):
            self.folder.mkdir(parents=True, exist_ok=True)
            for orphan in self.folder.glob("checkpoint_*.pt.tmp"):  # half-written by a killed run
                orphan.unlink()
            replace_file(path, content)
            self._retire(update, best)
        return path

    def _retire(self, update: int, best: int | None) -> None:
        """Set aside checkpoints later than `update`, and remove all but the newest `keep` and the best."""
        kept = [path for path in self.paths() if update_of(path) <= update]
        for later in self.paths()[len(kept) :]:
            os.replace(later, later.with_name(later.name + ".aside"))
        for old in kept[: -self.keep]:
            if update_of(old) != best:
                old.unlink()

    def path(self, update: int) -> Path:
        """Return the file of the checkpoint after an update."""
        return self.folder / f"checkpoint_{update:06d}.pt"

    def paths(self) -> list[Path]:
        """Return the files of all checkpoints, oldest update first, without checking them."""
        if not self.folder.is_dir():
            return []
        return sorted((path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)), key=update_of)

    def latest(self) -> Path | None:
        """Return the newest intact checkpoint, or None if there is none; warn about damaged ones.

        Raises:
            FormatError: the newest undamaged one was written by another version.
            CheckpointError: there are checkpoints, and each is damaged or unreadable.
        """
        paths, last = self.paths(), ""
        for path in reversed(paths):
            try:
                _verified(path.absolute())  # one warning, however the folder was named
            except FormatError:
                raise
            except CheckpointError as error:
                last = last or str(error).rpartition(": ")[0]
                warnings.warn(f"{str(error).rpartition(': ')[0]}; trying the previous checkpoint", UserNotice, stacklevel=2)
            else:
                return path
        if paths:
            raise CheckpointError(f"none of the {len(paths)} checkpoints in {self.folder} can be used ({last}): start a new run")
        return None


def load(path: Path | str) -> dict[str, Any]:
    """Return the state saved in a file, with tensors on the CPU.

    Raises:
        CheckpointError: the file is missing, unreadable, damaged, of another format, not a checkpoint, or holds more than
            tensors and primitives. No code in it is executed.
    """
    return _decoded(path, _verified(Path(path)))


def _decoded(path: Path | str, content: bytes) -> dict[str, Any]:
    """Return the state in the verified bytes of a file."""
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # the digest is right, so the content is the cause, or a lack of memory
        if memory_shortage(error) is not None:
            raise
        raise CheckpointError(
            f"{path} holds more than tensors and primitives and was not loaded, since that could execute "
            f"arbitrary code: use a checkpoint written by Esper"
        ) from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} holds no state: use a checkpoint written by Esper")
    return cast(dict[str, Any], state)


@contextmanager
def entries(path: Path | str) -> Generator[None]:
    """Turn an error while reading the entries of a loaded state, whose digest is right, into one sentence.

    Raises:
        CheckpointError: an entry is missing, or of another type, shape or dtype.
    """
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, RuntimeError) as error:
        if isinstance(error, ValueError) and type(error) is not ValueError:  # a sentence for the user
            raise
        what = f"it lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:200]
        remedy = "use a checkpoint written by this version of Esper"
        raise CheckpointError(f"{path} holds a state that does not fit ({what}): {remedy}") from error


_ENTRIES = {"config": dict, "update": int, **dict.fromkeys(("hparams", "agent", "buffer", "env", "watch"), dict)}
"""Entries of the state of a run, and their types."""


def load_run(path: Path | str) -> dict[str, Any]:
    """Return the state of a run saved in a file, as `load` does, after checking its entries.

    Raises:
        CheckpointError: the file cannot be used, or an entry is missing or of another type.
    """
    return load_run_and_digest(path)[0]


def load_run_and_digest(path: Path | str) -> tuple[dict[str, Any], str]:
    """Return the state of a run, as `load_run` does, and the digest that its bytes end with: a training that goes on may remove
    the file at any moment."""
    content = _verified(Path(path))
    state = _decoded(path, content)
    with entries(path):
        for parts, kinds in ((state, _ENTRIES), (state["config"], dict.fromkeys(("choices", "options", "values"), dict))):
            if wrong := next((name for name, kind in kinds.items() if type(parts[name]) is not kind), None):
                raise ValueError(f"its {wrong} is a {type(parts[wrong]).__name__}")
    return state, content[-64:].decode()


def retry_if_removed(read: Callable[[], Value]) -> Value:
    """Return what a function finds and loads, after a second call if its file vanished in between: a training that goes on
    removes all but its newest checkpoints.

    Raises:
        CheckpointNotFoundError: the file vanished again, or a file that was named never existed.
    """
    try:
        return read()
    except CheckpointNotFoundError:
        return read()


def update_of(path: Path) -> int:
    """Return the update in a checkpoint's file name."""
    match = _NAME.fullmatch(path.name)
    assert match is not None, f"{path.name} is not the name of a checkpoint"
    return int(match[1])


def digest_of(path: Path) -> str:
    """Return the digest that a checkpoint ends with."""
    with path.open("rb") as file:
        file.seek(-64, os.SEEK_END)
        return file.read().decode()


def encode(state: Mapping[str, Any]) -> bytes:
    """Return the bytes of a file. They are built and hashed in memory; the peak is several times the size of the state."""
    buffer = io.BytesIO()
    torch.save(_canonical(dict(state), {}), buffer)
    archive = buffer.getvalue()
    # A zip archive ends with the length of its comment, 0 so far, and the comment.
    content = archive[:-2] + _COMMENT_BYTES.to_bytes(2, "little") + f"esper checkpoint {FORMAT:04d} ".encode()
    return content + hashlib.sha256(content).hexdigest().encode()


def _canonical(value: Any, texts: dict[Any, Any]) -> Any:
    """Return a state in which equal texts are one object. Pickle writes each object once and then refers to it, so without
    this, a loaded state and an equal computed one would be written as different bytes."""
    kind = type(value)
    if kind in (str, bytes):
        return texts.setdefault(value, value)
    if kind in (dict, OrderedDict):
        copy = kind((_canonical(key, texts), _canonical(child, texts)) for key, child in value.items())
        if kind is OrderedDict:
            vars(copy).update(_canonical(vars(value), texts))  # the versions of a module's state
        return copy
    return kind(_canonical(child, texts) for child in value) if kind in (list, tuple) else value


def refuse(value: Any, where: str = "state") -> None:
    """Check that a state can be loaded without pickle.

    Raises:
        CheckpointError: a value needs pickle; the message gives its path of keys.
    """
    # Exact types: np.float64 is a float and an IntEnum an int by inheritance, and both need other code to load.
    kind = type(value)
    if kind in (dict, OrderedDict):
        for key, child in value.items():
            if type(key) not in (str, int):
                raise CheckpointError(f"{where} has the key {key!r} of type {type(key).__name__}: use str or int")
            refuse(child, f"{where}[{key!r}]")
    elif kind in (list, tuple):
        for index, child in enumerate(value):
            refuse(child, f"{where}[{index}]")
    elif kind in _TENSORS and value.device.type == "meta":
        raise CheckpointError(f"{where} is a tensor on the meta device, which has no data: materialise it first")
    elif kind not in _TENSORS and kind not in _PRIMITIVES:
        raise CheckpointError(
            f"{where} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold: "
            f"make it a tensor, number, string, bytes or None, or a dict, list or tuple of these"
        )


def _verified(path: Path) -> bytes:
    """Return the bytes of a file after verifying the digest in its comment."""
    try:
        with path.open("rb") as file:
            former = _COMMENT.match(file.read(_COMMENT_BYTES))  # until format 2, this was a header
            file.seek(max(0, file.seek(0, os.SEEK_END) - _COMMENT_BYTES))
            match = _COMMENT.fullmatch(file.read())
            file.seek(0)
            content = file.read() if match else b""
    except FileNotFoundError:
        raise CheckpointNotFoundError(f"there is no checkpoint {path}: name one that exists") from None
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({(error.strerror or str(error)).lower()}): use another one, or make it readable"
        ) from error
    if match and hashlib.sha256(content[:-64]).hexdigest() != match[2].decode():
        raise CheckpointError(f"{path} is damaged (its checksum differs): use the previous checkpoint")
    if (version := match or former) and int(version[1]) != FORMAT:
        raise FormatError(
            f"{path} has format {int(version[1])} and this Esper reads format {FORMAT}: use the version that wrote it"
        )
    if not match:
        raise CheckpointError(f"{path} is truncated, damaged or not a checkpoint of Esper: use another one")
    return content
