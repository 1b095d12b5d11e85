"""Data sets as tensors: images as floats or bytes, or tokens; and their conversion to host inputs."""

# n samples, C channels, T positions

import hashlib
import os
import warnings
import zlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from esper.notices import UserNotice
from esper.text import counted

IGNORED = -100
"""Target of padded positions, which loss and accuracy leave out (torch's `ignore_index`)."""
ROWS, VALUES = 4096, 2**26
"""Maximum numbers of samples, and of values, that are read at once, so that data in files need not fit into memory."""
LABELS = 5
"""Maximum number of class labels that `Data.describe` shows."""
SMALL = (torch.uint8, torch.int16, torch.int32)
"""Compact types of tokens and classes, smallest first."""


class TaskError(ValueError):
    """A task that cannot be set up; the message names what is missing and how to get it."""


class DataError(TaskError):
    """Invalid data of a task; the message names the field of `Data` and the remedy."""


@contextmanager
def reading(path: Path, remedy: str) -> Generator[None]:
    """Report a missing or damaged file in one sentence.

    Raises:
        TaskError: the file is missing, or its reader raised an error of the file system, of decompression, or a ValueError. A
            TaskError of the reader passes as it is.
    """
    try:
        yield
    except TaskError:
        raise
    except FileNotFoundError as error:
        place = "" if path.is_absolute() else f" in {Path.cwd()}"
        more = "" if path.is_absolute() else "; a relative path counts from the folder of the command"
        raise TaskError(f"the task needs {path}{place}, which does not exist: {remedy}{more}") from error
    except IsADirectoryError as error:
        raise TaskError(f"{path} is a folder, and the task needs a file: {remedy}") from error
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise TaskError(f"{path} is damaged ({error}): {remedy}") from error


def visible_files(folder: Path, pattern: str = "*") -> list[Path]:
    """Return the files below a folder in order, without hidden ones and those in hidden folders, such as .ipynb_checkpoints.

    Links are followed, but to no folder twice. Links that lead nowhere are told.
    """
    found, seen = list[Path](), set[str]()
    for top, folders, names in os.walk(folder, followlinks=True):
        if (place := os.path.realpath(top)) in seen:
            folders.clear()
            continue
        seen.add(place)
        folders[:] = sorted(one for one in folders if one[0] != ".")
        found += [Path(top) / name for name in names if name[0] != "." and fnmatchcase(name, pattern)]
    files = sorted(path for path in found if path.is_file())
    if lost := sorted(path for path in {*found} - {*files} if not path.exists()):
        warnings.warn(
            f"{folder} has {counted(len(lost), 'link')} to nowhere, such as {lost[0].name}: correct or remove such links",
            UserNotice,
            stacklevel=2,
        )
    return files


@dataclass(frozen=True, kw_only=True, slots=True)
class Domains:
    """D copies of a data set, domain 0 as it is and the others after a drift, with the samples in the same order."""

    names: tuple[str, ...]
    """Kind of drift of each domain, empty for domain 0."""
    train_x: Tensor
    """`[D, n, ...]`, as are the other inputs and targets."""
    train_y: Tensor
    valid_x: Tensor
    valid_y: Tensor
    test_x: Tensor
    test_y: Tensor
    train_rank: Tensor
    """Rank of each sample in (0, 1) `[n]`: the strength of a drift above which the sample comes from the new domain."""
    valid_rank: Tensor
    test_rank: Tensor
    train_presence: Tensor
    """Rank in (0, 1) `[n]`: the share of its class above which a training sample is present. It is independent of `train_rank`:
    of the few samples that remain of a class, the same share has drifted as of all."""

    def to(self, device: torch.device) -> "Domains":
        """Copy the domains to a device."""
        return Domains(**_moved(self, device))


