"""Checks of the data that a task has loaded, which may come from outside."""

import warnings
from collections.abc import Callable
from inspect import signature
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from esper.fusion.layout import PERMUTE, Layout, channels_last
from esper.notices import UserNotice
from esper.task.data import IGNORED, ROWS, SMALL, Data, DataError, ends, rows_at_once
from esper.text import counted

PARTS = ("train", "valid", "test")
INTEGERS = (torch.int64, *SMALL)
INPUTS = {Layout.IMAGES: (torch.float32, torch.uint8), Layout.SEQUENCES: INTEGERS}
"""Types of the inputs of each layout."""
AXES = {Layout.IMAGES: "[n, C, H, W]", Layout.SEQUENCES: "[n, T]"}
"""Axes of the inputs of each layout."""
SCALE = "a value for each channel from 0 to 255, as in torch.tensor([87.3]).view(-1, 1, 1)"
"""The form of `Data.mean` and `Data.std` in words."""
FEW = 5
"""Number of validation or test samples below which a warning is given."""
FAR_MEAN, FAR_STD = 3.0, 10.0
"""Absolute mean, and standard deviation, above which inputs were probably not scaled; and the same relative to the training
inputs, above which those of another set were probably scaled otherwise."""


def check_samples(data: object, layout: Layout, batch_size: int, *, numbers: bool = False, warn: bool = True) -> None:
    """Check the three parts of the data of a task.

    Args:
        layout: layout of a sample.
        batch_size: samples per optimiser step.
        numbers: if true, targets are numbers, not classes.
        warn: if true, warn of likely mistakes. A drift is meant to change data.

    Raises:
        DataError: an entry is missing, has another form, or holds values that nobody can learn from.
    """
    if not isinstance(data, Data):
        raise DataError(f"load returns a {type(data).__name__}: return a Data")
    if numbers and data.num_classes != 1:
        raise DataError(f"num_classes must be 1 where targets are numbers, got {data.num_classes}")
    if data.num_classes < 2 and not numbers:
        raise DataError(f"num_classes must be at least 2, got {data.num_classes}")
    for part in PARTS:
        x, y = getattr(data, f"{part}_x"), getattr(data, f"{part}_y")
        for name, entry in ((f"{part}_x", x), (f"{part}_y", y)):
            if not isinstance(entry, Tensor):
                raise DataError(f"{name} is a {type(entry).__name__}: make it a tensor")
            if entry.requires_grad:
                raise DataError(f"{name} requires gradients, and data are constants: use {name}.detach()")
            if not entry.dim() or not len(entry):
                raise DataError(f"{name} is empty: put at least one sample into each of train, valid and test")
        if len(x) != len(y):
            raise DataError(f"{part}_x has {len(x)} samples and {part}_y has {len(y)}: give each sample its target")
        _check_inputs(f"{part}_x", x, layout, data)
        if numbers:
            _check_numbers(f"{part}_y", y, (len(x),))
        else:
            _check_targets(f"{part}_y", y, tuple(x.shape) if layout is Layout.SEQUENCES else (len(x),), data.num_classes)
    for mistake in mistakes(data, layout, numbers=numbers) if warn else ():
        warnings.warn(mistake, UserNotice, stacklevel=2)
    if len(data.train_x) < batch_size:
        raise DataError(
            f"train_x has {len(data.train_x)} samples, fewer than task.batch_size={batch_size}: lower task.batch_size"
        )


def check_takes_context(load: Callable[..., Any]) -> None:
    """Raise DataError if the method that loads a task's data does not take the length of a context."""
    try:
        signature(load).bind(0)
    except ValueError:  # of a function without a signature
        return
    except TypeError as error:
        raise DataError(
            f"load must take the length of a context ({error}): write def load(self, context: int) -> Data"
        ) from error


