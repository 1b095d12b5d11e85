"""Images of your own: a folder with one subfolder per class, as torchvision's ImageFolder reads it.

If the folder has a subfolder `train` with subfolders, these are the classes, and `val` (or `valid`, `validation`) and `test`
beside it are the validation and test sets. A set without a folder is a tenth of the training images.
"""

import importlib
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from esper.notices import UserNotice
from esper.ranges import check_ranges
from esper.seeding import stream
from esper.task.data import Data, TaskError, Units, reading, visible_files
from esper.task.images import AugmentedConfig, normalised
from esper.task.mapped import joined
from esper.task.splits import check_classes, without_training
from esper.text import counted

ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Endings of the files that are read, in lower case: those of torchvision's ImageFolder."""
SETS = {"train": "train", "val": "valid", "valid": "valid", "validation": "valid", "test": "test"}
"""Subfolder -> set."""
LIKE_SETS = (*SETS, "training", "testing")
"""Names of classes, in lower case, that are probably sets."""
LISTED = 3
"""Largest number of endings of files that are not read to name."""
FILES = 128
"""Images that are decoded ahead."""
DEEP = re.compile(r"(RGB[AXa]?|LA|CMYK);16")
"""Pillow's names of colours of 16 bits per channel, of which it keeps the upper 8; `BGR;16` has 5 or 6."""


@dataclass(kw_only=True, slots=True)
class ImageFolderConfig(AugmentedConfig):
    """Images of your own, with healthy hosts. Standard kinds: [ooo,xoo,oxx] or [oo,xo,ox]."""

    default_host: ClassVar[str] = "cnn_baseline"

    folder: str = "data/images"
    """Folder with a subfolder of images for each class, or with such folders named train, val (or valid, validation) and test.
    Hidden files and folders are left out."""
    size: int = 32
    """Height and width of the images that the hosts read [pixels], from 8 to 1024. Each image is cropped to the square in its
    centre, resized, and converted to three colours, on white where it is transparent. Higher: more detail; memory and time grow
    with the square."""
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
        tenth, held_out = round(len(sets["train"]) / 10), [name for name in ("valid", "test") if name not in sets]
        counts = np.bincount([kind for _, kind in sets["train"]])
        check_classes(counts.tolist(), classes, ["train", *held_out], f"task.folder={self.folder}", "images")
        for name in held_out:
            sets[name], sets["train"] = sets["train"][:tenth], sets["train"][tenth:]
        if missing := set(range(len(classes))) - {kind for _, kind in sets["train"]}:
            raise without_training(classes[min(missing)], f"task.folder={self.folder}", "image")
        parts: dict[str, Any] = {}
        for name, files in sets.items():
            images = _images([path for path, _ in files], self.size)
            if self.mapped:
                parts[f"{name}_x"] = joined((image[None] for image in images), mapped=True)
            else:  # filled in place: a list of all images would take as much memory again
                form = np.dtype((np.uint8, (3, self.size, self.size)))
                parts[f"{name}_x"] = torch.from_numpy(np.fromiter(images, form, len(files)))
            parts[f"{name}_y"] = torch.tensor([kind for _, kind in files])
        units = Units.of_arrays(classes=classes)
        return normalised(Data(**parts, num_classes=len(classes), mapped=self.mapped, units=units))

    def _listed(self) -> tuple[list[str], dict[str, list[tuple[Path, int]]]]:
        """Return the names of the classes, and the image files of each set with their classes.

        Raises:
            TaskError: there are fewer than two classes, a class is unknown or empty, or there are too few images.
        """
        found = self._folders()
        classes, sets, others = _subfolders(found["train"]), dict[str, list[tuple[Path, int]]](), list[str]()
        if len(classes) < 2:
            raise TaskError(
                f"task.folder={self.folder} needs a subfolder of images for each of at least two classes, and {found['train']} "
                f"has {len(classes)}: put the images of each class into a subfolder"
            )
        for name, folder in found.items():
            if not (names := _subfolders(folder)):
                raise TaskError(
                    f"{folder} has no folders of classes: put the images of each class into a subfolder, or move "
                    f"{folder.name} out of task.folder"
                )
            if unknown := [one for one in names if one not in classes]:
                raise TaskError(
                    f"{folder / unknown[0]} is a class without training images: remove it, or add it to the training set"
                )
            found_in = {one: visible_files(folder / one) for one in classes}
            files = {one: [path for path in paths if path.suffix.lower() in ENDINGS] for one, paths in found_in.items()}
            others += [path.suffix.lower() or path.name for paths in found_in.values() for path in paths]
            empty = [one for one in classes if not files[one]]
            if empty and name == "train":
                raise TaskError(f"{folder / empty[0]} has no image ({', '.join(ENDINGS)}): remove it, or add images")
            sets[name] = [(path, kind) for kind, one in enumerate(classes) for path in files[one]]
        if len(sets["train"]) < 10 or not all(sets.values()):
            raise TaskError(
                f"task.folder={self.folder} has too few images: add some, to have at least ten for training and "
                "one in every other set"
            )
        if unread := Counter(ending for ending in others if ending not in ENDINGS):
            kinds = ", ".join(f"{counted(number, 'file')} {ending}" for ending, number in unread.most_common(LISTED))
            warnings.warn(f"task.folder={self.folder}: not read: {kinds}: convert images to .png", UserNotice, stacklevel=2)
        return classes, sets

    def _folders(self) -> dict[str, Path]:
        """Return the folder of each set, or the whole folder as the training set if it has no folders for sets.

        Raises:
            TaskError: the folder is missing, has two folders for one set, or has folders for sets and none for classes.
        """
        top, found = Path(self.folder), dict[str, Path]()
        names = _subfolders(top)
        for name in (name for name in SETS if name in names):
            if SETS[name] in found:
                raise TaskError(f"task.folder={self.folder} has both {found[SETS[name]].name} and {name}: keep one")
            found[SETS[name]] = top / name
        if "train" in found and _subfolders(found["train"]):
            if rest := [name for name in names if name not in SETS]:
                warnings.warn(f"task.folder={self.folder}: not used: {', '.join(rest)}", UserNotice, stacklevel=2)
            return found
        if "train" in found and {*names} <= {*SETS}:
            raise TaskError(
                f"task.folder={self.folder} has folders for sets, but {found['train']} has none for classes: put the images of "
                "each class into a subfolder"
            )
        if like := [name for name in names if name.lower() in LIKE_SETS]:
            read = "are read as classes" if len(like) > 1 else "is read as a class"
            warnings.warn(
                f"task.folder={self.folder}: {', '.join(like)} {read}: if these are sets, name them train, val and "
                "test, and put a subfolder per class into each",
                UserNotice,
                stacklevel=2,
            )
        return {"train": top}


