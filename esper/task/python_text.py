"""A language model of Python, byte by byte, on the interpreter's own standard library: real text that is on every machine.

The texts are the modules at the top of the standard library and the topics of `help()`. They differ between versions of Python,
so a run records a hash of its data.

Measured, 20 epochs, 12 hosts, accuracy of the next byte [%] / return of reward=shaped: bare 40.0/37.8 with whole layers (oo) and
36.6/33.5 without attention (xx); with a seed of attention in r0c0 40.4/37.3 and 37.7/33.9. An oracle leads the best fixed
schedule by 0.1 (standard error 0.1): there is little to learn yet. See experiments/2026-11-21_tasks.
"""

import importlib
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from esper.hosts.transformer import TransformerConfig
from esper.seeding import stream
from esper.seeds.bank import SGDConfig
from esper.task.data import Data, TaskError
from esper.task.instances import Instances
from esper.task.text import TextConfig, blocks, text_data

VOCABULARY = 256
SHARE = 0.1
"""Part of the bytes that is set apart for validation, and as much for the test."""
LEAST = 100_000
"""Bytes of text below which the library counts as missing."""


@dataclass(kw_only=True, slots=True)
class PythonTextConfig(TextConfig):
    """Bytes of Python's own standard library and help texts, split by file by a named stream; a small transformer."""

    batch_size: int = 16
    """Blocks in one optimiser step of a host, at least 1; the rest of an epoch that fills no batch is left out."""
    epoch_samples: int = 512
    """Blocks a host sees in an epoch, 0 for as many as there are. Fewer: shorter epochs, and a host's walk through its blocks
    goes on over the epochs."""
    valid_samples: int = 128
    """Blocks every measurement uses, 0 for all. Fewer: faster, and noisier rewards."""
    instances: Instances = Instances.lesioned
    """`lesioned` hosts have layers whose attention sees nothing of what was before; `healthy` hosts are whole."""
    kinds: list[str] = field(default_factory=lambda: ["oo", "xx"])
    """Kinds of lesion, each as likely as any other: one letter a layer in forward order, x lesioned, o whole."""
    host: TransformerConfig = field(default_factory=lambda: TransformerConfig(heads=2, context=32))
    """The host's architecture."""
    host_optimiser: SGDConfig = field(default_factory=lambda: SGDConfig(learning_rate=0.5))
    """How hosts learn."""
    seed_optimiser: SGDConfig = field(default_factory=lambda: SGDConfig(learning_rate=0.1))
    """How seeds learn; their gradients are clipped apart from the host's. At the host's 0.5 a seed of attention does harm."""
    root: str = ""
    """Folder whose *.py files are the texts; empty for the standard library of the interpreter that runs."""

    def load(self) -> Data:
        texts = _texts(Path(self.root) if self.root else None)
        names = sorted(texts)
        order = [names[place] for place in stream(self.split_seed, "python_text_split").permutation(len(names))]
        share = SHARE * sum(map(len, texts.values()))
        parts: tuple[list[bytes], ...] = ([], [], [])  # validation and test take texts until they are full
        for name in order:
            part = next((part for part in parts[:2] if sum(map(len, part)) < share), parts[2])
            part.append(texts[name])
        context = self.host.context
        valid, test, train = (blocks([np.frombuffer(text, np.uint8) for text in part], context, context, 0) for part in parts)
        shuffled = stream(self.split_seed, "python_text_valid").permutation(len(valid[0]))
        return text_data([train, (valid[0][shuffled], valid[1][shuffled]), test], VOCABULARY)


def _texts(root: Path | None) -> dict[str, bytes]:
    """Every text by its name.

    Raises:
        TaskError: there are none, or hardly any.
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
            f"{len(texts)}: set task.root to a folder with more, or use a Python that comes with its library's sources "
            f"(this is {sys.version.split()[0]})"
        )
    return texts


def _topics() -> dict[str, bytes]:
    """The pages of `help()`; a slim Python has none."""
    try:
        module: Any = importlib.import_module("pydoc_data.topics")
    except ImportError:
        return {}
    return {f"help of {topic}": str(text).encode() for topic, text in module.topics.items()}
