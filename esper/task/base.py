"""What a task is: data on a device, instances that differ from host to host, and how hosts are made and trained."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from esper.seeding import torch_stream
from esper.seeds.bank import SGDConfig
from esper.task.augment import Augmentation
from esper.task.data import Data, TaskError
from esper.task.instances import DataView, Instance, Instances, Name, Split, data_view

__all__ = ["Data", "DataView", "Instance", "Instances", "Split", "Task", "TaskConfig", "TaskError", "check_kinds"]


@dataclass(kw_only=True, slots=True)
class TaskConfig:
    """Fields every task shares. Where a field is a list, each host draws one of its values, each as likely as any other."""

    batch_size: int = 128
    """Samples in one optimiser step of a host, at least 1; the rest of an epoch that fills no batch is left out."""
    epoch_samples: int = 0
    """Training samples a host sees in an epoch, 0 for as many as there are. Fewer: shorter epochs, and a host's walk through its
    samples goes on over the epochs."""
    valid_samples: int = 0
    """Validation samples every measurement uses, 0 for all. Fewer: faster, and noisier rewards."""
    label_noise: list[float] = field(default_factory=lambda: [0.0])
    """Share of a host's training labels that are wrong, each from 0 to below 1; fixed for the life of a host."""
    data_share: list[float] = field(default_factory=lambda: [1.0])
    """Share of the training samples that a host learns from, each above 0 and at most 1; a smaller share is seen more often."""
    rate_factor: list[float] = field(default_factory=lambda: [1.0])
    """Factor on a host's learning rates, those of its seeds included, each above 0."""
    host_optimiser: SGDConfig = field(default_factory=lambda: SGDConfig(weight_decay=5e-4))
    """How hosts learn."""
    seed_optimiser: SGDConfig = field(default_factory=lambda: SGDConfig())
    """How seeds learn; their gradients are clipped apart from the host's."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"task.batch_size must be at least 1, got {self.batch_size}")
        if self.epoch_samples and self.epoch_samples < self.batch_size:
            raise ValueError(
                f"task.epoch_samples must be 0 or at least task.batch_size={self.batch_size}, got {self.epoch_samples}: "
                "an epoch has at least one batch"
            )
        if self.valid_samples < 0:
            raise ValueError(f"task.valid_samples must be at least 0, got {self.valid_samples}: 0 takes all")
        self._check_list("label_noise", "from 0 to below 1", [0 <= value < 1 for value in self.label_noise])
        self._check_list("data_share", "above 0 and at most 1", [0 < value <= 1 for value in self.data_share])
        self._check_list("rate_factor", "above 0", [0 < value < float("inf") for value in self.rate_factor])
        self.host_optimiser.check("task.host_optimiser")
        self.seed_optimiser.check("task.seed_optimiser")

    def _check_list(self, name: str, rule: str, good: Sequence[bool]) -> None:
        if not good or not all(good):
            raise ValueError(f"task.{name} must list at least one value, each {rule}, got {getattr(self, name)}")

    def build(self) -> "Task":
        """Loads the data.

        Raises:
            TaskError: the data is not there or not what it should be.
        """
        raise TypeError(f"{type(self).__name__} does not say how to load its data: define build()")


def check_kinds(instances: Instances, kinds: Sequence[str], parts: int, what: str = "block (task.host.blocks)") -> None:
    """Raises ValueError where lesioned hosts are asked for and the kinds of lesion do not fit their parts."""
    wrong = [kind for kind in kinds if len(kind) != parts or set(kind) - {"o", "x"}]
    if instances is Instances.lesioned and (wrong or not kinds):
        raise ValueError(
            f"task.kinds must name at least one kind with {parts} letters o or x, one a {what}, "
            f"got [{','.join(wrong)}]; task.instances=healthy needs none"
        )


class Task:
    """A data set and the hosts that learn it."""

    def __init__(self, config: TaskConfig, data: Data | None = None) -> None:
        self.optimisers = (config.host_optimiser, config.seed_optimiser)
        self.batch_size, self.epoch_samples = config.batch_size, config.epoch_samples
        self.augmentation: Augmentation | None = None
        self._common = config
        if data is not None:
            self.data: Data = _shortened(data, config.valid_samples)

    def make_host(self, instance: Instance) -> nn.Module:
        """A host of this instance, with random first weights from torch's global stream."""
        raise TypeError(f"{type(self).__name__} does not make hosts: define make_host(instance)")

    def lesion(self, name: Name) -> str:
        """The lesion of this host, one letter a block; empty where there is nothing to lesion."""
        return ""

    def classes(self, name: Name) -> tuple[int, ...] | None:
        """The classes of this host, ascending; None for all."""
        return None

    def instance(self, root: int, split: Split, episode: int, index: int) -> Instance:
        """What is particular to the host of this name."""
        name, config = Name(root=root, split=split, episode=episode, index=index), self._common
        return Instance(
            lesion=self.lesion(name),
            label_noise=name.choose("instance_label_noise", config.label_noise),
            data_share=name.choose("instance_data_share", config.data_share),
            classes=self.classes(name),
            rate_factor=name.choose("instance_rate_factor", config.rate_factor),
        )

    def view(self, root: int, split: Split, episode: int, index: int) -> DataView:
        """What the instance of this host makes of the data."""
        name = Name(root=root, split=split, episode=episode, index=index)
        return data_view(self.instance(root, split, episode, index), self.data, name)

    def host(self, root: int, split: Split, episode: int, index: int) -> nn.Module:
        """The host of this name: the same arguments give the same instance and the same first weights."""
        instance = self.instance(root, split, episode, index)
        with torch.random.fork_rng(devices=[]):
            torch.random.set_rng_state(torch_stream(root, "host_init", split, episode, index).get_state())
            return self.make_host(instance)

    def describe(self, root: int, split: Split, episode: int, index: int) -> str:
        """A short name of the instance, such as its lesion; for reports only, the controller never sees it."""
        return self.instance(root, split, episode, index).describe()


def _shortened(data: Data, valid_samples: int) -> Data:
    """The data with its first validation samples only; loaders lay them in a random order."""
    if valid_samples > len(data.valid_y):
        raise TaskError(
            f"task.valid_samples={valid_samples} exceeds the {len(data.valid_y)} validation samples that there are: use 0 for all"
        )
    if not valid_samples:
        return data
    return replace(data, valid_x=data.valid_x[:valid_samples], valid_y=data.valid_y[:valid_samples])
