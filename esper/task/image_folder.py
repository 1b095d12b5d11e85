"""Images of your own: a folder with one subfolder per class, as torchvision's ImageFolder reads it.

If the folder has a subfolder `train` with subfolders, these are the classes, and `val` (or `valid`) and `test` beside it are the
validation and test sets. A set without a folder is a tenth of the training images.
"""

import importlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from esper.ranges import check_ranges
from esper.seeding import stream
from esper.task.data import Data, TaskError, Units, reading
from esper.task.images import AugmentedConfig, normalised
from esper.task.mapped import joined

ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Endings of the files that are read, in lower case: those of torchvision's ImageFolder."""
SETS = {"train": "train", "val": "valid", "valid": "valid", "test": "test"}
"""Subfolder -> set."""


@dataclass(kw_only=True, slots=True)
class ImageFolderConfig(AugmentedConfig):
    """Images of your own, with healthy hosts. Standard kinds: [ooo,xoo,oxx] or [oo,xo,ox]."""

    default_host: ClassVar[str] = "cnn_baseline"

    folder: str = "data/images"
    """Folder with a subfolder of images for each class, or with such folders named train, val (or valid) and test."""
    size: int = 32
    """Height and width of the images that the hosts read [pixels], from 8 to 1024. Each image is cropped to the square in its
    centre, resized, and converted to three colours. Higher: more detail; memory and time grow with the square."""
    mapped: bool = False
    """If true, keep the images in a memory-mapped temporary file, in the folder that TMPDIR names, instead of in memory."""
    crop_padding: int = 4
    flip: bool = True
    """If true, mirror each training image with probability 1/2. Turn it off where left and right differ, as in text."""

    def __post_init__(self) -> None:
        AugmentedConfig.__post_init__(self)
        check_ranges("task", self, {"[8, 1024]": ["size"]})
        self.check_mapped(self.mapped)

    def load(self, context: int) -> Data:
        classes, listed = self._listed()
        rng = stream(self.split_seed, "image_folder_split")
        sets = {name: [files[place] for place in rng.permutation(len(files))] for name, files in listed.items()}
        tenth = round(len(sets["train"]) / 10)
        for name in [name for name in ("valid", "test") if name not in sets]:
            sets[name], sets["train"] = sets["train"][:tenth], sets["train"][tenth:]
        for kind in set(range(len(classes))) - {kind for _, kind in sets["train"]}:
            raise TaskError(f"task.folder={self.folder} has too few images of class {classes[kind]} for all sets: add some")
        parts: dict[str, Any] = {}
        for name, files in sets.items():
            with ThreadPoolExecutor() as pool:
                images = pool.map(partial(_read, size=self.size), [path for path, _ in files])
                parts[f"{name}_x"] = joined((image[None] for image in images), mapped=self.mapped)
            parts[f"{name}_y"] = torch.tensor([kind for _, kind in files])
        units = Units.of_arrays(classes=classes)
        return normalised(Data(**parts, num_classes=len(classes), mapped=self.mapped, units=units))

    def _listed(self) -> tuple[list[str], dict[str, list[tuple[Path, int]]]]:
        """Return the names of the classes, and the image files of each set with their classes.

        Raises:
            TaskError: there are fewer than two classes, a class is unknown or empty, or there are too few images.
        """
        top = Path(self.folder)
        found = {name: top / folder for folder, name in SETS.items() if (top / folder).is_dir()}
        if (top / "val").is_dir() and (top / "valid").is_dir():
            raise TaskError(f"task.folder={self.folder} has both val and valid: keep one")
        if "train" not in found or not _subfolders(found["train"]):
            found = {"train": top}
            if "train" in (names := _subfolders(top)) and {*names} <= {*SETS}:
                raise TaskError(
                    f"task.folder={self.folder} has folders for sets, but {top / 'train'} has none for classes: put the images "
                    "of each class into a subfolder"
                )
        classes, sets = _subfolders(found["train"]), dict[str, list[tuple[Path, int]]]()
        if len(classes) < 2:
            raise TaskError(
                f"task.folder={self.folder} needs a subfolder of images for each of at least two classes, and {found['train']} "
                f"has {len(classes)}: put the images of each class into a subfolder"
            )
        for name, folder in found.items():
            if unknown := [one for one in _subfolders(folder) if one not in classes]:
                raise TaskError(
                    f"{folder / unknown[0]} is a class without training images: remove it, or add it to the training set"
                )
            files = {one: sorted(path for path in (folder / one).rglob("*") if path.suffix.lower() in ENDINGS) for one in classes}
            empty = [one for one in classes if not files[one]]
            if empty and name == "train":
                raise TaskError(f"{folder / empty[0]} has no image ({', '.join(ENDINGS)}): remove it, or add images")
            sets[name] = [(path, kind) for kind, one in enumerate(classes) for path in files[one]]
        if len(sets["train"]) < 10 or not all(sets.values()):
            raise TaskError(f"task.folder={self.folder} has too few images: a set has at least one, and training at least ten")
        return classes, sets


def _subfolders(folder: Path) -> list[str]:
    """Return the names of the subfolders in order, without hidden ones."""
    with reading(folder, "set task.folder to a folder with a subfolder of images for each class"):
        return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _read(path: Path, size: int) -> npt.NDArray[np.uint8]:
    """Read an image `[3, size, size]`.

    Raises:
        TaskError: the file is damaged, or has more than 8 bits per channel.
    """
    pillow: Any = importlib.import_module("PIL.ImageOps")
    with reading(path, "replace or remove it"):
        try:
            with pillow.Image.open(path) as image:
                if image.mode.startswith(("I", "F")):  # Pillow would clip them to 0..255
                    raise TaskError(f"{path} has more than 8 bits per channel: save it with 8")
                square = pillow.fit(image.convert("RGB"), (size, size), pillow.Image.Resampling.BILINEAR)
        except (SyntaxError, pillow.Image.DecompressionBombError) as error:
            raise ValueError(str(error)) from error
    return np.ascontiguousarray(np.asarray(square).transpose(2, 0, 1))
