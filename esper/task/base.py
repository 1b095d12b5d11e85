"""The task interface: a data set, host instances, and the creation and training of hosts."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from esper.fusion.batch_last import UNITS, flattens, suits
from esper.fusion.layout import Layout
from esper.growth.objective import CLASSIFICATION, Objective
from esper.hosts.base import HostConfig, segments_of
from esper.notices import UserNotice
from esper.options import Option
from esper.ranges import check_ranges
from esper.seeding import borrowed_stream, stream, torch_stream
from esper.task.augment import Augmentation
from esper.task.check import FEW, check_alike, check_samples, check_takes_context, drifted_copy, few_samples
from esper.task.data import Data, DataError, TaskError
from esper.task.drifts import LABEL_DRIFTS, Drift, domains
from esper.task.events import CLASSES, RATES, Event, EventsConfig, before_events, class_shares
from esper.task.instances import DataView, Instance, Instances, Name, Split, data_view

UNLIKELY = 1e-3
"""Probability below which a cut of shuffled samples would lack classes by chance."""
POOL = -1
"""Number of the episode in the names of pretrained hosts."""


@dataclass(kw_only=True, slots=True)
class TaskConfig(Option):
    """Base of task configs. If a field is a list, each host draws one of its values uniformly."""

    samples: ClassVar[Layout] = Layout.IMAGES
    """Layout of a sample: an image, or a sequence of tokens. The task accepts every host that reads such samples."""
    default_host: ClassVar[str] = "cnn"
    """Option of the group `host` that the task comes with."""
    default_optimiser: ClassVar[str] = "sgd"
    """Option of the group `optimiser` that the task comes with."""
    default_governor: ClassVar[str] = "watchdog"
    """Option of the group `governor` that the task comes with. Its thresholds depend on the task: where a loss may rise by
    itself, those for steady data would roll back healthy hosts."""
    default_reward: ClassVar[str] = "shaped"
    """Option of the group `reward` that the task comes with."""
    default_slots: ClassVar[str] = "one_seed"
    """Option of the group `slots` that the task comes with."""
    default_blueprint: ClassVar[tuple[str, ...]] = ("norm", "conv_light", "depthwise", "conv_heavy")
    """Options of the group `blueprint` that the task comes with."""
    standard_kinds: ClassVar[Mapping[int, Sequence[str]]] = {}
    """Kinds of lesion by number of host parts, used if `kinds` is empty."""
    own_data: ClassVar[tuple[str, ...]] = ("file", "folder")
    """Keys that name data of the user's own, which may change while a process runs."""
    drifts: ClassVar[Mapping[str, Drift]] = LABEL_DRIFTS
    """Drifts of the data that may happen, by the kind of event."""
    other_events: ClassVar[tuple[str, ...]] = tuple(RATES)
    """Other kinds of events that may happen."""

    instances: Instances = Instances.healthy
    """Condition of the hosts: `lesioned` hosts lack spatial context in some blocks (cnn), most inputs of some
    layers (mlp), or attention to earlier tokens in some layers (transformer); `healthy` hosts are intact."""
    kinds: list[str] = field(default_factory=lambda: list[str]())
    """Kinds of lesion, drawn uniformly: one letter per block or layer in forward order, x lesioned, o intact. Empty: the task's
    standard kinds for a host of this many parts, as its description lists them."""
    batch_size: int = 128
    """Samples per optimiser step of a host, at least 1. The last incomplete batch of an epoch is dropped."""
    epoch_samples: int = 0
    """Training samples per epoch of a host, 0 for all. Fewer: shorter epochs, and a pass over the data spans several epochs."""
    valid_samples: int = 0
    """Validation samples per measurement, 0 for all. Fewer: faster, and noisier rewards."""
    label_noise: list[float] = field(default_factory=lambda: [0.0])
    """Share of wrong labels among a host's training labels, each from 0 to below 1; each host draws one value for its life."""
    data_share: list[float] = field(default_factory=lambda: [1.0])
    """Share of the training samples that a host learns from, each above 0 and at most 1; each host draws one value. Lower: fewer
    samples, repeated more."""
    rate_factor: list[float] = field(default_factory=lambda: [1.0])
    """Factor on the learning rates of a host and its seeds, each above 0; each host draws one value."""
    pretrain: int = 0
    """Host epochs of training before the episode, without seeds, at least 0; 0: the hosts are newborn. Higher: better hosts, but
    a slower first start; pretrained hosts are cached for later runs."""
    pretrain_pool: int = 32
    """Number of pretrained hosts for each root seed and split, at least 1; each host of an episode is a copy of one of them, with
    its instance. Higher: more varied hosts, but a slower first start."""
    pretrain_folder: str = ""
    """Folder in which pretrained hosts are cached; empty: `esper/pretrained` in the user's cache folder. It may be emptied at any
    time."""
    split_seed: int = 0
    """Random seed of the split into training, validation and test samples, and of the drifts of the data. It is independent of
    the run's seed, so that runs can be compared."""
    events: EventsConfig = field(default_factory=EventsConfig)
    """Events that happen to a host while it trains, such as drift of its data; none by default."""

    def __post_init__(self) -> None:
        check_ranges("task", self, {"[1, inf]": ["batch_size", "pretrain_pool"], "[0, inf]": ["valid_samples", "pretrain"]})
        if self.epoch_samples and self.epoch_samples < self.batch_size:
            raise ValueError(
                f"task.epoch_samples must be 0 or at least task.batch_size={self.batch_size}, got {self.epoch_samples}: "
                "an epoch has at least one batch"
            )
        for key in fields(self):
            if not self.pretrain and key.name in ("pretrain_pool", "pretrain_folder") and getattr(self, key.name) != key.default:
                warnings.warn(f"task.{key.name} has no effect, since task.pretrain is 0", stacklevel=3)
        self._check_list("label_noise", "from 0 to below 1", [0 <= value < 1 for value in self.label_noise])
        self._check_list("data_share", "above 0 and at most 1", [0 < value <= 1 for value in self.data_share])
        self._check_list("rate_factor", "above 0", [0 < value < float("inf") for value in self.rate_factor])
        self.events.check((*self.drifts, *self.other_events))
        if self.label_noise != [0.0] and set(self.events.kinds) & set(CLASSES):
            raise ValueError(
                "task.label_noise would give samples classes that have not arrived, or have left: leave one of them out"
            )
        if self.data_share != [1.0] and set(self.events.kinds) & set(CLASSES):
            raise ValueError(
                "task.data_share cannot limit arriving and leaving classes: leave it out, and set task.events.replay"
            )

    def _check_list(self, name: str, rule: str, good: Sequence[bool]) -> None:
        if not good or not all(good):
            raise ValueError(f"task.{name} must list at least one value, each {rule}, got {getattr(self, name)}")

    def check_mapped(self, mapped: bool) -> None:
        """Raise ValueError if copies of the data, which drifts need, would lie in memory."""
        if mapped and set(self.events.kinds) & set(self.drifts):
            raise ValueError("task.mapped=true keeps data out of memory, but drifts need copies in memory: leave one of them out")

    def check_host(self, host: HostConfig) -> None:
        """Raise ValueError if a host, which must read the task's samples, cannot have the task's instances."""
        if self.instances is Instances.healthy:
            if self.kinds:
                raise ValueError("task.kinds has no effect on healthy hosts: add task.instances=lesioned, or set task.kinds=[]")
            for key in fields(host):
                if key.name.startswith("lesion") and getattr(host, key.name) != key.default:
                    warnings.warn(f"host.{key.name} has no effect on healthy hosts: add task.instances=lesioned", stacklevel=3)
            return
        if obstacle := host.lesion_obstacle():
            raise ValueError(f"task.instances=lesioned {obstacle}: set task.instances=healthy")
        kinds, parts = self.kinds_of(host), host.num_parts()
        wrong = [kind for kind in kinds if len(kind) != parts or set(kind) - {"o", "x"}]
        if wrong or not kinds:
            raise ValueError(
                f"task.kinds must name at least one kind with {parts} letters o or x, one per {host.part}, "
                f"got [{','.join(wrong)}]; task.instances=healthy needs none"
            )

    def kinds_of(self, host: HostConfig) -> Sequence[str]:
        """Return the kinds of lesion from which the hosts are drawn."""
        return self.kinds or self.standard_kinds.get(host.num_parts(), ())

    def load(self, context: int) -> Data:
        """Read the data.

        Args:
            context: length of the token sequences that a host reads; 0 for images.

        Raises:
            TaskError: the data is missing or damaged.
        """
        raise TypeError(f"{type(self).__name__} does not load data: define load(context)")

    def build_objective(self) -> Objective:
        """Return the objective of the hosts; by default classification, of samples or of next tokens."""
        return CLASSIFICATION

    def augmentation(self) -> Augmentation | None:
        """Return the augmentation of training images, or None."""
        return None

    def drifted(self, kind: str, data: Data) -> Data:
        """Return the data after a drift of this kind.

        Raises:
            TaskError: it has another form.
        """
        numbers = self.build_objective().numbers
        try:
            drifted = drifted_copy(self.drifts[kind], data, stream(self.split_seed, "drift", kind))
            check_samples(drifted, self.samples, self.batch_size, numbers=numbers, warn=False)
            check_alike(drifted, data)
            if all(new.equal(old) for new, old in zip(drifted.tensors(), data.tensors(), strict=True)):
                warnings.warn(
                    f"task.events.kinds=[{kind}]: this drift changes nothing: correct its function", UserNotice, stacklevel=3
                )
        except DataError as error:
            raise TaskError(f"task.events.kinds=[{kind}]: in this drift, {error}") from error
        return drifted

    def draw_classes(self, name: Name, num_classes: int) -> tuple[int, ...] | None:
        """Return the classes of a host in ascending order, or None for all."""
        return None

    def build(self, host: HostConfig) -> "Task":
        """Load and check the data, and return the task for hosts of this architecture; see `load`."""
        numbers = self.build_objective().numbers
        if numbers and (self.label_noise != [0.0] or {*self.events.kinds} & {*CLASSES, *LABEL_DRIFTS}):
            events = ", ".join(sorted({*CLASSES, *LABEL_DRIFTS}))
            raise DataError(f"the targets of this task are numbers, without classes: leave out task.label_noise, {events}")
        check_takes_context(self.load)
        data = self.load(host.sequence_length())
        check_samples(data, self.samples, self.batch_size, numbers=numbers)
        return Task(self, host, data)


