"""CIFAR-10: 60,000 real images of 32x32 pixels in three colours, in the binary version of the data set.

Each file holds records of 3,073 bytes: the class, then 1,024 bytes each of red, green and blue. Five files make the training
images, of which the last tenth in the order of a named stream is set apart for validation, and one makes the test images.

Nine presets ask different things of growth; they differ in the host and in where it has slots. None has been measured here: the
data set is in no package, so that its loader is tested on files made by the tests.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from esper.hosts.cnn import CNNConfig
from esper.task.data import Data, TaskError
from esper.task.images import AugmentedConfig, split

RECORD = 1 + 3 * 32 * 32
RECORDS = 10_000
"""Records in a file."""
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILE = "test_batch.bin"
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


@dataclass(kw_only=True, slots=True)
class Cifar10Config(AugmentedConfig):
    """CIFAR-10 with a fair convolutional host: 8, 16 and 32 channels, three poolings, no lesions."""

    root: str = "data/cifar-10-batches-bin"
    """Folder with the files of the binary version (data_batch_1.bin to data_batch_5.bin and test_batch.bin)."""
    host: CNNConfig = field(default_factory=lambda: CNNConfig(base_channels=8, pools=3))
    """The host's architecture."""

    def load(self) -> Data:
        folder = Path(self.root)
        parts = [_read(folder / name) for name in TRAIN_FILES]
        images, targets = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
        test_x, test_y = _read(folder / TEST_FILE)
        num_train = len(targets) * 9 // 10
        train, valid = split(len(targets), [num_train, len(targets) - num_train], "cifar10_split", self.split_seed)
        return Data(
            train_x=images[train],
            train_y=targets[train],
            valid_x=images[valid],
            valid_y=targets[valid],
            test_x=test_x,
            test_y=test_y,
            num_classes=10,
            mean=255.0 * torch.tensor(MEAN).view(3, 1, 1),
            std=255.0 * torch.tensor(STD).view(3, 1, 1),
        )


def _read(path: Path) -> tuple[Tensor, Tensor]:
    """Images `[n, 3, 32, 32]` of bytes and classes `[n]` of one file.

    Raises:
        TaskError: the file is missing, or is not made of whole records with classes from 0 to 9.
    """
    if not path.is_file():
        raise TaskError(
            f"task=cifar10_baseline and its kin need {path}, which is not there: download cifar-10-binary.tar.gz from the data "
            "set's page, unpack it, and set task.root to the folder with the .bin files (or use task=digits, which needs no "
            "download)"
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