def drifted_copy(drift: Callable[..., Any], data: Data, rng: np.random.Generator) -> Data:
    """Return what a drift makes of data.

    Raises:
        DataError: it takes other arguments, returns no data, changes its argument, or draws from torch's global stream.
    """
    try:
        signature(drift).bind(data, rng)
    except TypeError as error:
        raise DataError(f"its function must take a Data and a random generator ({error}): correct it") from error
    versions, before = [one._version for one in data.tensors()], torch.get_rng_state()
    drifted = drift(data, rng)
    if not isinstance(drifted, Data):
        raise DataError(f"its function returns a {type(drifted).__name__}: return a Data")
    if [one._version for one in data.tensors()] != versions:
        raise DataError("the data before it has changed too: change a copy, as in replace(data, train_x=0.5 * data.train_x)")
    if not before.equal(torch.get_rng_state()):
        raise DataError("numbers were drawn from torch's global random stream: draw from the generator, so that runs can repeat")
    return drifted


def check_alike(drifted: Data, data: Data) -> None:
    """Check that data after a drift has the form of the data before it.

    Raises:
        DataError: shapes or types differ, or mean, deviation or number of classes.
    """
    for name in (f"{part}_{axis}" for part in PARTS for axis in "xy"):
        new, old = getattr(drifted, name), getattr(data, name)
        if new.shape != old.shape:
            raise DataError(f"{name} has the shape {list(new.shape)} instead of {list(old.shape)}: keep the shape")
        if new.dtype != old.dtype and (old.dim() == new.dim() == 4 or {new.dtype, old.dtype} - {*INTEGERS}):
            raise DataError(f"{name} is {new.dtype} instead of {old.dtype}: keep the type")
    scales = [
        (one.num_classes, *(None if scale is None else scale.tolist() for scale in (one.mean, one.std)))
        for one in (drifted, data)
    ]
    if scales[0] != scales[1]:
        raise DataError("num_classes, mean or std differs: keep them")


def mistakes(data: Data, layout: Layout, *, numbers: bool = False) -> list[str]:
    """Return likely mistakes in data that hosts can learn from: few samples, sets of one class, channels in the last place,
    inputs that nobody scaled or that have another scale in another set, and classes that never occur.

    Args:
        data: data that `check_samples` accepts.
        layout: layout of a sample.
        numbers: whether targets are numbers, not classes.
    """
    found: list[str] = []
    for part, y in {"valid": data.valid_y, "test": data.test_y}.items():
        if len(y) < FEW:
            found.append(few_samples(part, y, numbers=numbers))
        elif not numbers and layout is Layout.IMAGES and len(set(ends(y))) == 1:
            found.append(
                f"{part}_y has class {int(y[0])} only: accuracy on it shows nothing of the others, so shuffle before splitting"
            )
    if layout is not Layout.IMAGES:
        return found
    shape = tuple(data.train_x.shape)
    if channels_last(shape):
        found.append(f"train_x has the shape {list(shape)}, read as {AXES[Layout.IMAGES]}: {PERMUTE}")
    found += _unscaled(data)
    if not numbers and (most := ends(data.train_y)[1]) < data.num_classes - 1:
        found.append(
            f"num_classes is {data.num_classes}, and the highest class of train_y is {most}: hosts never learn the others"
        )
    return found


def _unscaled(data: Data) -> list[str]:
    """Return that inputs are far from mean 0 and deviation 1, or those of another set far from the training inputs."""
    sets = {part: getattr(data, f"{part}_x") for part in PARTS}
    first = {part: data.inputs(x[: rows_at_once(x)]) for part, x in sets.items()}
    scale = {part: (float(x.mean()), float(x.std(correction=0))) for part, x in first.items()}
    after = " after Data.mean and Data.std" if data.mean is not None else ""
    told = {part: f"{part}_x has mean {mean:.3g} and standard deviation {std:.3g}" for part, (mean, std) in scale.items()}
    mean, std = scale["train"]
    if abs(mean) > FAR_MEAN or std > FAR_STD:
        remedy = "correct these two, for inputs from 0 to 255" if after else "standardize it"
        return [f"{told['train']}{after}: hosts learn best from mean 0 and standard deviation 1, so {remedy}"]
    other = [
        part
        for part, (other_mean, other_std) in scale.items()
        if abs(other_mean - mean) > FAR_MEAN * std or not std <= FAR_STD * other_std <= FAR_STD**2 * std
    ]
    return [f"{told[part]}, and {told['train']}{after}: scale all sets alike" for part in other]


