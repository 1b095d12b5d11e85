"""Differences between hosts, drawn from named streams: lesion, labels, share of the data, learning rate.

An instance describes them; a data view holds the arrays that a shard can stack. Each property has its own stream, so that a new
property does not change the others. The split is part of every name, so that held-out hosts have their own instances.
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
from esper.task.events import Event

Value = TypeVar("Value")


class Split(StrEnum):
    """The hosts that a controller learns from, and the held-out hosts that it is scored on."""

    TRAINING = "training"
    HELD_OUT = "held_out"


class Instances(StrEnum):
    """The condition of the hosts."""

    lesioned = "lesioned"
    healthy = "healthy"


@dataclass(frozen=True, kw_only=True, slots=True)
class Name:
    """The name of a host, which keys all of its random streams."""

    root: int
    split: Split
    episode: int
    index: int

    def stream(self, purpose: str, *keys: int | str) -> np.random.Generator:
        """Return the stream for a purpose."""
        return stream(self.root, purpose, self.split, self.episode, self.index, *keys)

    def choose(self, purpose: str, values: Sequence[Value]) -> Value:
        """Draw one of the values uniformly."""
        return values[int(self.stream(purpose).integers(len(values)))]


@dataclass(frozen=True, kw_only=True, slots=True)
class Instance:
    """The properties of a host."""

    lesion: str = ""
    """One letter per block or layer, x lesioned, o intact; empty if the host has no parts to lesion."""
    label_noise: float = 0.0
    """Share of wrong training labels."""
    data_share: float = 1.0
    """Share of the training samples that the host learns from."""
    classes: tuple[int, ...] | None = None
    """Classes that the host learns and is measured on, ascending; None for all."""
    rate_factor: float = 1.0
    """Factor on the task's learning rates."""
    timetable: tuple[Event, ...] = ()
    """What happens during training, in order."""

    def describe(self) -> str:
        """Return a short name without default values, such as "xoo noise=0.2 data=0.1 classes=5 rate=0.3 invert@5"."""
        parts = [self.lesion] if self.lesion else []
        parts += [f"noise={self.label_noise:g}"] if self.label_noise else []
        parts += [f"data={self.data_share:g}"] if self.data_share != 1.0 else []
        parts += [f"classes={len(self.classes)}"] if self.classes is not None else []
        parts += [f"rate={self.rate_factor:g}"] if self.rate_factor != 1.0 else []
        parts += [event.describe() for event in self.timetable]
        return " ".join(parts) or "plain"


@dataclass(frozen=True, kw_only=True, slots=True)
class DataView:
    """The training data of an instance. None stands for the common data and costs no memory."""

    samples: npt.NDArray[np.int64] | None = None
    """Indices of the host's training samples, ascending."""
    labels: Tensor | None = None
    """Targets of all n training samples for this host, in the smallest integer type that holds them."""
    classes: npt.NDArray[np.bool_] | None = None
    """`[K]`: classes that the host is measured on."""
    rate_factor: float = 1.0
    """Factor on the task's learning rates."""
    timetable: tuple[Event, ...] = ()
    """What happens during training, in order."""


def data_view(instance: Instance, data: Data, name: Name) -> DataView:
    """Return the data view of an instance, which is fixed for the life of a host."""
    samples, classes = _samples(instance, data, name), None
    if instance.classes is not None:
        classes = np.zeros(data.num_classes, dtype=np.bool_)
        classes[list(instance.classes)] = True
    return DataView(
        samples=samples,
        labels=_labels(instance, data, name, samples) if instance.label_noise else None,
        classes=classes,
        rate_factor=instance.rate_factor,
        timetable=instance.timetable,
    )


def _samples(instance: Instance, data: Data, name: Name) -> npt.NDArray[np.int64] | None:
    """Return the samples of the instance's classes, or its share of them, at least one."""
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
    """Return all targets, with a share of those of the host's samples replaced by its other classes, drawn uniformly."""
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
