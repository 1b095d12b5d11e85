"""CIFAR-10 and CIFAR-100: 60,000 images of 32x32 pixels in three colours, from the Python or the binary version.

The Python version holds pickled dicts of arrays. A binary file holds records: one class in CIFAR-10, a coarse and a fine class in
CIFAR-100, then 1,024 bytes each of red, green and blue. A tenth of the training images is held out for validation.

Nine presets of CIFAR-10 differ in the host and its slots. None has been benchmarked: no package ships the data sets, and the
tests of the loader write files of their own.
"""

import codecs
import math
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from esper.task.published import Bytes, PublishedConfig, Version

PIXELS = (3, 32, 32)
BATCHES = tuple(f"data_batch_{part}" for part in range(1, 6))
RECORDS = {f"{name}.bin": 10_000 for name in (*BATCHES, "test_batch", "test")} | {"train.bin": 50_000}
"""Records of each binary file."""
SAFE = {
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): codecs.encode,
}
"""All that a pickled array needs. Other names in a pickle could run any code."""


class _Unpickler(pickle.Unpickler):
    """A reader of pickled arrays that refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in SAFE:
            raise ValueError(f"it holds {module}.{name}, and only arrays are read")
        return SAFE[module, name]


def read_pickle(path: Path, labels: str) -> tuple[Bytes, Bytes]:
    """Read a file of the Python version; `labels` is the key of the classes.

    Raises:
        ValueError: the file is damaged.
    """
    with path.open("rb") as file:
        try:
            batch: Any = _Unpickler(file, encoding="latin1").load()
            return np.asarray(batch["data"], np.uint8).reshape(-1, *PIXELS), np.asarray(batch[labels], np.uint8)
        except Exception as error:  # a damaged pickle raises all kinds of errors
            raise ValueError(str(error) or type(error).__name__) from error


def read_binary(path: Path, classes: int) -> tuple[Bytes, Bytes]:
    """Read a file of the binary version, with `classes` labels before each image, of which the last is used."""
    records = np.fromfile(path, dtype=np.uint8).reshape(RECORDS[path.name], classes + math.prod(PIXELS))
    return records[:, classes:].reshape(-1, *PIXELS), records[:, classes - 1]


@dataclass(kw_only=True, slots=True)
class Cifar10Config(PublishedConfig):
    """CIFAR-10, split 45,000 / 5,000 / 10,000, with healthy hosts. Standard kinds: [ooo,xoo,oxx] or [oo,xo,ox]."""

    name: ClassVar[str] = "cifar10"
    dataset: ClassVar[str] = "CIFAR10"
    origin: ClassVar[str] = "and unpack cifar-10-python.tar.gz or cifar-10-binary.tar.gz from the data set's page"
    versions: ClassVar[tuple[Version, ...]] = (
        Version(folder="cifar-10-batches-py", train=BATCHES, test=("test_batch",)),
        Version(folder="cifar-10-batches-bin", train=tuple(f"{name}.bin" for name in BATCHES), test=("test_batch.bin",)),
    )
    labels: ClassVar[str] = "labels"
    """Key of the classes in the Python version."""
    leading: ClassVar[int] = 1
    """Classes before each image in the binary version."""

    crop_padding: int = 4
    flip: bool = True

    def read_file(self, path: Path) -> tuple[Bytes, Bytes]:
        return read_binary(path, self.leading) if path.suffix else read_pickle(path, self.labels)


@dataclass(kw_only=True, slots=True)
class Cifar100Config(Cifar10Config):
    """CIFAR-100, with its 100 fine classes, split 45,000 / 5,000 / 10,000. Standard kinds: [ooo,xoo,oxx] or [oo,xo,ox]."""

    name: ClassVar[str] = "cifar100"
    dataset: ClassVar[str] = "CIFAR100"
    origin: ClassVar[str] = "and unpack cifar-100-python.tar.gz or cifar-100-binary.tar.gz from the data set's page"
    num_classes: ClassVar[int] = 100
    versions: ClassVar[tuple[Version, ...]] = (
        Version(folder="cifar-100-python", train=("train",), test=("test",)),
        Version(folder="cifar-100-binary", train=("train.bin",), test=("test.bin",)),
    )
    labels: ClassVar[str] = "fine_labels"
    leading: ClassVar[int] = 2
