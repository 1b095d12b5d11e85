"""What a task is: data on a device, a way to make hosts, and how they are trained."""

# M members, B batch

from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import Tensor, nn

from esper.population.bank import SGDConfig


class Split(StrEnum):
    """Which hosts: those a controller may learn from, or fresh ones to judge it by."""

    TRAINING = "training"
    HELD_OUT = "held_out"


class TaskError(ValueError):
    """A task cannot be set up; the message says what is missing and how to get it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """Inputs `[n, channels, H, W]` and class indices `[n]` of the three parts.

    Hosts learn from `train`; rewards, counterfactuals and the governor see `valid`; `test` is touched once, by `evaluate`.
    """

    train_x: Tensor
    train_y: Tensor
    valid_x: Tensor
    valid_y: Tensor
    test_x: Tensor
    test_y: Tensor
    num_classes: int

    def to(self, device: torch.device) -> "Data":
        """The same data on a device, where it stays."""
        moved = {name: getattr(self, name).to(device) for name in self.__slots__ if name != "num_classes"}
        return Data(**moved, num_classes=self.num_classes)


@dataclass(kw_only=True, slots=True)
class TaskConfig:
    """Fields every task shares."""

    batch_size: int = 128
    """Samples in one optimiser step of a host, at least 1; the rest of an epoch that fills no batch is left out."""
    host_optimiser: SGDConfig = field(default_factory=lambda: SGDConfig(weight_decay=5e-4))
    """How hosts learn."""
    seed_optimiser: SGDConfig = field(default_factory=lambda: SGDConfig())
    """How seeds learn; their gradients are clipped apart from the host's."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"task.batch_size must be at least 1, got {self.batch_size}")
        self.host_optimiser.check("task.host_optimiser")
        self.seed_optimiser.check("task.seed_optimiser")

    def build(self) -> "Task":
        """Loads the data.

        Raises:
            TaskError: the data is not there or not what it should be.
        """
        raise TypeError(f"{type(self).__name__} does not say how to load its data: define build()")


class Task:
    """A data set and the hosts that learn it."""

    data: Data

    def __init__(self, config: TaskConfig) -> None:
        self.optimisers = (config.host_optimiser, config.seed_optimiser)
        self.batch_size = config.batch_size

    def host(self, root: int, split: Split, episode: int, index: int) -> nn.Module:
        """The host of this name: the same arguments give the same instance and the same first weights."""
        raise TypeError(f"{type(self).__name__} does not make hosts: define host(root, split, episode, index)")

    def describe(self, root: int, split: Split, episode: int, index: int) -> str:
        """A short name of the instance, such as its lesion; for reports only, the controller never sees it."""
        raise TypeError(f"{type(self).__name__} does not name its instances: define describe(...)")
