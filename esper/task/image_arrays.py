"""Images of your own in a NumPy file: an `.npz` archive of images and classes, by the names that data sets commonly use."""

# n images, H, W height and width, C channels

import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch

from esper.notices import UserNotice
from esper.seeding import stream
from esper.task.data import Data, TaskError, Units, reading
from esper.task.images import AugmentedConfig, normalised
from esper.task.splits import USES, check_classes, mean_and_deviation, split_rows, without_training

Array = npt.NDArray[Any]
SETS = {"train": ("train",), "valid": ("valid", "val", "validation"), "test": ("test",)}
"""Set -> its names in a file."""
PAIRS = (("x", "y"), ("images", "labels"))
"""Names of images and of their classes."""
COLOURS = (1, 3, 4)
"""Usual numbers of channels, by which their axis is found."""
NEEDED = "x and y, or train_x, train_y, test_x and test_y"
"""Arrays of a file, in words."""


class Images(NamedTuple):
    """One set."""

    x: Array
    """Images `[n, C, H, W]`."""
    y: Array
    """Classes `[n]`, numbers or text."""


@dataclass(kw_only=True, slots=True)
class ImageArraysConfig(AugmentedConfig):
    """Images of your own in an .npz file, with healthy hosts. Standard kinds: [ooo,xoo,oxx] or [oo,xo,ox]."""

    default_host: ClassVar[str] = "cnn_pooled"

    file: str = "data/images.npz"
    """NumPy .npz file with images `x` and classes `y`, split 60 / 20 / 20 %; or with `train_x`, `train_y`, `test_x` and `test_y`,
    and `valid_x` and `valid_y` (by default a tenth of `train_x`). Names such as `x_train`, `train_images` and `val_labels`
    also work. Images are `[n, H, W]`, `[n, C, H, W]` or `[n, H, W, C]`, bytes or numbers; classes are numbers or text."""
    channels: str = ""
    """Axis of the channels: `first` or `last`; empty: the one of length 1, 3 or 4."""
    batch_size: int = 32

    def __post_init__(self) -> None:
        AugmentedConfig.__post_init__(self)
        if self.channels not in ("", "first", "last"):
            raise ValueError(f"task.channels must be first, last or empty, got {self.channels}")

    def load(self, context: int) -> Data:
        with reading(Path(self.file), f"set task.file to an .npz file with {NEEDED}"):
            arrays, unknown = _arrays(self.file)
        found = {part: names for part in ("", *SETS) if (names := _find(arrays, part))}
        sets = {part: self._checked(part, Images(*(arrays[name] for name in found[part]))) for part in SETS if part in found}
        rng, split = stream(self.split_seed, "image_arrays_split"), list[str]()
        if sets.keys() & {"train", "test"} == {"train"}:
            raise TaskError(f"task.file={self.file} has no test set: add test_x and test_y")
        if sets and "train" not in sets:
            raise TaskError(f"task.file={self.file} has {found[min(sets)][0]} and no train_x and train_y: add them")
        if "train" in sets:
            for part, (images, _) in sets.items():
                if images.shape[1:] != (wanted := sets["train"].x.shape[1:]):
                    shapes = ["x".join(map(str, shape)) for shape in (images.shape[1:], wanted)]
                    raise TaskError(
                        f"task.file={self.file}: {found[part][0]} has images of {shapes[0]} values, and those to train on have "
                        f"{shapes[1]}: resize them"
                    )
            texts = [part for part, images in sets.items() if images.y.dtype.kind == "U"]
            if texts and (numbers := [part for part in sets if part not in texts]):
                raise TaskError(
                    f"task.file={self.file}: the classes of the {texts[0]} set are text, and those of the {numbers[0]} set "
                    "numbers: use one of them"
                )
            known = set(np.unique(sets["train"].y).tolist())
            for part, (_, classes) in sets.items():
                if strange := set(np.unique(classes).tolist()) - known:
                    raise TaskError(
                        f"task.file={self.file}: the {part} set has class {min(strange)}, which has no training image: "
                        "add some, or remove the class"
                    )
            if "valid" not in sets:
                sets, split = _held_out(sets, rng), ["train", "valid"]
            elif 0 < self.valid_samples < len(sets["valid"].y):  # the first ones are used, and files are often sorted by class
                sets["valid"] = _shuffled(sets["valid"], rng)
        elif "" in found:
            images = self._checked("the file", Images(*(arrays[name] for name in found[""])))
            if len(images.y) < 8:
                raise TaskError(f"task.file={self.file} has {len(images.y)} images, too few for three sets: add some")
            rows = split_rows(len(images.y), rng, f"task.file={self.file}")
            sets, split = {part: Images(images.x[chosen], images.y[chosen]) for part, chosen in rows.items()}, list(USES)
        else:
            raise TaskError(
                f"task.file={self.file} needs the arrays {NEEDED} (or x_train, or train_images and train_labels), and has "
                f"{', '.join([*arrays, *unknown]) or 'none'}: rename them"
            )
        used = {name for part in (sets if "train" in found else [""]) for name in found.get(part, ())}
        if rest := sorted({*arrays, *unknown} - used):
            warnings.warn(f"task.file={self.file}: not used: {', '.join(rest)}", UserNotice, stacklevel=2)
        return _data(sets, split, f"task.file={self.file}")

    def _checked(self, part: str, images: Images) -> Images:
        """Return images `[n, C, H, W]` as bytes or numbers, and classes `[n]`.

        Raises:
            TaskError: they have other shapes or types.
        """
        x, where = images.x, f"task.file={self.file}: {part} has"
        if x.ndim not in (3, 4):
            raise TaskError(
                f"{where} images of shape {list(x.shape)}, not [n, H, W], [n, C, H, W] or [n, H, W, C]: reshape them; for rows "
                "of numbers use task=table_classes"
            )
        if x.dtype.kind not in "buif":
            raise TaskError(f"{where} images of type {x.dtype}: give numbers")
        if x.ndim == 3 and self.channels:
            warnings.warn(
                f"task.channels={self.channels} has no effect on images without an axis of channels", UserNotice, stacklevel=2
            )
        x = x[:, None] if x.ndim == 3 else np.moveaxis(x, -1, 1) if self._last(x.shape, where) else x
        x = x if x.dtype == np.uint8 else x.astype(np.float64)
        if not np.isfinite(x).all():
            raise TaskError(f"{where} images with NaN or infinite values: remove or replace them")
        y = images.y[:, 0] if images.y.ndim == 2 and images.y.shape[1] == 1 else images.y
        if y.shape != x.shape[:1]:
            raise TaskError(f"{where} {len(x)} images and classes of shape {list(y.shape)}: give one class per image")
        if not len(y):
            raise TaskError(f"{where} no images: add some")
        try:
            y = cast(Array, np.char.decode(y) if y.dtype.kind == "S" else y)
        except UnicodeDecodeError:
            raise TaskError(
                f"{where} classes that are not text in UTF-8: decode them before saving, as in np.char.decode(y, 'latin-1')"
            ) from None
        if y.dtype.kind not in "biuU" and not (y.dtype.kind == "f" and np.isfinite(y).all() and (y % 1 == 0).all()):
            raise TaskError(f"{where} classes that are neither whole numbers nor text: use either")
        return Images(x, y)

    def _last(self, shape: tuple[int, ...], where: str) -> bool:
        """Return whether the channels of images come last."""
        first, last = shape[1] in COLOURS, shape[3] in COLOURS
        if not self.channels and first == last:
            raise TaskError(
                f"{where} images of shape {list(shape)}, whose channel axis is ambiguous: add task.channels=first for "
                "[n, C, H, W], or task.channels=last for [n, H, W, C]"
            )
        return self.channels == "last" if self.channels else last


