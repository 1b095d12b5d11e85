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
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from esper.task.data import reading
from esper.task.instances import Instances
from esper.task.published import Bytes, PublishedConfig, Version

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
BYTES = b"\x00\x00\x08"
"""Start of the magic number of an array of bytes; the number of its axes follows."""


def read_idx(path: Path) -> Bytes:
    """Read the array of an IDX file of bytes, gzipped or plain.

    Raises:
        ValueError: the file is damaged.
    """
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(raw) < 4 or raw[:3] != BYTES:
        raise ValueError("it is not an IDX file of bytes")
    shape = np.frombuffer(raw, ">u4", raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + shape.nbytes).reshape(shape).copy()


@dataclass(kw_only=True, slots=True)
class FashionMnistConfig(PublishedConfig):
    """Fashion-MNIST, split 54,000 / 6,000 / 10,000. Standard kinds: [ooo,xoo,oxx] or [oo,xo,ox]."""

    default_host: ClassVar[str] = "cnn_pooled"
    name: ClassVar[str] = "fashion_mnist"
    dataset: ClassVar[str] = "FashionMNIST"
    endings: ClassVar[tuple[str, ...]] = ("", ".gz")
    origin: ClassVar[str] = (
        "the four files of github.com/zalandoresearch/fashion-mnist, gzipped or plain (Debian's package dataset-fashion-mnist "
        "has them, and is detected automatically)"
    )
    versions: ClassVar[tuple[Version, ...]] = tuple(
        Version(folder=folder, train=FILES[:2], test=FILES[2:])
        for folder in ("FashionMNIST/raw", "/usr/share/datasets/fashion-mnist")  # of torchvision, and of the Debian package
    )

    instances: Instances = Instances.lesioned
    batch_size: int = 64
    epoch_samples: int = 512
    valid_samples: int = 250

    def read(self, folder: Path, names: Iterable[str]) -> tuple[Tensor, Tensor]:
        packed = (folder / f"{name}.gz" for name in names)
        paths = [path if path.is_file() else path.with_suffix("") for path in packed]
        arrays: list[Bytes] = []
        for path in paths:
            with reading(path, self.remedy()):
                arrays.append(read_idx(path))
        images, labels = arrays
        with reading(paths[0], self.remedy()):
            if labels.ndim != 1 or images.shape != (len(labels), 28, 28) or len(labels) < 10:
                raise ValueError(f"its shape is {images.shape}, and {paths[1].name} has shape {labels.shape}")
        with reading(paths[1], self.remedy()):
            self.check_classes(labels)
        return torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels).long()
