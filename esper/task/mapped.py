"""Arrays in a temporary file instead of memory, for data sets that exceed it."""

import os
from collections.abc import Iterable
from tempfile import TemporaryFile, gettempdir
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.files import disk
from esper.task.data import TaskError


def joined(parts: Iterable[npt.NDArray[Any]], *, mapped: bool) -> Tensor:
    """Return the parts, at least one, concatenated along their first axis.

    Args:
        parts: arrays of one type, and of equal shapes except for the first axis.
        mapped: if true, they are written to a file without a name, in the folder that the variable TMPDIR names, as they come.
            The file vanishes with the tensor.
    """
    if not mapped:
        return torch.from_numpy(np.concatenate(list(parts)))
    chosen, folder = os.environ.get("TMPDIR"), gettempdir()
    if chosen and not os.path.samefile(folder, chosen if os.path.isdir(chosen) else os.devnull):
        raise TaskError(f"TMPDIR={chosen} is not a folder in which files can be written: make it, or set another")
    rows, last = 0, np.empty(0)
    with disk(f"write the mapped data to {folder}", "set TMPDIR to a folder with more room"), TemporaryFile() as file:
        for last in parts:
            file.write(np.ascontiguousarray(last).data)
            rows += len(last)
        file.flush()
        return torch.from_numpy(np.memmap(file, last.dtype, "r+", shape=(rows, *last.shape[1:])))
