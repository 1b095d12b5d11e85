"""Image classification tasks. A new data set is a loader and a config."""

# n images, C channels

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from esper.hosts.base import HostConfig
from esper.seeding import stream
from esper.task.augment import Augmentation
from esper.task.base import Task, TaskConfig
from esper.task.data import Data, TaskError
from esper.task.instances import Name


@dataclass(kw_only=True, slots=True)
class ImagesConfig(TaskConfig):
    """Fields of all image tasks."""

    standard_kinds: ClassVar[Mapping[int, Sequence[str]]] = {2: ("oo", "xo", "ox"), 3: ("ooo", "xoo", "oxx")}

    classes: list[int] = field(default_factory=lambda: [0])
    """Number of classes that a host learns and is measured on, each at least 2, or 0 for all. Each host draws its classes."""

    def __post_init__(self) -> None:
        TaskConfig.__post_init__(self)
        self._check_list("classes", "0 or at least 2", [value == 0 or value >= 2 for value in self.classes])

    def check_host(self, host: HostConfig) -> None:
        TaskConfig.check_host(self, host)
        if context := host.sequence_length():
            raise ValueError(f"host.context={context} has no effect on images: leave it out")

    def load(self) -> Data:
        """Read the images.

        Raises:
            TaskError: the files are missing or damaged.
        """
        raise TypeError(f"{type(self).__name__} does not load images: define load()")

    def augmentation(self) -> Augmentation | None:
        """Return the augmentation of training images, or None."""
        return None

    def build(self, host: HostConfig) -> "Images":
        return Images(self, host)


@dataclass(kw_only=True, slots=True)
class AugmentedConfig(ImagesConfig):
    """Fields of image tasks with data augmentation."""

    crop_padding: int = 0
    """Padding of random crops of training images [pixels], from 0 to 127; 0 turns them off. Higher: larger shifts."""
    flip: bool = False
    """If true, mirror each training image with probability 1/2."""

    def __post_init__(self) -> None:
        ImagesConfig.__post_init__(self)
        if not 0 <= self.crop_padding <= 127:
            raise ValueError(f"task.crop_padding must be from 0 to 127, got {self.crop_padding}: 4 is usual")

    def augmentation(self) -> Augmentation | None:
        return Augmentation(padding=self.crop_padding, flip=self.flip) if self.crop_padding or self.flip else None


class Images(Task):
    """An image classification task."""

    def __init__(self, config: ImagesConfig, host: HostConfig) -> None:
        super().__init__(config, host, config.load())
        self.config, self.augmentation = config, config.augmentation()
        if max(config.classes) > self.data.num_classes:
            raise TaskError(f"task.classes={config.classes} exceeds the {self.data.num_classes} classes: use 0 for all")

    def classes(self, name: Name) -> tuple[int, ...] | None:
        count = name.choose("instance_num_classes", self.config.classes)
        if not count:
            return None
        chosen = name.stream("instance_classes").permutation(self.data.num_classes)[:count]
        return tuple(sorted(chosen.tolist()))


def split(count: int, parts: list[int], purpose: str, seed: int) -> list[Tensor]:
    """Return the indices of `count` samples, shuffled by a named stream and cut into parts of these sizes."""
    order = torch.from_numpy(stream(seed, purpose).permutation(count))
    return list(order[: sum(parts)].split(parts))


def colours(images: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the exact mean and standard deviation `[C, 1, 1]` of each channel of byte images `[n, C, H, W]`."""
    channels = images.shape[1]
    counts = [torch.bincount(images[:, channel].flatten().int(), minlength=256).numpy() for channel in range(channels)]
    value = np.arange(256)
    mean = np.array([np.average(value, weights=count) for count in counts])
    square = np.array([np.average(value**2, weights=count) for count in counts])
    std = np.sqrt(np.maximum(square - mean**2, 1e-12))
    shape = (channels, 1, 1)
    return torch.tensor(mean, dtype=torch.float32).view(shape), torch.tensor(std, dtype=torch.float32).view(shape)
