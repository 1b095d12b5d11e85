"""SVHN: 99,289 photographs of house numbers, 32x32 pixels in three colours, classified by the digit in the middle.

The two MATLAB files hold images `[32, 32, 3, n]` and classes from 1 to 10, of which 10 is the digit 0. A tenth of the 73,257
training images is held out for validation; the further 531,131 easier images of the data set are not used. The task has not been
benchmarked.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from esper.task.published import Bytes, PublishedConfig, Version


@dataclass(kw_only=True, slots=True)
class SvhnConfig(PublishedConfig):
    """SVHN, split 65,931 / 7,326 / 26,032. Standard kinds: [ooo,xoo,oxx] or [oo,xo,ox]."""

    name: ClassVar[str] = "svhn"
    dataset: ClassVar[str] = "SVHN"
    parts: ClassVar[tuple[Mapping[str, str], ...]] = ({"split": "train"}, {"split": "test"})
    origin: ClassVar[str] = "train_32x32.mat and test_32x32.mat from the data set's page"
    versions: ClassVar[tuple[Version, ...]] = (Version(folder="", train=("train_32x32.mat",), test=("test_32x32.mat",)),)

    crop_padding: int = 4

    def read_file(self, path: Path) -> tuple[Bytes, Bytes]:
        io: Any = importlib.import_module("scipy.io")  # slow to import, and no other task needs it
        with path.open("rb") as file:
            try:
                content = io.loadmat(file)
                images, classes = np.asarray(content["X"], np.uint8), np.asarray(content["y"], np.uint8)
                return np.ascontiguousarray(images.transpose(3, 2, 0, 1)), classes.flatten() % 10
            except Exception as error:  # a damaged file raises all kinds of errors
                raise ValueError(str(error) or type(error).__name__) from error
