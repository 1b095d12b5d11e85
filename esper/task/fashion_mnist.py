"""Fashion-MNIST: 70,000 images of clothes, 28x28 pixels in ten classes, from the four IDX files of the data set.

An IDX file has a header of big-endian words (a magic number, then the length of each axis) followed by the bytes; it may be
gzipped. Of the 60,000 training images 6,000 are held out for validation; the other 10,000 images are the test set.

Results for 32 hosts and 20 epochs: test accuracy [%] / return of reward=shaped; standard error of the accuracy 1 to 2:

    seed                  ooo         xoo         oxx         all
    none                  66.8/58.1   65.2/55.8   49.0/40.0   58.0/48.9
    depthwise in r0c0     66.7/57.8   68.3/59.7   49.7/40.1   59.2/50.1
    depthwise in r0c2     67.4/54.5   64.0/50.9   56.8/44.8   61.4/48.8

There are too few hosts to show that a schedule that knows the kind of each host beats the best fixed schedule (6.0 points of
return, standard error 3.2; 2.3 if both are chosen and scored on the same hosts): see
experiments/2026-11-21_tasks for the command.
"""

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.seeding import stream
from esper.task.data import Data, reading
from esper.task.images import AugmentedConfig, divide, normalised
from esper.task.instances import Instances

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
BYTES = b"\x00\x00\x08"
"""Start of the magic number of an array of bytes; the number of its axes follows."""
REMEDY = (
    "install Debian's package dataset-fashion-mnist, or download the four files of github.com/zalandoresearch/fashion-mnist, "
    "gzipped or plain, and set task.root to their folder (or use task=digits, which needs no download)"
)


@dataclass(kw_only=True, slots=True)
class FashionMnistConfig(AugmentedConfig):
    """Fashion-MNIST, split 54,000 / 6,000 / 10,000. Standard kinds: [ooo,xoo,oxx] or [oo,xo,ox]."""

    default_host: ClassVar[str] = "cnn_pooled"

    root: str = "/usr/share/datasets/fashion-mnist"
    """Folder of the four IDX files, gzipped or plain. The default is the folder of Debian's package dataset-fashion-mnist."""
    instances: Instances = Instances.lesioned
    batch_size: int = 64
    epoch_samples: int = 512
    valid_samples: int = 250

    def load(self, context: int) -> Data:
        images, targets = self._read(*FILES[:2])
        sizes = [len(targets) * 9 // 10, len(targets) - len(targets) * 9 // 10]
        return normalised(divide(images, targets, sizes, stream(self.split_seed, "fashion_mnist_split"), self._read(*FILES[2:])))

    def _read(self, images_file: str, labels_file: str) -> tuple[Tensor, Tensor]:
        """Read byte images `[n, 1, 28, 28]` and classes `[n]`.

        Raises:
            TaskError: a file is missing or damaged, or the two do not match.
        """
        folder = Path(self.root)
        images, labels = (_read_idx(folder / name) for name in (images_file, labels_file))
        with reading(folder / images_file, REMEDY):
            if labels.ndim != 1 or images.shape != (len(labels), 28, 28) or len(labels) < 10:
                raise ValueError(f"its shape is {images.shape}, and {labels_file} has shape {labels.shape}")
            if labels.max() > 9:
                raise ValueError(f"{labels_file} has class {labels.max()}, and classes are 0 to 9")
        return torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels).long()


def _read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """Read the array of an IDX file of bytes, gzipped or plain.

    Raises:
        TaskError: the file is missing or damaged.
    """
    packed = path.with_name(f"{path.name}.gz")
    path = packed if packed.is_file() else path
    with reading(path, REMEDY):
        raw = gzip.decompress(path.read_bytes()) if path is packed else path.read_bytes()
        if len(raw) < 4 or raw[:3] != BYTES:
            raise ValueError("it is no IDX file of bytes")
        shape = np.frombuffer(raw, ">u4", raw[3], offset=4)
        return np.frombuffer(raw, np.uint8, offset=4 + shape.nbytes).reshape(shape).copy()