def _arrays(file: str) -> tuple[dict[str, Array], list[str]]:
    """Return the arrays of an archive that have known names, and the names of the others.

    Raises:
        ValueError: the file is no archive of arrays, or damaged.
        TaskError: it is a single array, or an array holds Python objects.
    """
    try:
        archive = np.load(file, allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError("it is not an .npz archive") from error
    if isinstance(archive, np.ndarray):
        raise TaskError(
            f"task.file={file} holds a single array: save images and classes together, as in np.savez('images.npz', x=x, y=y)"
        )
    with archive:
        pairs = [pair for part in ("", *SETS) for pair in _names(part)]
        remedies = {x: f"numbers, as in np.stack([np.asarray(one, np.float32) for one in {x}])" for x, _ in pairs}
        remedies |= {y: f"text, as in {y}.astype(str)" for _, y in pairs}
        arrays = dict[str, Array]()
        for name in sorted(remedies.keys() & {*archive.files}):
            try:
                arrays[name] = np.asarray(archive[name])
            except (ValueError, zipfile.BadZipFile) as error:
                if "Object arrays" in str(error):
                    raise TaskError(f"task.file={file}: {name} holds Python objects: save it as {remedies[name]}") from error
                raise ValueError(f"{name} cannot be read: {error}") from error
        return arrays, sorted(set(archive.files) - remedies.keys())


def _names(part: str) -> list[tuple[str, str]]:
    """Return the names that the images and classes of a set may have; those of the whole file for an empty name."""
    if not part:
        return list(PAIRS)
    named = [(f"{name}_{x}", f"{name}_{y}") for name in SETS[part] for x, y in PAIRS]
    return named + [(f"{x}_{name}", f"{y}_{name}") for name in SETS[part] for x, y in PAIRS]


def _find(arrays: Mapping[str, Array], part: str) -> tuple[str, str] | None:
    """Return the names of the images and classes of a set, if both are there."""
    return next(((x, y) for x, y in _names(part) if x in arrays and y in arrays), None)


def _shuffled(images: Images, rng: np.random.Generator) -> Images:
    """Return images in random order."""
    order = rng.permutation(len(images.y))
    return Images(images.x[order], images.y[order])


def _held_out(sets: dict[str, Images], rng: np.random.Generator) -> dict[str, Images]:
    """Return the sets with a tenth of the training images as the validation set."""
    x, y = sets["train"]
    order = rng.permutation(len(y))
    tenth = max(1, round(len(y) / 10))
    return sets | {name: Images(x[rows], y[rows]) for name, rows in (("valid", order[:tenth]), ("train", order[tenth:]))}


def _data(sets: Mapping[str, Images], split: Sequence[str], where: str) -> Data:
    """Return the sets, some of which are a random split, scaled by each channel of the training images; bytes stay bytes.

    Raises:
        TaskError: there is one class only, one without enough images, or more than half as many classes as images.
    """
    kinds = np.unique(np.concatenate([images.y for images in sets.values()]))
    if len(kinds) < 2:
        raise TaskError(f"{where} has one class, and learning needs two: check its classes")
    if len(kinds) > sum(len(images.y) for images in sets.values()) / 2:
        raise TaskError(f"{where} has {len(kinds)} different classes, more than half as many as images: check its classes")
    if split:
        found = np.searchsorted(kinds, np.concatenate([sets[part].y for part in split]))
        check_classes(np.bincount(found).tolist(), kinds.tolist(), split, where, "images")
    if len(missing := np.setdiff1d(kinds, sets["train"].y)):
        raise without_training(missing.tolist()[0], where, "image")
    packed = sets["train"].x.dtype == np.uint8
    if other := [part for part, images in sets.items() if (images.x.dtype == np.uint8) != packed]:
        kinds_of = ["bytes" if one else "other numbers" for one in (packed, not packed)]
        raise TaskError(
            f"{where}: training images are {kinds_of[0]}, and the {other[0]} set has {kinds_of[1]}: use one type and scale"
        )
    x = {part: images.x if packed else np.asarray(images.x, np.float64) for part, images in sets.items()}
    units = Units.of_arrays(classes=kinds)
    if not packed:
        with np.errstate(over="ignore", invalid="ignore"):
            mean, std = mean_and_deviation(x["train"], (0, 2, 3))
        if not np.isfinite(std).all():
            raise TaskError(f"{where} has values too large to be scaled: divide them")
        x = {part: ((images - mean) / std).astype(np.float32) for part, images in x.items()}
        units = Units.of_arrays(mean, std, kinds)
    tensors: dict[str, Any] = {f"{part}_x": torch.from_numpy(np.ascontiguousarray(images)) for part, images in x.items()}
    tensors |= {f"{part}_y": torch.from_numpy(np.searchsorted(kinds, images.y)) for part, images in sets.items()}
    data = Data(**tensors, num_classes=len(kinds), units=units)
    return normalised(data) if packed else data
