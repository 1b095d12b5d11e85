"""Handwritten digits: 1,797 images of 8x8 pixels from scikit-learn, and hosts that need help in different places.

By default each host is healthy (ooo), lesioned in the first of its three blocks (xoo), or lesioned in the other two (oxx).
Lesioned blocks lack spatial context. The best place to grow thus differs between hosts, and a healthy host is best left alone.

Results with the defaults: 20 epochs, one seed planted at the start and kept, test accuracy [%] / return of reward=shaped,
48 to 96 hosts per cell.

    seed                  ooo         xoo         oxx         all
    none                  89.7/78.8   79.1/65.6   53.5/43.3   69.0/57.8
    depthwise in r0c0     90.2/79.5   88.4/77.7   58.4/48.1   73.7/63.2
    conv_heavy in r0c0    90.8/78.7   90.0/78.3   63.2/51.8   76.7/65.0
    conv_heavy in r0c1    90.8/73.9   80.5/60.9   78.6/62.5   82.3/65.2

A schedule that knows the kind of each host beats the best fixed schedule, conv_heavy in r0c0, by 5.6 points of return (standard
error 0.8, chosen and scored on different hosts): see experiments/2026-11-21_where_to_grow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from esper.seeding import stream
from esper.task.data import Data, Units
from esper.task.images import ImagesConfig, split_images
from esper.task.instances import Instances

NUM_TRAIN, NUM_VALID = 1078, 359
"""Sizes of the training and validation sets; the other 360 images are the test set."""
FILE = Path("datasets", "data", "digits.csv.gz")
"""The images within scikit-learn: one line of 64 pixels and a class each."""


def read_digits() -> tuple[Tensor, Tensor]:
    """Return images in [0, 1] `[n, 1, 8, 8]`, and classes `[n]`.

    The file is read directly, because scikit-learn takes a second to import; if it is elsewhere, `load_digits` reads it.
    """
    found = find_spec("sklearn")
    path = Path(found.origin).parent / FILE if found and found.origin else None
    if path and path.exists():
        rows = np.loadtxt(path, delimiter=",")
        pixels, classes = rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int64)
    else:
        from sklearn.datasets import load_digits

        bunch: Any = load_digits()
        pixels, classes = bunch.images, bunch.target
    return torch.from_numpy(pixels).float().unsqueeze(1) / 16.0, torch.from_numpy(classes).long()


@dataclass(kw_only=True, slots=True)
class DigitsConfig(ImagesConfig):
    """scikit-learn's digits, split 1,078 / 359 / 360. Standard kinds: [ooo,xoo,oxx,oxx] or [oo,xo,ox].

    With three parts, kind oxx is drawn twice as often, so that the place of growth matters more.
    """

    standard_kinds: ClassVar[Mapping[int, Sequence[str]]] = {2: ("oo", "xo", "ox"), 3: ("ooo", "xoo", "oxx", "oxx")}

    instances: Instances = Instances.lesioned

    def load(self, context: int) -> Data:
        images, targets = read_digits()
        sizes = [NUM_TRAIN, NUM_VALID, len(targets) - NUM_TRAIN - NUM_VALID]
        data = split_images(images, targets, sizes, stream(self.split_seed, "digits_split"))
        mean, std = data.train_x.mean(), data.train_x.std()
        train_x, valid_x, test_x = ((x - mean) / std for x in (data.train_x, data.valid_x, data.test_x))
        units = Units.of_arrays(16 * mean.double(), 16 * std.double())
        return replace(data, train_x=train_x, valid_x=valid_x, test_x=test_x, units=units)