@dataclass(frozen=True, kw_only=True, slots=True)
class Units:
    """Scales and labels between the user's data and a network's inputs and outputs, needed to use the network without Esper."""

    mean: tuple[float, ...] | None = None
    """Mean of each channel of the training samples, which was subtracted; None if samples are read as they are."""
    std: tuple[float, ...] | None = None
    """Standard deviation of each channel, by which it was divided after that."""
    classes: tuple[str | int | float, ...] | None = None
    """Label of each output; None if classes are counted from 0, or targets are numbers."""
    target_mean: float = 0.0
    """Mean of the training targets; 0 for classes."""
    target_std: float = 1.0
    """Standard deviation of the training targets, 1 for classes: a network predicts (target - target_mean) / target_std."""

    @staticmethod
    def of_arrays(mean: Any = None, std: Any = None, classes: Any = None) -> "Units":
        """Return the units of samples with these means and deviations by channel, and labels by output."""
        by_channel = [None if one is None else tuple(np.ravel(one).tolist()) for one in (mean, std)]
        labels = None if classes is None else tuple(np.asarray(classes).tolist())
        counted = labels == tuple(range(len(labels or ())))
        return Units(mean=by_channel[0], std=by_channel[1], classes=None if counted else labels)


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """Inputs and targets of three sets: images `[n, C, H, W]` and classes or numbers `[n]`, or tokens and next tokens `[n, T]`.

    Hosts learn from `train`; rewards, counterfactuals and the governor use `valid`; `test` is for final scores only. The tensors
    may lie in memory-mapped files, as in `torch.from_numpy(np.load(path, mmap_mode="c"))`, with `mapped=True`.
    """

    train_x: Tensor
    train_y: Tensor
    valid_x: Tensor
    valid_y: Tensor
    test_x: Tensor
    test_y: Tensor
    num_classes: int
    """Outputs of a host: the number of classes or of different tokens; 1 where targets are numbers."""
    mean: Tensor | None = None
    """Mean of each channel of images from 0 to 255 `[C, 1, 1]`, needed for bytes; None for data that are read as they are."""
    std: Tensor | None = None
    """Standard deviation of each channel `[C, 1, 1]`."""
    domains: Domains | None = None
    """The data after each drift that may happen; None if none can."""
    mapped: bool = False
    """If true, the samples lie in memory-mapped files, and are read from there batch by batch."""
    target: str = ""
    """Name of the target, for display."""
    units: Units = Units()
    """Units of the user's samples and targets; the scale of byte images is in `mean` and `std`."""

    @staticmethod
    def of_sets(sets: Sequence[tuple[Tensor, Tensor]], num_classes: int, *, mapped: bool = False) -> "Data":
        """Return the data of a training, a validation and a test set, each of inputs and targets."""
        (train_x, train_y), (valid_x, valid_y), (test_x, test_y) = sets
        return Data(
            train_x=train_x,
            train_y=train_y,
            valid_x=valid_x,
            valid_y=valid_y,
            test_x=test_x,
            test_y=test_y,
            num_classes=num_classes,
            mapped=mapped,
        )

    def to(self, device: torch.device) -> "Data":
        """Copy the data to a device."""
        return Data(**_moved(self, device))

    def packed(self) -> "Data":
        """Return the data with tokens and classes in the smallest integer type that holds them."""
        domains = self.domains and replace(self.domains, **_packed(self.domains))
        return replace(self, **_packed(self), domains=domains)

    def packed_bytes(self) -> int:
        """Return the size of the packed data [bytes]."""
        return sum(part.numel() * _packed_type(part).itemsize for part in self.tensors())

    def tensors(self) -> list[Tensor]:
        """Return all tensors, with those of `domains`."""
        sets = [one for one in (self, self.domains) if one is not None]
        parts = [getattr(one, field.name) for one in sets for field in fields(one)]
        return [part for part in parts if isinstance(part, Tensor)]

    def inputs(self, samples: Tensor) -> Tensor:
        """Convert samples `[..., C, H, W]` or `[..., T]` to host inputs: with `mean` and `std`, floats of mean 0 and deviation 1.

        The samples stay as they are.
        """
        if self.mean is None or self.std is None:
            return samples if samples.is_floating_point() else samples.long()
        return samples.to(torch.float32, copy=True).sub_(self.mean).div_(self.std)  # float() copies no floats: they would change

    def fingerprint(self) -> str:
        """Return a hash of the data, 16 hexadecimal digits, to tell versions of a data set apart."""
        digest = hashlib.sha256()
        for field in fields(self):
            part = getattr(self, field.name)
            if isinstance(part, Tensor):
                plain = part.is_floating_point() or (self.mean is not None and field.name.endswith("_x"))  # bytes of images
                hash_rows(digest.update, part, plain=plain)
        return digest.hexdigest()[:16]

    def describe(self) -> str:
        """Return sizes, as in "1,078 training, 359 validation and 360 test samples; 1x8x8 values each, 10 classes"."""
        counts = [f"{len(getattr(self, f'{part}_y')):,}" for part in ("train", "valid", "test")]
        shape, numbers = tuple(self.train_x.shape[1:]), self.train_y.is_floating_point()
        if len(shape) == 1:
            inputs, outputs = f"{shape[0]:,} tokens each", f"{self.num_classes:,} different tokens"
        else:
            flat = shape[1:] == (1, 1)
            inputs = f"{shape[0]:,} features" if flat else f"{'x'.join(map(str, shape))} values each"
            outputs = "a number to predict" if numbers else f"{self.num_classes:,} classes"
            outputs += f" of {self.target}" if self.target and not numbers else f" ({self.target})" if self.target else ""
            if labels := self.units.classes:
                outputs += f" ({', '.join(map(str, labels[:LABELS]))}{', ...' * (len(labels) > LABELS)})"
        return f"{counts[0]} training, {counts[1]} validation and {counts[2]} test samples; {inputs}, {outputs}"

    @property
    def positions(self) -> int:
        """Number of targets per sample: T of a sequence, 1 of an image."""
        return self.train_y[0].numel()

    @property
    def predicts_next(self) -> bool:
        """Whether the target of each position is the token at the next one, which its prediction must not read."""
        x, y = self.train_x[:ROWS], self.train_y[:ROWS]
        if x.dim() != 2 or y.shape != x.shape or y.shape[1] < 2:
            return False
        return bool((is_padding(y[:, :-1]) | (y[:, :-1] == x[:, 1:])).all())


