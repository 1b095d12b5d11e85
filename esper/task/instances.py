"""What differs from host to host, drawn from named streams: its lesion, its labels, its share of the data, its learning rate.

An instance says what, a data view says it in arrays that a shard can stack. Each property has a stream of its own, so that
drawing one more changes none of the others. The split is part of every name: held-out hosts have instances of their own.
"""

# n training samples, K classes, T positions of a sequence

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.seeding import stream
from esper.task.data import IGNORED, Data

Value = TypeVar("Value")


class Split(StrEnum):
    """Which hosts: those a controller may learn from, or fresh ones to judge it by."""

    TRAINING = "training"
    HELD_OUT = "held_out"


class Instances(StrEnum):
    """Which hosts are drawn."""

    lesioned = "lesioned"
    healthy = "healthy"


@dataclass(frozen=True, kw_only=True, slots=True)
class Name:
    """Which host: everything random about it comes from streams of this name."""

    root: int
    split: Split
    episode: int
    index: int

    def stream(self, purpose: str, *keys: int | str) -> np.random.Generator:
        """The stream of a purpose."""
        return stream(self.root, purpose, self.split, self.episode, self.index, *keys)

    def choose(self, purpose: str, values: Sequence[Value]) -> Value:
        """One of the values, each as likely as any other."""
        return values[int(self.stream(purpose).integers(len(values)))]


@dataclass(frozen=True, kw_only=True, slots=True)
class Instance:
    """What is particular to a host."""

    lesion: str = ""
    """One letter a block, x lesioned, o whole; empty where the host has no blocks to lesion."""
    label_noise: float = 0.0
    """Share of its training labels that are wrong."""
    data_share: float = 1.0
    """Share of the training samples that it learns from."""
    classes: tuple[int, ...] | None = None
    """The classes that it learns and is measured on, ascending; None for all."""
    rate_factor: float = 1.0
    """Its learning rates in units of the task's."""

    def describe(self) -> str:
        """A short name, such as "xoo noise=0.2 data=0.1 classes=5 rate=0.3", without what is ordinary."""
        parts = [self.lesion] if self.lesion else []
        parts += [f"noise={self.label_noise:g}"] if self.label_noise else []
        parts += [f"data={self.data_share:g}"] if self.data_share != 1.0 else []
        parts += [f"classes={len(self.classes)}"] if self.classes is not None else []
        parts += [f"rate={self.rate_factor:g}"] if self.rate_factor != 1.0 else []
        return " ".join(parts) or "plain"


@dataclass(frozen=True, kw_only=True, slots=True)
class DataView:
    """What an instance makes of the training data. None stands for what all have, and costs nothing."""

    samples: npt.NDArray[np.int64] | None = None
    """Indices of the training samples that the host learns from, ascending."""
    labels: Tensor | None = None
    """The targets of all n training samples as this host is told them, in as few bytes as they need."""
    classes: npt.NDArray[np.bool_] | None = None
    """`[K]`: on which classes it is measured."""
    rate_factor: float = 1.0
    """Its learning rates in units of the task's."""


def data_view(instance: Instance, data: Data, name: Name) -> DataView:
    """The data_view of an instance: fixed for the life of a host."""
    samples, classes = _samples(instance, data, name), None
    if instance.classes is not None:
        classes = np.zeros(data.num_classes, dtype=np.bool_)
        classes[list(instance.classes)] = True
    return DataView(
        samples=samples,
        labels=_labels(instance, data, name, samples) if instance.label_noise else None,
        classes=classes,
        rate_factor=instance.rate_factor,
    )


def _samples(instance: Instance, data: Data, name: Name) -> npt.NDArray[np.int64] | None:
    """The samples of the instance's classes, and of them the share that it has: at least one."""
    if instance.classes is None and instance.data_share == 1.0:
        return None
    samples = np.arange(len(data.train_y))
    if instance.classes is not None:
        samples = samples[np.isin(_array(data.train_y), instance.classes)]
    if instance.data_share != 1.0:
        kept = max(1, round(instance.data_share * len(samples)))
        samples = np.sort(name.stream("instance_samples").permutation(samples)[:kept])
    return samples


def _labels(instance: Instance, data: Data, name: Name, samples: npt.NDArray[np.int64] | None) -> Tensor:
    """Targets of which that share of the host's own is wrong: another of the host's classes, each as likely as any other."""
    rng, labels = name.stream("instance_labels"), _array(data.train_y).copy()
    rows = np.arange(len(labels)) if samples is None else samples
    own = labels[rows]
    flat = own.reshape(-1)
    known = np.flatnonzero(flat != IGNORED)
    wrong = rng.permutation(known)[: round(instance.label_noise * len(known))]
    classes = np.arange(data.num_classes) if instance.classes is None else np.array(instance.classes)
    place = np.searchsorted(classes, flat[wrong])
    flat[wrong] = classes[(place + rng.integers(1, len(classes), len(wrong))) % len(classes)]
    labels[rows] = own
    small = np.uint8 if data.num_classes <= 256 and not (labels == IGNORED).any() else np.int32
    return torch.from_numpy(labels.astype(small))


def _array(targets: Tensor) -> npt.NDArray[Any]:
    return targets.cpu().numpy()
