"""A byte-level language model of Python source: the standard library of the interpreter, which every machine has.

The texts are the top-level modules of the standard library and the topics of `help()`. They differ between Python versions, so
each run records a hash of its data.

Results for 12 hosts and 20 epochs, accuracy of the next byte [%] / return of reward=shaped: without seeds 40.0/37.8 for whole
layers (oo) and 36.6/33.5 without attention (xx); with an attention seed in r0c0 40.4/37.3 and 37.7/33.9. An oracle beats the best
fixed schedule by 0.1 (standard error 0.1), so there is little to learn yet. See experiments/2026-11-21_tasks.
"""

import importlib
import sys
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from esper.task.data import IGNORED, Data, TaskError
from esper.task.drifts import LABEL_DRIFTS, Drift
from esper.task.instances import Instances
from esper.task.text import BYTES, TextConfig, byte_data, split_texts

LEAST = 100_000
"""Minimum size of the texts [bytes]."""


def prose(data: Data, rng: np.random.Generator) -> Data:
    """Replace the texts by the topics of `help()`, English prose, repeating blocks if there are too few."""
    topics = _topics()
    if not topics:
        raise TaskError("task.events.kinds=[prose] needs the topics of help(), which this Python lacks: leave prose out")
    parts: dict[str, Tensor] = {}
    for name, (x, y) in zip(("train", "valid", "test"), split_texts(topics, rng, data.train_x.shape[1]), strict=True):
        chosen = np.resize(rng.permutation(len(x)), len(getattr(data, f"{name}_x")))
        parts |= {f"{name}_x": x[chosen], f"{name}_y": y[chosen]}
    return replace(data, **parts)


def swapcase(data: Data, rng: np.random.Generator) -> Data:
    """Exchange upper and lower case."""
    table = torch.tensor([ord(chr(byte).swapcase()) if byte < 128 else byte for byte in range(BYTES)])
    parts = {f"{part}_{axis}": getattr(data, f"{part}_{axis}") for part in ("train", "valid", "test") for axis in "xy"}

    def changed(part: Tensor) -> Tensor:
        return torch.where(part == IGNORED, part, table[part.clamp(min=0).long()].to(part.dtype))

    return replace(data, **{name: changed(part) for name, part in parts.items()})


TEXT_DRIFTS: Mapping[str, Drift] = {"prose": prose, "swapcase": swapcase, **LABEL_DRIFTS}
"""Kind -> drift, of the bytes of texts."""


@dataclass(kw_only=True, slots=True)
class PythonTextConfig(TextConfig):
    """Bytes of Python's standard library and help texts, split by file; without help texts if the data may drift to them
    (`task.events.kinds=[prose]`). Standard kinds: [oo,xx]."""

    drifts: ClassVar[Mapping[str, Drift]] = TEXT_DRIFTS
    own_data: ClassVar[tuple[str, ...]] = ("root",)
    with_topics: ClassVar[bool] = True
    """If true, the texts include the topics of `help()`."""

    batch_size: int = 16
    epoch_samples: int = 512
    valid_samples: int = 128
    instances: Instances = Instances.lesioned
    root: str = ""
    """Folder whose *.py files are the texts; empty: the standard library of the running interpreter."""

    def load(self, context: int) -> Data:
        # Else hosts would be measured after the drift on texts that they were trained on before it.
        topics = self.with_topics and "prose" not in self.events.kinds
        texts = _texts(Path(self.root) if self.root else None, topics=topics)
        return byte_data(texts, self.split_seed, "python_text", context, mapped=self.mapped)


def _texts(root: Path | None, *, topics: bool) -> dict[str, bytes]:
    """Return all texts by name, with the topics of `help()` if they are wanted and the folder is the default.

    Raises:
        TaskError: there is too little text.
    """
    folder = root or Path(sysconfig.get_path("stdlib"))
    texts = {path.name: path.read_bytes() for path in folder.glob("*.py") if path.is_file()}
    if root is None and topics:
        texts |= _topics()
    texts = {name: text for name, text in texts.items() if len(text) > 1}
    total = sum(map(len, texts.values()))
    if total < LEAST or len(texts) < 3:
        raise TaskError(
            f"task=python_text needs at least {LEAST} bytes in three files of Python source, and {folder} has {total} in "
            f"{len(texts)}: set task.root to a folder with more, or use a Python that ships the sources of its library "
            f"(this is {sys.version.split()[0]})"
        )
    return texts


def _topics() -> dict[str, bytes]:
    """Return the pages of `help()`; a slim Python has none."""
    with suppress(ImportError):
        module: Any = importlib.import_module("pydoc_data.topics")
        return {f"help of {topic}": str(text).encode() for topic, text in module.topics.items()}
    return {}