def _images(paths: list[Path], size: int) -> Iterator[npt.NDArray[np.uint8]]:
    """Read images `[3, size, size]` in order, with at most `FILES` in memory."""
    with ThreadPoolExecutor() as pool:
        for start in range(0, len(paths), FILES):
            yield from pool.map(partial(_read, size=size), paths[start : start + FILES])


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
                if _is_deep(image):
                    raise TaskError(f"{path} has more than 8 bits per channel: save it with 8")
                upright = pillow.exif_transpose(image)  # cameras store how they were held
                square = pillow.fit(_opaque(upright, pillow.Image), (size, size), pillow.Image.Resampling.BILINEAR)
        except (SyntaxError, pillow.Image.DecompressionBombError) as error:
            raise ValueError(str(error)) from error
    return np.ascontiguousarray(np.asarray(square).transpose(2, 0, 1))


def _opaque(image: Any, pillow: Any) -> Any:
    """Return an image in three colours, on white where it is transparent."""
    if "A" not in image.getbands() and "transparency" not in image.info:
        return image.convert("RGB")
    coloured = image.convert("RGBA")
    return pillow.alpha_composite(pillow.new("RGBA", coloured.size, "white"), coloured).convert("RGB")


def _is_deep(image: Any) -> bool:
    """Return whether an opened image has more than 8 bits per channel, which Pillow would clip or cut."""
    largest = [tile[3][-1] for tile in image.tile if tile[0].startswith("ppm") and isinstance(tile[3], tuple)]
    coded = " ".join(str(tile[3]) for tile in image.tile)
    return image.mode.startswith(("I", "F")) or bool(DEEP.search(coded)) or max(largest, default=0) > 255
