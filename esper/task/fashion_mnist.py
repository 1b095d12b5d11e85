"""Fashion-MNIST: 70,000 images of clothes, 28x28 pixels in ten classes, from the four IDX files of the data set.

An IDX file has a header of big-endian words (a magic number, then the length of each axis) followed by the bytes; it may be
gzipped. Of the 60,000 training images 6,000 are held out for validation; the other 10,000 images are for the test.

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
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from esper.task.data import Data, TaskError
from esper.task.images import AugmentedConfig, colours, split
from esper.task.instances import Instances

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
IMAGES, LABELS = 0x803, 0x801
"""Magic numbers of byte arrays with three axes, and with one."""
SIDE = 28


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
    """Read the array of an IDX file.

    Raises:
        TaskError: the file is missing, truncated, or of another type.
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
        raise TaskError(f"{path} is damaged: it has no header of an IDX file of {axes} axes; install or download it again")
    shape = struct.unpack(f">{axes}I", raw[4:head])
    if len(raw) - head != np.prod(shape, dtype=np.int64):
        raise TaskError(
            f"{path} is damaged: its header announces {'x'.join(map(str, shape))} bytes, but {len(raw) - head} follow; "
            "install or download it again"
        )
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape).copy()


def _check(folder: Path, images: npt.NDArray[np.uint8], targets: npt.NDArray[np.uint8], names: tuple[str, ...]) -> None:
    """Raise TaskError unless images and labels match."""
    if len(images) != len(targets) or len(targets) < 10 or images.shape[1:] != (SIDE, SIDE) or targets.max() > 9:
        raise TaskError(
            f"{names[0]} and {names[1]} in {folder} do not match: {len(images)} images of "
            f"{'x'.join(map(str, images.shape[1:]))} pixels and {len(targets)} labels up to {targets.max(initial=0)}; "
            "install or download them again"
        )
