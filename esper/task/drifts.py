"""Drifts of a data set: transformed copies of it, between which each host switches by its timetable."""

# D domains, n samples, K classes

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from esper.task.data import IGNORED, Data, Domains, TaskError

Drift = Callable[[Data, np.random.Generator], Data]
"""Returns a transformed copy of a data set with equal shapes; the stream is the same for all hosts."""
NOISE = 1.0
"""Standard deviation of the added noise, as a multiple of that of the training inputs. Higher: harder."""
WRONG = 0.4
"""Share of the training labels that mislabelling replaces. Higher: harder."""


def domains(
    data: Data, drifts: Mapping[str, Callable[[Data], Data]], stream: np.random.Generator, presence: np.random.Generator
) -> Domains:
    """Return the data as it is, domain 0, and after each drift.

    Args:
        data: a data set.
        drifts: kind of a drift -> the drift.
        stream: stream of the order in which the samples pass to a new domain.
        presence: stream of the order in which training samples come and go.
    """
    copies = [data, *(drift(data) for drift in drifts.values())]

    def stacked(name: str) -> Tensor:
        parts = [getattr(copy, name) for copy in copies]
        return torch.stack(parts) if drifts else parts[0][None]  # without drifts, nothing is copied

    def rank(samples: Tensor, stream: np.random.Generator = stream) -> Tensor:
        return torch.from_numpy((stream.permutation(len(samples)) + 0.5) / len(samples))

    return Domains(
        names=("", *drifts),
        train_x=stacked("train_x"),
        train_y=stacked("train_y"),
        valid_x=stacked("valid_x"),
        valid_y=stacked("valid_y"),
        test_x=stacked("test_x"),
        test_y=stacked("test_y"),
        train_rank=rank(data.train_y),
        test_rank=rank(data.test_y),  # before the validation samples, so that their number does not change it
        valid_rank=rank(data.valid_y),
        train_presence=rank(data.train_y, presence),
    )


# ---- labels


def relabel(data: Data, rng: np.random.Generator) -> Data:
    """Permute the classes, so that none keeps its number."""
    shuffled = rng.permutation(data.num_classes)
    new = np.empty_like(shuffled)
    new[shuffled] = np.roll(shuffled, 1)
    table = torch.from_numpy(new)
    parts = {name: getattr(data, name) for name in ("train_y", "valid_y", "test_y")}

    def changed(y: Tensor) -> Tensor:
        known = y.long()  # in bytes, class 156 would equal IGNORED
        return torch.where(known == IGNORED, known, table[known.clamp(min=0)]).to(y.dtype)

    return replace(data, **{name: changed(y) for name, y in parts.items()})


def mislabel(data: Data, rng: np.random.Generator) -> Data:
    """Replace a share of the training labels by other classes; validation and test labels stay right."""
    y = data.train_y.flatten().long()
    known = np.flatnonzero(y.numpy() != IGNORED)
    wrong = torch.from_numpy(np.sort(rng.permutation(known)[: round(WRONG * len(known))]))
    new = y.clone()
    new[wrong] = (y[wrong] + torch.from_numpy(rng.integers(1, data.num_classes, len(wrong)))) % data.num_classes
    return replace(data, train_y=new.view(data.train_y.shape).to(data.train_y.dtype))


# ---- images


def _images(transform: Callable[[Tensor], Tensor]) -> Drift:
    """Return the drift that applies a transformation of float images to all parts; bytes are rounded."""

    def drift(data: Data, rng: np.random.Generator) -> Data:
        return with_inputs(data, lambda x, _: transform(x))

    return drift


def with_inputs(data: Data, transform: Callable[[Tensor, str], Tensor]) -> Data:
    """Return the data with the inputs of each part transformed as floats; bytes are rounded."""

    def changed(part: str) -> Tensor:
        x: Tensor = getattr(data, part)
        y = transform(x.float(), part)
        return y.round_().clamp_(0, 255).to(torch.uint8) if x.dtype is torch.uint8 else y

    return replace(data, **{part: changed(part) for part in ("train_x", "test_x", "valid_x")})


def invert(data: Data, rng: np.random.Generator) -> Data:
    """Exchange bright and dark: the ends of the range of the training inputs."""
    ends = float(data.train_x.min()) + float(data.train_x.max())
    return with_inputs(data, lambda x, _: ends - x)


def rotate(data: Data, rng: np.random.Generator) -> Data:
    """Rotate by 90 degrees."""
    height, width = data.train_x.shape[-2:]
    if height != width:
        raise TaskError(f"task.events.kinds=[rotate] needs square images, and these have {height} x {width} pixels: use turn")
    return with_inputs(data, lambda x, _: x.rot90(1, (-2, -1)))


def noise(data: Data, rng: np.random.Generator) -> Data:
    """Add normal noise, fixed for each sample."""
    spread = NOISE * float(data.train_x.float().std())

    def noisy(x: Tensor, part: str) -> Tensor:
        return x + spread * torch.from_numpy(rng.standard_normal(tuple(x.shape), dtype=np.float32))

    return with_inputs(data, noisy)


def blur(x: Tensor) -> Tensor:
    """Return the means over 3 x 3 pixels; edge pixels are replicated."""
    return F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3, stride=1)


LABEL_DRIFTS: Mapping[str, Drift] = {"relabel": relabel, "mislabel": mislabel}
"""Kind -> drift, of all tasks."""
IMAGE_DRIFTS: Mapping[str, Drift] = {
    "invert": invert,
    "rotate": rotate,
    "turn": _images(lambda x: x.flip(-2, -1)),
    "mirror": _images(lambda x: x.flip(-1)),
    "shift": _images(lambda x: x.roll(max(1, x.shape[-1] // 4), -1)),
    "blur": _images(blur),
    "noise": noise,
    **LABEL_DRIFTS,
}
"""Kind -> drift, of image tasks."""
