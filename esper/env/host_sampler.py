"""Which hosts an episode has, and in which order they see which samples: all by name, none of it remembered."""

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
    same time. They differ in what is done to them, and in that alone.
    """

    task: Task
    split: Split
    num_hosts: int
    twins: int = 1
    """Hosts with the same name, one after another; N is a multiple of it."""
    root: int = 0
    episode: int = 0

    def name(self, host: int) -> tuple[int, Split, int, int]:
        """Root, split, episode and index: what a host's random streams are named by."""
        return self.root, self.split, self.episode, host // self.twins

    def hosts(self) -> list[nn.Module]:
        """Newborn hosts."""
        return [self.task.host(*self.name(host)) for host in range(self.num_hosts)]

    def views(self) -> list[DataView]:
        """What their instances make of the data."""
        return [self.task.view(*self.name(host)) for host in range(self.num_hosts)]

    def instances(self) -> list[str]:
        """Names of their instances, for reports; not part of the observation."""
        return [self.task.describe(*self.name(host)) for host in range(self.num_hosts)]

    @property
    def samples_per_epoch(self) -> int:
        """Training samples that a host sees in an epoch: whole batches only."""
        samples, batch = self.task.epoch_samples or len(self.task.data.train_y), self.task.batch_size
        return samples // batch * batch if samples >= batch else samples

    def orders(self, time: int, views: Sequence[DataView]) -> npt.NDArray[np.int64]:
        """The order in which each host sees its training samples in an epoch `[N, I]`."""
        every = np.arange(len(self.task.data.train_y))
        count = self.task.epoch_samples // self.task.batch_size * self.task.batch_size or len(every)

        def order(host: int) -> npt.NDArray[np.int64]:
            samples, (root, *name) = views[host].samples, self.name(host)
            pool = every if samples is None else samples
            return walk(pool, time * count, count, lambda turn: stream(root, "data_order", *name, turn))

        return self._of_each(order)

    def draws(self, time: int) -> npt.NDArray[np.uint8] | None:
        """How each image of an epoch is moved `[N, I, 3]`; None where the task does not vary its images."""
        augmentation = self.task.augmentation
        if augmentation is None:
            return None

        def draw(host: int) -> npt.NDArray[np.uint8]:
            root, *name = self.name(host)
            return augmentation.draw(stream(root, "augmentation", *name, time), self.samples_per_epoch)

        return self._of_each(draw)

    def seed(self, host: int, slot: int, time: int) -> tuple[int | str, ...]:
        """The stream of a newborn seed's weights: root, purpose, keys."""
        root, *name = self.name(host)
        return root, "seed_init", *name, time, slot

    def _of_each(self, draw: Callable[[int], npt.NDArray[Number]]) -> npt.NDArray[Number]:
        """One array a host, drawn once for all twins."""
        return np.repeat(np.stack([draw(host) for host in range(0, self.num_hosts, self.twins)]), self.twins, axis=0)


def walk(
    pool_P: npt.NDArray[np.int64], start: int, count: int, pass_stream: Callable[[int], np.random.Generator]
) -> npt.NDArray[np.int64]:
    """`count` steps, from `start` on, of an endless walk: pass after pass through the pool, each in an order of its own.

    Nothing has to be remembered between epochs, since the stream of each pass is known by its number.
    """
    size = len(pool_P)
    first, last = start // size, (start + count - 1) // size
    passes = [pass_stream(number).permutation(size) for number in range(first, last + 1)]
    return pool_P[np.concatenate(passes)[start - first * size :][:count]]
