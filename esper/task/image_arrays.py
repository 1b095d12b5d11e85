"""Images of your own in a NumPy file: an `.npz` archive of images and classes, by the names that data sets commonly use."""

# n images, H, W height and width, C channels

import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from esper.seeding import stream
from esper.task.data import Data, TaskError, reading
from esper.task.images import AugmentedConfig, normalised
from esper.task.regression import shares

Array = npt.NDArray[Any]
SETS = {"train": ("train",), "valid": ("valid", "val"), "test": ("test",)}
"""Set -> its names in a file."""
COLOURS = (1, 3, 4)
"""Numbers of channels by which images whose channels come last are told."""
INPUTS, CLASSES = ("x", "images"), ("y", "labels")
"""Names of images and classes."""
NAMES = "x and y, or train_x, train_y, test_x and test_y (also x_train, or train_images and train_labels)"
"""Arrays of a file, in words."""


@dataclass(kw_only=True, slots=True)
class ImageArraysConfig(AugmentedConfig):
    """Images of your own in an .npz file, with healthy hosts. Standard kinds: [ooo,xoo,oxx] or [oo,xo,ox]."""

    default_host: ClassVar[str] = "cnn_pooled"

    file: str = "data/images.npz"
    """File of NumPy with images `x` and classes `y`, split 60 / 20 / 20 %; or with `train_x`, `train_y`, `test_x` and `test_y`,
    and with `valid_x` and `valid_y` or a tenth of the training images. Names as `x_train`, and as `train_images`, `val_labels`,
    are read too. Images are `[n, H, W]`, `[n, C, H, W]` or `[n, H, W, C]`, bytes or numbers; classes are numbers or text."""
    batch_size: int = 32

    def load(self, context: int) -> Data:
        path, rng = Path(self.file), stream(self.split_seed, "image_arrays_split")
        with reading(path, f"set task.file to an .npz file with {NAMES}"):
            arrays = _arrays(path)
        sets = {part: found for part in SETS if (found := _find(arrays, part))}
        if "train" not in sets and (whole := _pair(arrays, INPUTS, CLASSES)):
            images, classes = (np.asarray(one) for one in self._checked("the file", *whole))
            chosen = shares(len(classes), rng, f"task.file={self.file}")
            sets = {part: (images[rows], classes[rows]) for part, rows in chosen.items()}
        elif {"train", "test"} <= sets.keys():
            sets = {part: self._checked(part, *pair) for part, pair in sets.items()}
            order = rng.permutation(len(sets["train"][1]))
            tenth = 0 if "valid" in sets else max(1, round(len(order) / 10))
            images, classes = sets["train"]
            sets |= {"valid": (images[order[:tenth]], classes[order[:tenth]])} if tenth else {}
            sets["train"] = images[order[tenth:]], classes[order[tenth:]]
        else:
            raise TaskError(f"task.file={self.file} has the arrays {', '.join(arrays) or 'none'}, and needs {NAMES}: rename them")
        kinds = np.unique(sets["train"][1])
        for part, (_, classes) in sets.items():
            if len(unknown := np.setdiff1d(classes, kinds)):
                raise TaskError(
                    f"task.file={self.file}: the {part} set has class {unknown[0]}, of which there is no training image: "
                    "add some, or remove it"
                )
        if len(kinds) < 2:
            raise TaskError(f"task.file={self.file} has one class, and learning needs two: check its classes")
        return _data({part: (images, np.searchsorted(kinds, classes)) for part, (images, classes) in sets.items()}, len(kinds))

    def _checked(self, part: str, images: Array, classes: Array) -> tuple[Array, Array]:
        """Return images `[n, C, H, W]` and classes `[n]`.

        Raises:
            TaskError: they are of other shapes or types.
        """
        where = f"task.file={self.file}: {part} has"
        if images.ndim == 3:
            images = images[:, None]
        elif images.ndim == 4 and images.shape[3] in COLOURS and images.shape[1] not in COLOURS:
            images = images.transpose(0, 3, 1, 2)
        if images.ndim != 4:
            raise TaskError(
                f"{where} images of shape {list(images.shape)}, not [n, H, W], [n, C, H, W] or [n, H, W, C]: reshape them; "
                "for rows of numbers use task=table_classes"
            )
        if images.dtype.kind not in "uif" or (images.dtype.kind == "f" and not np.isfinite(images).all()):
            raise TaskError(f"{where} images of type {images.dtype} or with values that are not finite: give finite numbers")
        classes = classes[:, 0] if classes.ndim == 2 and classes.shape[1] == 1 else classes
        if classes.shape != images.shape[:1]:
            raise TaskError(f"{where} {len(images)} images and classes of shape {list(classes.shape)}: give one class per image")
        if not len(classes):
            raise TaskError(f"{where} no images: add some")
        if classes.dtype.kind not in "biuSU" and not (classes.dtype.kind == "f" and (classes % 1 == 0).all()):
            raise TaskError(f"{where} classes of type {classes.dtype} that are no whole numbers: give whole numbers or text")
        return images, classes


def _arrays(path: Path) -> dict[str, Array]:
    """Return the arrays of an archive by name.

    Raises:
        ValueError: the file is no archive of plain arrays.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (TypeError, AttributeError, zipfile.BadZipFile) as error:  # a single array, or a cut archive
        raise ValueError("it is no .npz archive") from error


def _find(arrays: dict[str, Array], part: str) -> tuple[Array, Array] | None:
    """Return the images and classes of a set, if both are there."""
    for name in SETS[part]:
        for pattern in ("{0}_{1}", "{1}_{0}"):
            names = ([pattern.format(name, one) for one in several] for several in (INPUTS, CLASSES))
            if found := _pair(arrays, *names):
                return found
    return None


def _pair(arrays: dict[str, Array], inputs: Iterable[str], classes: Iterable[str]) -> tuple[Array, Array] | None:
    """Return the first arrays of either kind, if both are there."""
    x, y = (next((arrays[name] for name in names if name in arrays), None) for names in (inputs, classes))
    return None if x is None or y is None else (x, y)


def _data(sets: dict[str, tuple[Array, Array]], num_classes: int) -> Data:
    """Return the sets, scaled by each channel of the training images; bytes stay bytes."""
    tensors: dict[str, Any] = {}
    for part, (images, classes) in sets.items():
        tensors[f"{part}_x"] = torch.from_numpy(np.ascontiguousarray(images))
        tensors[f"{part}_y"] = torch.from_numpy(classes.astype(np.int64))
    if all(tensors[f"{part}_x"].dtype == torch.uint8 for part in SETS):
        return normalised(Data(**tensors, num_classes=num_classes))
    inputs = {part: tensors[f"{part}_x"].double() for part in SETS}
    std, mean = torch.std_mean(inputs["train"], (0, 2, 3), correction=0, keepdim=True)
    tensors |= {f"{part}_x": ((x - mean) / std.clamp(min=1e-6)).float() for part, x in inputs.items()}
    return Data(**tensors, num_classes=num_classes)
