"""Handwritten digits: 1,797 real images of 8x8 pixels, and hosts that differ in where they need help.

The default draws an instance for each host: healthy (ooo), with the first of its three blocks lesioned (xoo), or with the two
others (oxx). A lesioned block's 3x3 kernels are reduced to their centre, so that it sees no neighbours. So the best place to grow
differs from host to host, and a healthy host is better left alone.

Measured with what ships: 20 epochs, one seed planted at once and kept, test accuracy [%] / return of reward=shaped [points],
48 to 96 hosts a cell.

    seed                  ooo         xoo         oxx         all
    none                  89.7/78.8   79.1/65.6   53.5/43.3   69.0/57.8
    depthwise in r0c0     90.2/79.5   88.4/77.7   58.4/48.1   73.7/63.2
    conv_heavy in r0c0    90.8/78.7   90.0/78.3   63.2/51.8   76.7/65.0
    conv_heavy in r0c1    90.8/73.9   80.5/60.9   78.6/62.5   82.3/65.2

A schedule that knows the kind leads the best fixed one, conv_heavy in r0c0, by 5.6 points of return (standard error 0.8; chosen
on other hosts than judged): see experiments/2026-11-21_where_to_grow.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

from esper.hosts.mlp import MLPConfig
from esper.seeding import stream
from esper.task.data import Data
from esper.task.images import ImagesConfig
from esper.task.instances import Instances

NUM_TRAIN, NUM_VALID = 1078, 359
"""Sizes of the parts; the other 360 images are the test part."""


@dataclass(kw_only=True, slots=True)
class DigitsConfig(ImagesConfig):
    """scikit-learn's digits, split 1,078 / 359 / 360 by a named stream, with lesioned or healthy convolutional hosts."""

    instances: Instances = Instances.lesioned
    """`lesioned` hosts lack spatial context in some of their blocks; `healthy` hosts are whole."""
    kinds: list[str] = field(default_factory=lambda: ["ooo", "xoo", "oxx", "oxx"])
    """Kinds of lesion, each entry as likely as any other: one letter a block in forward order, x lesioned, o whole. The default
    has one kind twice, so that much hangs on where a host is grown."""

    def load(self) -> Data:
        bunch: Any = load_digits()
        order = stream(self.split_seed, "digits_split").permutation(len(bunch.target))
        images = torch.from_numpy(bunch.images[order]).float().unsqueeze(1) / 16.0
        targets = torch.from_numpy(bunch.target[order]).long()
        train = images[:NUM_TRAIN]
        images = (images - train.mean()) / train.std()
        parts = (NUM_TRAIN, NUM_VALID, len(targets) - NUM_TRAIN - NUM_VALID)
        train_x, valid_x, test_x = images.split(parts)
        train_y, valid_y, test_y = targets.split(parts)
        return Data(
            train_x=train_x,
            train_y=train_y,
            valid_x=valid_x,
            valid_y=valid_y,
            test_x=test_x,
            test_y=test_y,
            num_classes=10,
        )


@dataclass(kw_only=True, slots=True)
class DigitsMLPConfig(DigitsConfig):
    """The same digits for hosts that take them as 64 numbers: layers without convolutions, lesioned or whole.

    Bare hosts reach 94.4 % (oo), 87.1 % (ox) and 79.1 % (xo) on the test part in 20 epochs. Seeds add at most 3.6 points to
    a kind, of which rent takes most: an oracle leads the best fixed schedule by 0.1 points of return
    (experiments/2026-11-21_tasks).
    """

    instances: Instances = Instances.lesioned
    """`lesioned` hosts have layers that see a fixed part of their inputs only; `healthy` hosts are whole."""
    kinds: list[str] = field(default_factory=lambda: ["oo", "xo", "ox"])
    """Kinds of lesion, each as likely as any other: one letter a hidden layer in forward order, x lesioned, o whole."""
    host: MLPConfig = field(default_factory=lambda: MLPConfig())  # pyright: ignore[reportIncompatibleVariableOverride]
    """The host's architecture."""

    def parts(self) -> int:
        return self.host.layers

    def make_host(self, shape: tuple[int, ...], num_classes: int, lesioned: list[bool]) -> nn.Module:
        return self.host.build(math.prod(shape), num_classes, lesioned)
