"""Files of a run: written whole or not at all, with errors that name the remedy."""

import errno
import hashlib
import json
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Numbers of the errors of a full disk."""


READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Numbers of the errors of a folder that may not be written to."""


class FileError(ValueError):
    """A file of a run is damaged. The message is one sentence that names the file and the remedy."""


class DiskError(OSError):
    """A failed disk operation. The message is one sentence: what failed, why, and the remedy."""

    def __init__(self, doing: str, cause: OSError, remedy: str = "") -> None:
        reason = (cause.strerror or str(cause)).lower()
        super().__init__(f"cannot {doing}: {reason}; {remedy or _remedy(cause.errno)}")
        self.errno = cause.errno


def _remedy(number: int | None) -> str:
    if number in FULL:
        return "free some space"
    if number in READ_ONLY:
        return "choose a writable folder"
    if number == errno.ENOENT:
        return "restore the folder, or start a new run"
    if number in (errno.EEXIST, errno.ENOTDIR):
        return "choose a folder whose path has no file in it"
    return "check the disk"


@contextmanager
def disk(doing: str, outcome: str = "") -> Generator[None]:
    """Turn an OSError into a DiskError that names the operation and, if given, the outcome."""
    try:
        yield
    except DiskError:
        raise
    except OSError as error:
        raise DiskError(doing, error, f"{_remedy(error.errno)}; {outcome}" if outcome else "") from error


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically: flush it to disk under another name, rename it, and flush the folder."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with suppress(OSError):  # gone after the rename; else the first error is the one to report
            temporary.unlink()
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # otherwise a power cut can undo the rename
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # network file systems that cannot sync a folder
            raise
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a small file atomically: after a kill, the file is as before or complete.

    Raises:
        DiskError: writing failed.
    """
    with disk(f"write {path}"):
        replace_file(path, content if isinstance(content, bytes) else content.encode())


def fingerprint(value: Any) -> str:
    """Return the SHA-256 of a value as JSON with sorted keys, as sha256sum prints it."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
