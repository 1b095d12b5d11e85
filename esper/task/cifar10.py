"""CIFAR-10: 60,000 real images of 32x32 pixels in three colours, in the binary version of the data set.

Each file holds records of 3,073 bytes: the class, then 1,024 bytes each of red, green and blue. Five files make the training
images, of which the last tenth is set apart for validation, and one makes the test images.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from esper.population.cnn import CNNConfig
from esper.seeding import stream, torch_stream
from esper.task.base import Data, Split, Task, TaskConfig, TaskError

RECORD = 1 + 3 * 32 * 32
RECORDS = 10_000
"""Records in a file."""
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILE = "test_batch.bin"
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


@dataclass(kw_only=True, slots=True)
class Cifar10Config(TaskConfig):
    """CIFAR-10 with a fair convolutional host: 8, 16 and 32 channels, three poolings, no lesions."""

    root: str = "data/cifar-10-batches-bin"
    """Folder with the files of the binary version (data_batch_1.bin to data_batch_5.bin and test_batch.bin)."""
    host: CNNConfig = field(default_factory=lambda: CNNConfig(base_channels=8, pools=3))
    """The host's architecture."""
    split_seed: int = 0
    """Names the split into training and validation images; the same for every run."""

    def build(self) -> "Cifar10":
        return Cifar10(self)


class Cifar10(Task):
    """The task of `Cifar10Config`."""

    def __init__(self, config: Cifar10Config) -> None:
        super().__init__(config)
        self.config = config
        folder = Path(config.root)
        parts = [_read(folder / name) for name in TRAIN_FILES]
        images, targets = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
        test_x, test_y = _read(folder / TEST_FILE)
        order = torch.from_numpy(stream(config.split_seed, "cifar10_split").permutation(len(targets)))
        train, valid = order[: len(order) * 9 // 10], order[len(order) * 9 // 10 :]
        self.data = Data(
            train_x=_normal(images[train]),
            train_y=targets[train],
            valid_x=_normal(images[valid]),
            valid_y=targets[valid],
            test_x=_normal(test_x),
            test_y=test_y,
            num_classes=10,
        )

    def host(self, root: int, split: Split, episode: int, index: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.random.set_rng_state(torch_stream(root, "host_init", split, episode, index).get_state())
            return self.config.host.build(3, self.data.num_classes, [False] * self.config.host.blocks)

    def describe(self, root: int, split: Split, episode: int, index: int) -> str:
        return "o" * self.config.host.blocks


def _read(path: Path) -> tuple[Tensor, Tensor]:
    """Images `[n, 3, 32, 32]` of bytes and classes `[n]` of one file.

    Raises:
        TaskError: the file is missing, or is not made of whole records with classes from 0 to 9.
    """
    if not path.is_file():
        raise TaskError(
            f"task=cifar10_baseline needs {path}, which is not there: download cifar-10-binary.tar.gz from the data set's "
            "page, unpack it, and set task.root to the folder with the .bin files (or use task=digits, which needs no download)"
        )
    raw = np.fromfile(path, dtype=np.uint8)
    if len(raw) != RECORDS * RECORD:
        raise TaskError(
            f"{path} is damaged: it has {len(raw)} bytes and not {RECORDS} records of {RECORD}; unpack "
            "cifar-10-binary.tar.gz again"
        )
    records = torch.from_numpy(raw.reshape(-1, RECORD))
    targets = records[:, 0].long()
    if int(targets.max()) > 9:
        raise TaskError(f"{path} is damaged: it names class {int(targets.max())} of 0 to 9; unpack it again")
    return records[:, 1:].reshape(-1, 3, 32, 32), targets


def _normal(images: Tensor) -> Tensor:
    """Bytes to floats with mean 0 and deviation 1 in each colour."""
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    return (images.float() / 255.0 - mean) / std
