"""The hosts of an episode and their order of samples: functions of names, without state."""

# N hosts, P samples of a pool, I samples of an epoch

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from esper.seeding import stream
from esper.task.augment import Augmentation
from esper.task.base import Task
from esper.task.instances import DataView, Split

Made = TypeVar("Made")


class EpochOrder(NamedTuple):
    """The training samples of an epoch, host by host."""

    samples_NI: npt.NDArray[np.int64]
    """Indices of the samples, in their order."""
    draws_NI3: npt.NDArray[np.uint8] | None = None
    """Shift and flip of each image, see `Augmentation`; None for no augmentation."""
    time: int = 0
    """The host epoch, which sets the state of all events."""
    epochs: int = 1
    """Host epochs of the episode, or of pretraining."""

    def progress(self, share: float) -> float:
        """Return the share of the episode that has passed after this share of the epoch."""
        return (self.time + share) / self.epochs

    def of(self, rows: slice) -> "EpochOrder":
        """Return the order of some of the hosts."""
        draws = None if self.draws_NI3 is None else self.draws_NI3[rows]
        return self._replace(samples_NI=self.samples_NI[rows], draws_NI3=draws)

    def first(self, samples: int) -> "EpochOrder":
        """Return the order of the first samples of each host only."""
        draws = None if self.draws_NI3 is None else self.draws_NI3[:, :samples]
        return self._replace(samples_NI=self.samples_NI[:, :samples], draws_NI3=draws)

    def batches(self, size: int, device: torch.device) -> list[tuple[Tensor, Tensor | None]]:
        """Return the samples and draws of each whole batch, on a device; one smaller batch if there are fewer samples."""
        whole = self.samples_NI.shape[1] if self.draws_NI3 is None else self.draws_NI3.shape[1]
        size = min(size, whole)
        count = whole // size
        arrays = (self.samples_NI, self.draws_NI3)
        samples, draws = (None if part is None else torch.from_numpy(part).to(device).split(size, 1) for part in arrays)
        assert samples is not None
        return list(zip(samples[:count], draws or [None] * count, strict=False))


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSampler:
    """The hosts of one episode.

    Twins have the same name: instance, initial weights, data order, and the initial weights of a seed planted in the same slot at
    the same time. They differ only in the actions.
    """

    task: Task
    split: Split
    num_hosts: int
    first: int = 0
    """Number of the first host in its episode; above 0 for a part of the hosts."""
    twins: int = 1
    """Number of consecutive hosts that share a name; must divide the number of hosts."""
    epochs: int = 1
    """Host epochs of the episode."""
    root: int = 0
    episode: int = 0

    def name(self, host: int) -> tuple[int, Split, int, int]:
        """Return root, split, episode and index: the name of a host's random streams."""
        return self.root, self.split, self.episode, (self.first + host) // self.twins

    def of(self, rows: slice) -> "HostSampler":
        """Return the sampler of some of the hosts."""
        return replace(self, first=self.first + rows.start, num_hosts=rows.stop - rows.start)

    def hosts(self) -> list[nn.Module]:
        """Return newborn hosts. Twins are the same module, so copy a host before you train it."""
        return self._each(self.task.host)

    def views(self) -> list[DataView]:
        """Return each host's view of the data. Twins share one view."""
        return self._each(self.task.view)

    def instances(self) -> list[str]:
        """Return the name of each host's instance, for reports; the observation does not contain it."""
        return self._each(self.task.describe)

    def _each(self, make: Callable[[int, Split, int, int], Made]) -> list[Made]:
        """Return `make(*name)` for every host, called once per group of twins."""
        names = [self.name(host) for host in range(self.num_hosts)]
        made = {name: make(*name) for name in dict.fromkeys(names)}
        return [made[name] for name in names]

    @property
    def samples_per_epoch(self) -> int:
        """Training samples per host and epoch; whole batches only."""
        samples, batch = self.task.epoch_samples or len(self.task.data.train_y), self.task.batch_size
        return samples // batch * batch if samples >= batch else samples

    def order(self, time: int, views: Sequence[DataView]) -> EpochOrder:
        """Return the order of each host's training samples in an epoch; drawn once for all twins."""
        every = np.arange(len(self.task.data.train_y))
        count = self.task.epoch_samples // self.task.batch_size * self.task.batch_size or len(every)

        def samples(host: int) -> npt.NDArray[np.int64]:
            pool, (root, *name) = self.task.pool(views[host], time), self.name(host)
            return walk(
                every if pool is None else pool, time * count, count, lambda turn: stream(root, "data_order", *name, turn)
            )

        def draws(augmentation: Augmentation, host: int) -> npt.NDArray[np.uint8]:
            root, *name = self.name(host)
            return augmentation.draw(stream(root, "augmentation", *name, time), self.samples_per_epoch)

        names_N = (self.first + np.arange(self.num_hosts)) // self.twins
        _, firsts, same_N = np.unique(names_N, return_index=True, return_inverse=True)
        moves = self.task.augmentation
        samples_NI = np.stack([samples(host) for host in firsts.tolist()])[same_N]
        draws_NI3 = None if moves is None else np.stack([draws(moves, host) for host in firsts.tolist()])[same_N]
        return EpochOrder(samples_NI, draws_NI3, time, self.epochs)

    def seed(self, host: int, slot: int, time: int) -> tuple[int | str, ...]:
        """Return the name of the stream of a newborn seed's weights: root, purpose, keys."""
        root, *name = self.name(host)
        return root, "seed_init", *name, time, slot


def walk(
    pool_P: npt.NDArray[np.int64], start: int, count: int, pass_stream: Callable[[int], np.random.Generator]
) -> npt.NDArray[np.int64]:
    """Return `count` samples, from position `start`, of an endless walk: passes through the pool, each in its own random order.

    There is no state between epochs: the number of a pass names its stream.
    """
    size = len(pool_P)
    first, last = start // size, (start + count - 1) // size
    passes = [pass_stream(number).permutation(size) for number in range(first, last + 1)]
    return pool_P[np.concatenate(passes)[start - first * size :][:count]]
