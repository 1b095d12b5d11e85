"""The hosts of an episode and their order of samples: functions of names, without state."""

# N hosts, P samples of a pool, I samples of an epoch

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from torch import nn

from esper.seeding import stream
from esper.task.base import Task
from esper.task.instances import DataView, Split

Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSampler:
    """The hosts of one episode.

    Twins have the same name: instance, first weights, data order, and the first weights of a seed planted in the same slot at the
    same time. They differ only in the actions.
    """

    task: Task
    split: Split
    num_hosts: int
    twins: int = 1
    """Consecutive hosts with the same name, a divisor of N."""
    root: int = 0
    episode: int = 0

    def name(self, host: int) -> tuple[int, Split, int, int]:
        """Return root, split, episode and index: the name of a host's random streams."""
        return self.root, self.split, self.episode, host // self.twins

    def hosts(self) -> list[nn.Module]:
        """Return newborn hosts."""
        return [self.task.host(*self.name(host)) for host in range(self.num_hosts)]

    def views(self) -> list[DataView]:
        """Return their instances' views of the data."""
        return [self.task.view(*self.name(host)) for host in range(self.num_hosts)]

    def instances(self) -> list[str]:
        """Return the names of their instances, for reports; the observation does not contain them."""
        return [self.task.describe(*self.name(host)) for host in range(self.num_hosts)]

    @property
    def samples_per_epoch(self) -> int:
        """Training samples per host and epoch; whole batches only."""
        samples, batch = self.task.epoch_samples or len(self.task.data.train_y), self.task.batch_size
        return samples // batch * batch if samples >= batch else samples

    def orders(self, time: int, views: Sequence[DataView]) -> npt.NDArray[np.int64]:
        """Return the order of each host's training samples in an epoch `[N, I]`."""
        every = np.arange(len(self.task.data.train_y))
        count = self.task.epoch_samples // self.task.batch_size * self.task.batch_size or len(every)

        def order(host: int) -> npt.NDArray[np.int64]:
            samples, (root, *name) = views[host].samples, self.name(host)
            pool = every if samples is None else samples
            return walk(pool, time * count, count, lambda turn: stream(root, "data_order", *name, turn))

        return self._of_each(order)

    def draws(self, time: int) -> npt.NDArray[np.uint8] | None:
        """Return how each image of an epoch is moved `[N, I, 3]`; None for tasks without augmentation."""
        augmentation = self.task.augmentation
        if augmentation is None:
            return None

        def draw(host: int) -> npt.NDArray[np.uint8]:
            root, *name = self.name(host)
            return augmentation.draw(stream(root, "augmentation", *name, time), self.samples_per_epoch)

        return self._of_each(draw)

    def seed(self, host: int, slot: int, time: int) -> tuple[int | str, ...]:
        """Return the name of the stream of a newborn seed's weights: root, purpose, keys."""
        root, *name = self.name(host)
        return root, "seed_init", *name, time, slot

    def _of_each(self, draw: Callable[[int], npt.NDArray[Number]]) -> npt.NDArray[Number]:
        """Return one array per host, drawn once for all twins."""
        return np.repeat(np.stack([draw(host) for host in range(0, self.num_hosts, self.twins)]), self.twins, axis=0)


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