class FeatureSizes(NamedTuple):
    """Numbers of values per sample of a host's features."""

    segments: tuple[int, ...]
    """Of the outputs of each segment."""
    widest: int
    """Of the largest output of a layer."""
    narrow: bool
    """True if Esper's own kernels compute such a host on a CPU; see `suits`."""
    vectors: bool
    """True for a narrow host of linear layers; see `UNITS`."""


class Task:
    """A data set and the hosts that are trained on it."""

    def __init__(self, config: TaskConfig, host: HostConfig, data: Data) -> None:
        self.batch_size, self.epoch_samples = config.batch_size, config.epoch_samples
        self.augmentation, self.objective = config.augmentation(), config.build_objective()
        self.chance_loss = self.objective.chance_loss(data.train_y, data.num_classes)
        self.config, self._host, self.data = config, host, _shortened(data, config.valid_samples)
        if kinds := config.events.kinds:
            drifts = {kind: partial(config.drifted, kind) for kind in kinds if kind in config.drifts}
            if data.mapped and drifts:
                raise DataError("mapped data stays out of memory, but drifts need copies in memory: leave task.events.kinds out")
            orders = (stream(config.split_seed, name) for name in ("drift_order", "presence_order"))
            self.data = replace(self.data, domains=domains(self.data, drifts, *orders))

    def make_host(self, instance: Instance) -> nn.Module:
        """Return a host of this instance with random initial weights from torch's global stream."""
        shape, lesioned = tuple(self.data.train_x.shape[1:]), [letter == "x" for letter in instance.lesion]
        return self._host.build(shape, self.data.num_classes, lesioned)

    def origin(self, root: int, split: Split, episode: int, index: int) -> Name:
        """Return the name that keys the instance and the initial weights of a host: its own, or that of its pretrained host."""
        name = Name(root=root, split=split, episode=episode, index=index)
        if not self.config.pretrain or episode == POOL:
            return name
        return replace(name, episode=POOL, index=name.choose("pretrained", range(self.config.pretrain_pool)))

    def instance(self, root: int, split: Split, episode: int, index: int) -> Instance:
        """Return the properties of the host of this name."""
        name, config = self.origin(root, split, episode, index), self.config
        healthy = config.instances is Instances.healthy
        classes = config.draw_classes(name, self.data.num_classes)
        return Instance(
            lesion="o" * self._host.num_parts() if healthy else name.choose("instance", config.kinds_of(self._host)),
            label_noise=name.choose("instance_label_noise", config.label_noise),
            data_share=name.choose("instance_data_share", config.data_share),
            classes=classes,
            rate_factor=name.choose("instance_rate_factor", config.rate_factor),
            timetable=self._timetable(Name(root=root, split=split, episode=episode, index=index), name, classes),
        )

    def _timetable(self, name: Name, origin: Name, classes: Sequence[int] | None) -> tuple[Event, ...]:
        """Return the timetable of a host. During pretraining, it says only that the classes that will arrive are absent."""
        classes = range(self.data.num_classes) if classes is None else classes
        timetable = self.config.events.draw(name.stream, classes, origin.stream)
        return timetable if name.episode != POOL else before_events(timetable, self.config.pretrain)

    def view(self, root: int, split: Split, episode: int, index: int) -> DataView:
        """Return the view of the training data for the host of this name."""
        name = self.origin(root, split, episode, index)
        return data_view(self.instance(root, split, episode, index), self.data, name)

    def pool(self, view: DataView, epoch: int) -> npt.NDArray[np.int64] | None:
        """Return the training samples of a host in a host epoch, ascending; None for all."""
        data = self.data
        share_K = class_shares(view.timetable, epoch, data.num_classes, self.config.events.replay)
        if share_K is None or data.domains is None:
            return view.samples
        samples = np.arange(len(data.train_y)) if view.samples is None else view.samples
        rank, share = data.domains.train_presence[samples], torch.from_numpy(share_K)[data.train_y[samples].long()]
        present = rank < share
        if not present.any():  # as many as the share asks for are none: one is left
            present[torch.where(share > 0, rank, rank + 1).argmin()] = True
        return samples[present.numpy()]

    def host(self, root: int, split: Split, episode: int, index: int) -> nn.Module:
        """Return the newborn host of this name; equal arguments give an equal instance and equal initial weights."""
        instance, name = self.instance(root, split, episode, index), self.origin(root, split, episode, index)
        with borrowed_stream(torch_stream(root, "host_init", split, name.episode, name.index)):
            return self.make_host(instance)

    @cached_property
    def sizes(self) -> FeatureSizes:
        """Sizes of a host's features, which are those of every host."""
        segments, sizes = list[int](), list[int]()

        def keep(_: nn.Module, __: Any, output: Any) -> None:
            sizes.extend([output.numel()] if isinstance(output, Tensor) else [])

        host = self.host(0, Split.TRAINING, 0, 0).eval()
        for layer in host.modules():
            layer.register_forward_hook(keep)
        with torch.no_grad():
            x = self.data.inputs(self.data.valid_x[:2])
            count = len(x)
            for segment in segments_of(host):
                x = segment(x)
                segments.append(x.numel() // count)
        units = (layer.out_features for layer in host.modules() if isinstance(layer, nn.Linear))
        vectors = flattens(host) and max(units) <= UNITS
        return FeatureSizes(tuple(segments), max(sizes) // count, narrow=suits(host), vectors=vectors)

    def describe(self, root: int, split: Split, episode: int, index: int) -> str:
        """Return a short name of the instance, such as its lesion, for reports. The controller never sees it."""
        return self.instance(root, split, episode, index).describe()


def _shortened(data: Data, valid_samples: int) -> Data:
    """Return the data with the first validation samples only, which loaders shuffle."""
    if valid_samples > len(data.valid_y):
        raise TaskError(f"task.valid_samples={valid_samples} exceeds the {len(data.valid_y)} validation samples: use 0 for all")
    if not valid_samples:
        return data
    if valid_samples < FEW <= len(data.valid_y):
        told = few_samples("valid", data.valid_y[:valid_samples], numbers=data.valid_y.is_floating_point())
        warnings.warn(f"task.valid_samples={valid_samples}: {told}", UserNotice, stacklevel=2)
    short = replace(data, valid_x=data.valid_x[:valid_samples], valid_y=data.valid_y[:valid_samples])
    if not data.valid_y.is_floating_point() and data.valid_y.dim() == 1:
        lost = ~torch.isin(data.valid_y, short.valid_y)
        if lost.any() and float((~lost).double().mean()) ** valid_samples < UNLIKELY:
            warnings.warn(
                f"task.valid_samples={valid_samples}: none of the first validation samples is of class "
                f"{int(data.valid_y[lost][0])}, and many others are: shuffle the validation samples where the task loads them",
                UserNotice,
                stacklevel=2,
            )
    if short.valid_y.is_floating_point() and short.valid_y.min() == short.valid_y.max():
        raise TaskError(f"task.valid_samples={valid_samples} leaves only equal targets, so R2 is undefined: raise it")
    return short
