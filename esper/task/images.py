"""Tasks of telling images apart: the hosts, their instances and the split. A new data set is a loader and a config."""

# n images, C channels

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from esper.hosts.cnn import CNNConfig
from esper.seeding import stream
from esper.task.augment import Augmentation
from esper.task.base import Task, TaskConfig, check_kinds
from esper.task.data import Data, TaskError
from esper.task.instances import Instance, Instances, Name


@dataclass(kw_only=True, slots=True)
class ImagesConfig(TaskConfig):
    """Fields of all image tasks."""

    instances: Instances = Instances.healthy
    """`lesioned` hosts lack spatial context in some of their blocks; `healthy` hosts are whole."""
    kinds: list[str] = field(default_factory=lambda: list[str]())
    """Kinds of lesion, each as likely as any other: one letter a block in forward order, x lesioned, o whole."""
    classes: list[int] = field(default_factory=lambda: [0])
    """Number of classes a host learns and is measured on, each at least 2, or 0 for all; which ones is drawn for each host."""
    host: CNNConfig = field(default_factory=lambda: CNNConfig())
    """The host's architecture."""
    split_seed: int = 0
    """Names the split of the images; the same for every run, so that runs can be compared."""

    def __post_init__(self) -> None:
        TaskConfig.__post_init__(self)
        check_kinds(self.instances, self.kinds, self.parts())
        self._check_list("classes", "0 or at least 2", [value == 0 or value >= 2 for value in self.classes])

    def load(self) -> Data:
        """Reads the images.

        Raises:
            TaskError: they are not there or not what they should be.
        """
        raise TypeError(f"{type(self).__name__} does not say how to load its images: define load()")

    def augmentation(self) -> Augmentation | None:
        """How training images are varied; None for not at all."""
        return None

    def parts(self) -> int:
        """Blocks or layers of the host that may be lesioned."""
        return self.host.blocks

    def make_host(self, shape: tuple[int, ...], num_classes: int, lesioned: list[bool]) -> nn.Module:
        """A host for images of this shape `(C, H, W)`, with random first weights from torch's global stream."""
        return self.host.build(shape[0], num_classes, lesioned)

    def build(self) -> "Images":
        return Images(self)


@dataclass(kw_only=True, slots=True)
class AugmentedConfig(ImagesConfig):
    """Fields of image tasks whose training images may be varied."""

    crop_padding: int = 0
    """Black pixels around a training image, out of which a window of its size is cut at random, from 0 to 127; 0: none."""
    flip: bool = False
    """Mirror every other training image, at random."""

    def __post_init__(self) -> None:
        ImagesConfig.__post_init__(self)
        if not 0 <= self.crop_padding <= 127:
            raise ValueError(f"task.crop_padding must be from 0 to 127, got {self.crop_padding}: 4 is usual")

    def augmentation(self) -> Augmentation | None:
        return Augmentation(padding=self.crop_padding, flip=self.flip) if self.crop_padding or self.flip else None


class Images(Task):
    """The task of an `ImagesConfig`."""

    def __init__(self, config: ImagesConfig) -> None:
        super().__init__(config, config.load())
        self.config, self.augmentation = config, config.augmentation()
        if max(config.classes) > self.data.num_classes:
            raise TaskError(
                f"task.classes={config.classes} asks for more than the {self.data.num_classes} classes that there are: "
                "use 0 for all"
            )

    def lesion(self, name: Name) -> str:
        """Such as "xoo": the first block sees no neighbours."""
        if self.config.instances is Instances.healthy:
            return "o" * self.config.parts()
        return name.choose("instance", self.config.kinds)

    def classes(self, name: Name) -> tuple[int, ...] | None:
        count = name.choose("instance_num_classes", self.config.classes)
        if not count:
            return None
        chosen = name.stream("instance_classes").permutation(self.data.num_classes)[:count]
        return tuple(sorted(chosen.tolist()))

    def make_host(self, instance: Instance) -> nn.Module:
        lesioned = [letter == "x" for letter in instance.lesion]
        return self.config.make_host(tuple(self.data.train_x.shape[1:]), self.data.num_classes, lesioned)


def split(count: int, parts: list[int], purpose: str, seed: int) -> list[Tensor]:
    """Indices of `count` samples in the random order of a named stream, cut into parts of these sizes."""
    order = torch.from_numpy(stream(seed, purpose).permutation(count))
    return list(order[: sum(parts)].split(parts))


def colours(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each colour `[C, 1, 1]` of images `[n, C, H, W]` of bytes, exactly, from their histogram."""
    channels = images.shape[1]
    counts = [torch.bincount(images[:, channel].flatten().int(), minlength=256).numpy() for channel in range(channels)]
    value = np.arange(256)
    mean = np.array([np.average(value, weights=count) for count in counts])
    square = np.array([np.average(value**2, weights=count) for count in counts])
    std = np.sqrt(np.maximum(square - mean**2, 1e-12))
    shape = (channels, 1, 1)
    return torch.tensor(mean, dtype=torch.float32).view(shape), torch.tensor(std, dtype=torch.float32).view(shape)
