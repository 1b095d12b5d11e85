"""CIFAR-10: 60,000 images of 32x32 pixels in three colours, from the binary version of the data set.

Each file holds records of 3,073 bytes: the class, then 1,024 bytes each of red, green and blue. Five files hold the training
images, a tenth of which is held out for validation; one file holds the test images.

Nine presets differ in the host and its slots. None has been benchmarked: no package ships the data set, and the tests of the
loader write files of their own.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from esper.seeding import stream
from esper.task.data import Data, reading
from esper.task.images import AugmentedConfig, divide

RECORD = 1 + 3 * 32 * 32
RECORDS = 10_000
"""Records per file."""
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILE = "test_batch.bin"
REMEDY = (
    "download cifar-10-binary.tar.gz from the data set's page, unpack it, and set task.root to the folder of the .bin files "
    "(or use task=digits, which needs no download)"
)
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


@dataclass(kw_only=True, slots=True)
class Cifar10Config(AugmentedConfig):
    """CIFAR-10, split 45,000 / 5,000 / 10,000, with healthy hosts. Standard kinds: [ooo,xoo,oxx] or [oo,xo,ox]."""

    default_host: ClassVar[str] = "cnn_baseline"

    root: str = "data/cifar-10-batches-bin"
    """Folder of the binary version: data_batch_1.bin to data_batch_5.bin and test_batch.bin."""

    def load(self, context: int) -> Data:
        folder = Path(self.root)
        files = [_read(folder / name) for name in TRAIN_FILES]
        images, targets = torch.cat([x for x, _ in files]), torch.cat([y for _, y in files])
        sizes = [len(targets) * 9 // 10, len(targets) - len(targets) * 9 // 10]
        data = divide(images, targets, sizes, stream(self.split_seed, "cifar10_split"), _read(folder / TEST_FILE))
        mean, std = (255.0 * torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
        return replace(data, mean=mean, std=std)


def _read(path: Path) -> tuple[Tensor, Tensor]:
    """Read the byte images `[n, 3, 32, 32]` and classes `[n]` of a file.

    Raises:
        TaskError: the file is missing or damaged.
    """
    with reading(path, REMEDY):
        records = torch.from_numpy(np.fromfile(path, dtype=np.uint8).reshape(RECORDS, RECORD))
        targets = records[:, 0].long()
        if int(targets.max()) > 9:
            raise ValueError(f"it has class {int(targets.max())}, and classes are 0 to 9")
    return records[:, 1:].reshape(-1, 3, 32, 32), targets
