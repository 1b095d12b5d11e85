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
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from esper.seeding import stream
from esper.seeds.bank import SGDConfig
from esper.task.data import Data, TaskError
from esper.task.instances import Instances
from esper.task.text import TextConfig, blocks, text_data

VOCABULARY = 256
SHARE = 0.1
"""Share of the bytes held out for validation, and again for testing."""
LEAST = 100_000
"""Minimum size of the texts [bytes]."""


@dataclass(kw_only=True, slots=True)
class PythonTextConfig(TextConfig):
    """Bytes of Python's standard library and help texts, split by file. Standard kinds: [oo,xx]."""

    batch_size: int = 16
    epoch_samples: int = 512
    valid_samples: int = 128
    instances: Instances = Instances.lesioned
    host_optimiser: SGDConfig = field(default_factory=lambda: SGDConfig(learning_rate=0.5))
    seed_optimiser: SGDConfig = field(default_factory=lambda: SGDConfig(learning_rate=0.1))
    """Optimiser of the seeds; their gradients are clipped separately from the host's. A rate of 0.5 harms attention seeds."""
    root: str = ""
    """Folder whose *.py files are the texts; empty: the standard library of the running interpreter."""

    def load(self, context: int) -> Data:
        texts = _texts(Path(self.root) if self.root else None)
        names = sorted(texts)
        order = [names[place] for place in stream(self.split_seed, "python_text_split").permutation(len(names))]
        share = SHARE * sum(map(len, texts.values()))
        parts: tuple[list[bytes], ...] = ([], [], [])  # fill validation, then test, then training
        for name in order:
            part = next((part for part in parts[:2] if sum(map(len, part)) < share), parts[2])
            part.append(texts[name])
        valid, test, train = (blocks([np.frombuffer(text, np.uint8) for text in part], context, 0) for part in parts)
        shuffled = stream(self.split_seed, "python_text_valid").permutation(len(valid[0]))
        return text_data([train, (valid[0][shuffled], valid[1][shuffled]), test], VOCABULARY)


def _texts(root: Path | None) -> dict[str, bytes]:
    """Return all texts by name.

    Raises:
        TaskError: there is too little text.
    """
    folder = root or Path(sysconfig.get_path("stdlib"))
    texts = {path.name: path.read_bytes() for path in folder.glob("*.py")}
    if root is None:
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
