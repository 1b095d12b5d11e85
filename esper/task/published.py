"""Published image data sets: where their files lie, how they are read, and their download through torchvision."""

import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from filelock import FileLock
from torch import Tensor

from esper.seeding import stream
from esper.task.data import Data, TaskError, reading
from esper.task.images import AugmentedConfig, normalised, split_images

Bytes = npt.NDArray[np.uint8]
LOCK = ".download.lock"
"""File in `task.root` that a download locks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """One published form of a data set."""

    folder: str
    """Subfolder of `task.root` in which the files are unpacked; they may also lie in `task.root` itself."""
    train: tuple[str, ...]
    """Names of the files of the training images, in the order of the images; an ending may follow."""
    test: tuple[str, ...]


@dataclass(kw_only=True, slots=True)
class PublishedConfig(AugmentedConfig):
    """Fields of data sets that can be downloaded."""

    default_host: ClassVar[str] = "cnn_baseline"
    name: ClassVar[str]
    """Name in the random stream of the split."""
    num_classes: ClassVar[int] = 10
    versions: ClassVar[tuple[Version, ...]]
    """Forms in which the data set is read, the preferred one first. All hold the same images in the same order."""
    endings: ClassVar[tuple[str, ...]] = ("",)
    """What may follow the names of the files."""
    origin: ClassVar[str]
    """What to download by hand, for messages."""
    dataset: ClassVar[str]
    """Class in torchvision.datasets."""
    parts: ClassVar[tuple[Mapping[str, str], ...]] = ({},)
    """Arguments of that class, one download each."""

    root: str = "data"
    """Folder of the files, or its parent, if the archive or torchvision puts them into a subfolder."""
    download: bool = False
    """If true, files that are missing are downloaded to `root` through torchvision."""

    def load(self, context: int) -> Data:
        version, folder = self._located()
        (images, targets), test = self.read(folder, version.train), self.read(folder, version.test)
        held_out = len(targets) - len(targets) * 9 // 10
        order = stream(self.split_seed, f"{self.name}_split")
        return normalised(split_images(images, targets, [len(targets) - held_out, held_out], order, test, self.num_classes))

    def read(self, folder: Path, names: Iterable[str]) -> tuple[Tensor, Tensor]:
        """Read the byte images `[n, C, H, W]` and classes `[n]` of some files.

        Raises:
            TaskError: a file is missing or damaged.
        """
        parts: list[tuple[Bytes, Bytes]] = []
        for name in names:
            with reading(folder / name, self.remedy()):
                images, targets = self.read_file(folder / name)
                if len(images) != len(targets) or not len(images):
                    raise ValueError(f"it has {len(images)} images and {len(targets)} classes")
                self.check_classes(targets)
                parts.append((images, targets))
        images, targets = (np.concatenate(part) for part in zip(*parts, strict=True))
        return torch.from_numpy(images), torch.from_numpy(targets).long()

    def read_file(self, path: Path) -> tuple[Bytes, Bytes]:
        """Read the images `[n, C, H, W]` and classes `[n]` of one file.

        Raises:
            ValueError: the file is damaged.
            OSError: it cannot be read.
        """
        raise TypeError(f"{type(self).__name__} does not read files: define read_file(path)")

    def check_classes(self, targets: Bytes) -> None:
        """Raise ValueError if a class is not one of the data set's."""
        if targets.max() >= self.num_classes:
            raise ValueError(f"it has class {targets.max()}, and classes are 0 to {self.num_classes - 1}")

    def remedy(self) -> str:
        """Return what to do about a missing or damaged file."""
        return (
            f"add task.download=true, or download {self.origin} and set task.root to the folder of the files (delete a damaged "
            "file first, since only missing ones are downloaded; task=digits needs no download)"
        )

    def _located(self) -> tuple[Version, Path]:
        """Return the version to read and its folder, after a download if it is wanted and needed."""
        lock = Path(self.root, LOCK)
        if self.download and os.access(lock, os.W_OK):
            with FileLock(lock):  # wait for another process, whose download may have written half of a file
                pass
        found = self._complete()
        if found is None and self.download:
            self._fetch()
            found = self._complete()
        return found or self._found(any) or (self.versions[0], Path(self.root))

    def _complete(self) -> tuple[Version, Path] | None:
        """Return the first complete version and its folder; one outside the root only if the root has none of the files."""
        found = self._found(all)
        outside = found is not None and Path(found[0].folder).is_absolute()
        return None if outside and found != self._found(any) else found

    def _found(self, enough: Callable[[Iterable[bool]], bool]) -> tuple[Version, Path] | None:
        """Return the first version of which enough files are there, and their folder."""
        for version in self.versions:
            for folder in (Path(self.root), Path(self.root, version.folder)):
                names = (*version.train, *version.test)
                if enough(any((folder / f"{name}{ending}").is_file() for ending in self.endings) for name in names):
                    return version, folder
        return None

    def _fetch(self) -> None:
        """Download the data set; processes that share the folder wait for each other.

        Raises:
            TaskError: torchvision is missing or does not fit torch, or the download failed.
        """
        by_hand = f"download {self.origin} by hand and set task.root to the folder of the files"
        try:
            datasets: Any = importlib.import_module("torchvision.datasets")
        except (ImportError, RuntimeError, OSError) as error:  # RuntimeError: a GPU build beside a CPU build of torch
            raise TaskError(
                f"task.download=true needs torchvision, which cannot be imported ({_line(error)}): install the torchvision that "
                f"belongs to torch {torch.__version__}, or {by_hand}"
            ) from error
        try:
            Path(self.root).mkdir(parents=True, exist_ok=True)
            with FileLock(Path(self.root, LOCK)):
                for part in self.parts:
                    getattr(datasets, self.dataset)(self.root, download=True, **part)
        except (RuntimeError, OSError) as error:  # RuntimeError: the checksum of a file is wrong
            raise TaskError(
                f"task.download=true could not download {self.dataset} to {self.root} ({_line(error)}): check the network and "
                f"whether the folder can be written to, or {by_hand}"
            ) from error


def _line(error: Exception) -> str:
    """Return an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