def few_samples(part: str, y: Tensor, *, numbers: bool) -> str:
    """Return what follows from few samples of a set, which has these targets."""
    step = "R2 on it means little" if numbers else f"accuracy on it moves in steps of {100 / int((y != IGNORED).sum()):.2g} pp"
    return f"{part}_x has {counted(len(y), 'sample')}: {step}, so use more"


def _check_inputs(name: str, x: Tensor, layout: Layout, data: Data) -> None:
    if x.dim() != AXES[layout].count(",") + 1 or x[0].shape != data.train_x[0].shape:
        rows = "; rows of numbers become x[:, :, None, None], for host=mlp" if x.dim() == 2 and layout is Layout.IMAGES else ""
        raise DataError(
            f"{name} has the shape {list(x.shape)}: make it {AXES[layout]}, with samples of one shape in all parts{rows}"
        )
    if x.dtype not in INPUTS[layout]:
        raise DataError(f"{name} is {x.dtype}: make it {' or '.join(map(str, INPUTS[layout]))}")
    if layout is Layout.SEQUENCES:
        _check_range(f"{name}, as a token,", *ends(x), data.num_classes)
    elif x.dtype is torch.uint8 and (data.mean is None or data.std is None):
        raise DataError(f"{name} holds bytes, and the data has no mean and std: set both, {SCALE}, or make it torch.float32")
    elif x.is_floating_point() and (wrong := sum(int((~part.isfinite()).sum()) for part in x.split(rows_at_once(x)))):
        raise DataError(f"{name} has {wrong} values that are NaN or infinite: remove or replace them")
    for scale, values in (("mean", data.mean), ("std", data.std)):
        if values is not None and not (isinstance(cast(Any, values), Tensor) and values.shape in ((x.shape[1], 1, 1), (1,), ())):
            raise DataError(f"{scale} must be {SCALE}, got {values!r}".replace("\n", " "))
    if data.mean is not None and data.std is not None and not (data.mean.isfinite().all() and (data.std > 0).all()):
        raise DataError("mean or std is not finite, or std is 0: leave out constant channels")


def _check_shape(name: str, y: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(y.shape) != shape:
        raise DataError(f"{name} has the shape {list(y.shape)}: make it {list(shape)}")


def _check_numbers(name: str, y: Tensor, shape: tuple[int, ...]) -> None:
    _check_shape(name, y, shape)
    if y.dtype is not torch.float32:
        raise DataError(f"{name} is {y.dtype}: make it torch.float32")
    if not y.isfinite().all():
        raise DataError(f"{name} has {int((~y.isfinite()).sum())} values that are NaN or infinite: remove these samples")
    if y.min() == y.max():
        raise DataError(
            f"{name} has the same value in all samples, up to rounding, and R2 is undefined: use samples with different targets, "
            "none of which is so extreme that the others cannot be told apart"
        )


def _check_targets(name: str, y: Tensor, shape: tuple[int, ...], num_classes: int) -> None:
    _check_shape(name, y, shape)
    if y.dtype not in INTEGERS:
        raise DataError(f"{name} is {y.dtype}: make it torch.int64, the number of each class")
    low, high = ends(y)
    if len(shape) > 1 and low < 0:  # positions may be padded
        if high == IGNORED:
            raise DataError(f"{name} has no target but {IGNORED}, which is ignored: remove padded samples")
        low = min(ends(part[part != IGNORED])[0] for part in y.split(ROWS) if (part != IGNORED).any())
    _check_range(name, low, high, num_classes)


def _check_range(name: str, low: int, high: int, num_classes: int) -> None:
    if low < 0 or high >= num_classes:
        wrong, rule = low if low < 0 else high, f"from 0 to num_classes - 1 = {num_classes - 1}"
        remedy = "subtract 1 from all classes" if (low, high) == (1, num_classes) else "correct it"
        raise DataError(f"{name} has the value {wrong}, which must be {rule}: {remedy}")
