"""Fashion-MNIST: 70,000 real images of clothes, 28x28 pixels in ten classes, from the four IDX files of the data set.

An IDX file has a head of big-endian words (a magic number, then the length of each axis) and the bytes themselves; it may be
gzipped. Of the 60,000 training images 6,000 are set apart for validation; the 10,000 others are the test part.

Measured on 32 hosts in 20 epochs, test accuracy [%] / return of reward=shaped [points], standard error of an accuracy 1 to 2:

    seed                  ooo         xoo         oxx         all
    none                  66.8/58.1   65.2/55.8   49.0/40.0   58.0/48.9
    depthwise in r0c0     66.7/57.8   68.3/59.7   49.7/40.1   59.2/50.1
    depthwise in r0c2     67.4/54.5   64.0/50.9   56.8/44.8   61.4/48.8

Too few to be sure that a schedule that knows the kind leads the best fixed one (6.0 points of return, standard error 3.2; 2.3
where both are chosen on the hosts they are judged on): see experiments/2026-11-21_tasks, which has the command.
"""

import gzip
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from esper.hosts.cnn import CNNConfig
from esper.task.data import Data, TaskError
from esper.task.images import AugmentedConfig, colours, split
from esper.task.instances import Instances

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
IMAGES, LABELS = 0x803, 0x801
"""Magic numbers: bytes along three axes, and along one."""
SIDE = 28


@dataclass(kw_only=True, slots=True)
class FashionMnistConfig(AugmentedConfig):
    """Fashion-MNIST, split 54,000 / 6,000 / 10,000, with lesioned or healthy convolutional hosts; an epoch is a part of it."""

    root: str = "/usr/share/datasets/fashion-mnist"
    """Folder with the four IDX files, gzipped or plain; the default is where Debian's dataset-fashion-mnist puts them."""
    instances: Instances = Instances.lesioned
    """`lesioned` hosts lack spatial context in some of their blocks; `healthy` hosts are whole."""
    kinds: list[str] = field(default_factory=lambda: ["ooo", "xoo", "oxx"])
    """Kinds of lesion, each as likely as any other: one letter a block in forward order, x lesioned, o whole."""
    batch_size: int = 64
    """Samples in one optimiser step of a host, at least 1; the rest of an epoch that fills no batch is left out."""
    epoch_samples: int = 512
    """Training samples a host sees in an epoch, 0 for as many as there are. Fewer: shorter epochs, and a host's walk through its
    samples goes on over the epochs."""
    valid_samples: int = 250
    """Validation samples every measurement uses, 0 for all. Fewer: faster, and noisier rewards."""
    host: CNNConfig = field(default_factory=lambda: CNNConfig(pools=3))
    """The host's architecture."""

    def load(self) -> Data:
        folder = Path(self.root)
        images, targets = (_read(folder, name, magic) for name, magic in zip(FILES[:2], (IMAGES, LABELS), strict=True))
        test_x, test_y = (_read(folder, name, magic) for name, magic in zip(FILES[2:], (IMAGES, LABELS), strict=True))
        _check(folder, images, targets, FILES[:2])
        _check(folder, test_x, test_y, FILES[2:])
        num_train = len(targets) * 9 // 10
        train, valid = split(len(targets), [num_train, len(targets) - num_train], "fashion_mnist_split", self.split_seed)
        x, y = torch.from_numpy(images).unsqueeze(1), torch.from_numpy(targets).long()
        mean, std = colours(x[train])
        return Data(
            train_x=x[train],
            train_y=y[train],
            valid_x=x[valid],
            valid_y=y[valid],
            test_x=torch.from_numpy(test_x).unsqueeze(1),
            test_y=torch.from_numpy(test_y).long(),
            num_classes=10,
            mean=mean,
            std=std,
        )


def _read(folder: Path, name: str, magic: int) -> npt.NDArray[np.uint8]:
    """The array of one IDX file.

    Raises:
        TaskError: it is missing, truncated, or not what its name says.
    """
    path = next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
    if path is None:
        raise TaskError(
            f"task=fashion_mnist needs {folder / name} (or {name}.gz), which is not there: install Debian's package "
            "dataset-fashion-mnist, or download the four files of github.com/zalandoresearch/fashion-mnist, and set task.root to "
            "their folder (or use task=digits, which needs no download)"
        )
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise TaskError(f"{path} is damaged ({error}): install or download it again") from error
    axes = magic & 0xFF
    head = 4 * (1 + axes)
    if len(raw) < head or struct.unpack(">I", raw[:4])[0] != magic:
        raise TaskError(f"{path} is damaged: it does not begin as an IDX file of {axes} axes; install or download it again")
    shape = struct.unpack(f">{axes}I", raw[4:head])
    if len(raw) - head != np.prod(shape, dtype=np.int64):
        raise TaskError(
            f"{path} is damaged: its head promises {'x'.join(map(str, shape))} bytes and {len(raw) - head} follow; "
            "install or download it again"
        )
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape).copy()


def _check(folder: Path, images: npt.NDArray[np.uint8], targets: npt.NDArray[np.uint8], names: tuple[str, ...]) -> None:
    """Images and labels must belong together."""
    if len(images) != len(targets) or len(targets) < 10 or images.shape[1:] != (SIDE, SIDE) or targets.max() > 9:
        raise TaskError(
            f"{names[0]} and {names[1]} in {folder} do not belong together: {len(images)} images of "
            f"{'x'.join(map(str, images.shape[1:]))} pixels and {len(targets)} labels up to {targets.max(initial=0)}; "
            "install or download them again"
        )