def is_padding(targets: Tensor) -> Tensor:
    """Return which targets are ignored; numbers never are."""
    return torch.zeros_like(targets, dtype=torch.bool) if targets.is_floating_point() else targets < 0


def target_values(targets: Tensor) -> Tensor:
    """Return targets in the type that a loss takes."""
    return targets if targets.is_floating_point() else targets.long()


def rows_at_once(samples: Tensor) -> int:
    """Return the number of samples to read at once: at most `ROWS`, and `VALUES` values."""
    return max(1, min(ROWS, VALUES // max(1, samples[0].numel())))


def hash_rows(update: Callable[[Any], None], values: Tensor, *, plain: bool = True) -> None:
    """Give the values to the `update` of a hash part by part; if not `plain`, as 64-bit integers."""
    for rows in torch.atleast_1d(values).split(ROWS):
        update((rows if plain else rows.long()).cpu().contiguous().numpy())


def ends(values: Tensor) -> tuple[int, int]:
    """Return the lowest and the highest value, read part by part."""
    pairs = [torch.aminmax(part) for part in values.split(ROWS)]
    return min(int(low) for low, _ in pairs), max(int(high) for _, high in pairs)


def _packed(node: Data | Domains) -> dict[str, Tensor]:
    """Return the integer tensors in their smallest types."""
    parts: dict[str, Any] = {field.name: getattr(node, field.name) for field in fields(node)}
    return {name: part.to(_packed_type(part)) for name, part in parts.items() if isinstance(part, Tensor)}


def _packed_type(part: Tensor) -> torch.dtype:
    """Return the smallest integer type that holds the values of an integer tensor, and the type of any other."""
    return smallest_type(*ends(part)) if part.dtype is torch.int64 else part.dtype


def smallest_type(low: int, high: int) -> torch.dtype:
    """Return the smallest integer type that holds all values from `low` to `high`."""
    limits = [torch.iinfo(kind) for kind in SMALL]
    return next((kind for kind, limit in zip(SMALL, limits, strict=True) if limit.min <= low and high <= limit.max), torch.int64)


def _moved(node: Data | Domains, device: torch.device) -> dict[str, Any]:
    """Return the fields, tensors copied to a device."""
    parts: dict[str, Any] = {field.name: getattr(node, field.name) for field in fields(node)}
    return parts | {name: part.to(device) for name, part in parts.items() if isinstance(part, (Tensor, Domains))}
