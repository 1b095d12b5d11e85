"""Image classification tasks. A new data set takes a config with a `load` method."""

# n images, C channels

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from esper.hosts.base import HostConfig
from esper.ranges import check_ranges
from esper.task.augment import Augmentation
from esper.task.base import Task, TaskConfig
from esper.task.check import PARTS
from esper.task.data import Data, DataError, TaskError, rows_at_once
from esper.task.drifts import IMAGE_DRIFTS, Drift
from esper.task.events import CLASSES, RATES
from esper.task.instances import Name
from esper.text import counted

CONSTANT = 1e-6
"""A channel whose variance over the training set is at most this is constant, and is not scaled [squared grey levels]."""


@dataclass(kw_only=True, slots=True)
class ImagesConfig(TaskConfig):
    """Fields of all image tasks."""

    standard_kinds: ClassVar[Mapping[int, Sequence[str]]] = {2: ("oo", "xo", "ox"), 3: ("ooo", "xoo", "oxx")}
    drifts: ClassVar[Mapping[str, Drift]] = IMAGE_DRIFTS
    other_events: ClassVar[tuple[str, ...]] = (*CLASSES, *RATES)

    classes: list[int] = field(default_factory=lambda: [0])
    """Number of classes that a host learns and is measured on, each at least 2, or 0 for all. Each host draws its classes."""

    def __post_init__(self) -> None:
        TaskConfig.__post_init__(self)
        self._check_list("classes", "0 or at least 2", [value == 0 or value >= 2 for value in self.classes])
        if any(self.classes) and self.label_noise != [0.0] and "relabel" in self.events.kinds:
            raise ValueError(
                "task.classes with task.label_noise and relabelling events would give samples classes that a host does not have: "
                "leave one of them out"
            )

    def check_host(self, host: HostConfig) -> None:
        TaskConfig.check_host(self, host)
        if context := host.sequence_length():
            raise ValueError(f"host.context={context} has no effect on images: leave it out")

    def draw_classes(self, name: Name, num_classes: int) -> tuple[int, ...] | None:
        count = name.choose("instance_num_classes", self.classes)
        if not count:
            return None
        chosen = name.stream("instance_classes").permutation(num_classes)[:count]
        return tuple(sorted(chosen.tolist()))

    def build(self, host: HostConfig) -> Task:
        task = TaskConfig.build(self, host)
        if max(self.classes) > task.data.num_classes:
            raise TaskError(f"task.classes={self.classes} exceeds the {task.data.num_classes} classes: use 0 for all")
        moving = set(self.events.kinds) & set(CLASSES)
        for part in PARTS if any(self.classes) or moving else ():
            if missing := set(range(task.data.num_classes)).difference(getattr(task.data, f"{part}_y").tolist()):
                remedy = "let none arrive or leave" if moving else "use task.classes=[0]"
                if part == "valid" and self.valid_samples:
                    remedy = f"raise task.valid_samples={self.valid_samples}, or {remedy}"
                raise DataError(f"{part}_y has no sample of class {min(missing)}, which hosts may draw: {remedy}")
        fewest = min(count or task.data.num_classes for count in self.classes)
        count, group = max(self.events.count), self.events.group
        if moving and count * group > fewest - 2:
            raise TaskError(
                f"{counted(count, 'event')} of {group} classes each (task.events.count, task.events.group) would add or "
                f"remove up to {count * group} of {fewest} classes, but two must always remain: lower one"
            )
        return task


@dataclass(kw_only=True, slots=True)
class AugmentedConfig(ImagesConfig):
    """Fields of image tasks with data augmentation."""

    crop_padding: int = 0
    """Padding of random crops of training images [pixels], from 0 to 127; 0 turns them off. Higher: larger shifts."""
    flip: bool = False
    """If true, mirror each training image with probability 1/2."""

    def __post_init__(self) -> None:
        ImagesConfig.__post_init__(self)
        check_ranges("task", self, {"[0, 127]": ["crop_padding"]})

    def augmentation(self) -> Augmentation | None:
        return Augmentation(padding=self.crop_padding, flip=self.flip) if self.crop_padding or self.flip else None


def split_images(
    images: Tensor,
    targets: Tensor,
    sizes: list[int],
    shuffle: np.random.Generator,
    test: tuple[Tensor, Tensor] | None = None,
    num_classes: int = 10,
) -> Data:
    """Return shuffled images, divided into training, validation and test sets of these sizes.

    Args:
        sizes: sizes of the three sets, or of the first two if `test` is given.
        shuffle: stream of the order.
        test: images and classes of a separate test set.
        num_classes: number of classes.
    """
    order = torch.from_numpy(shuffle.permutation(len(targets)))[: sum(sizes)].split(sizes)
    sets = [(images[part], targets[part]) for part in order]
    return Data.of_sets(sets if test is None else [*sets, test], num_classes)


def normalised(data: Data) -> Data:
    """Return byte images with the exact mean and standard deviation of each channel of the training set; 1 for a constant one."""
    images, channels = data.train_x, data.train_x.shape[1]
    counts = np.zeros((channels, 256), np.int64)
    for part in images.split(rows_at_once(images)):
        counts += np.stack(
            [torch.bincount(part[:, channel].flatten().int(), minlength=256).numpy() for channel in range(channels)]
        )
    value = np.arange(256)
    mean = np.array([np.average(value, weights=count) for count in counts])
    square = np.array([np.average(value**2, weights=count) for count in counts])
    variance = square - mean**2
    std = np.sqrt(np.where(variance > CONSTANT, variance, 1.0))
    shape = (channels, 1, 1)
    return replace(
        data,
        mean=torch.tensor(mean, dtype=torch.float32).view(shape),
        std=torch.tensor(std, dtype=torch.float32).view(shape),
    )
