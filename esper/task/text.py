"""Next-token prediction tasks, and the division of texts into blocks."""

# n blocks, T positions

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.fusion.layout import Layout
from esper.hosts.base import HostConfig
from esper.seeding import stream
from esper.task.base import TaskConfig
from esper.task.data import IGNORED, Data, TaskError, smallest_type
from esper.task.mapped import joined

BYTES = 256
"""Vocabulary of texts that are read byte by byte."""
SHARE = 0.1
"""Share of the bytes held out for validation, and again for testing."""


@dataclass(kw_only=True, slots=True)
class TextConfig(TaskConfig):
    """Fields of all language tasks. A sample is a block of `host.context` tokens; loss and accuracy are per token."""

    samples: ClassVar[Layout] = Layout.SEQUENCES
    default_host: ClassVar[str] = "transformer"
    default_optimiser: ClassVar[str] = "adamw_text"
    default_blueprint: ClassVar[tuple[str, ...]] = ("lora", "attention", "mlp_small")
    standard_kinds: ClassVar[Mapping[int, Sequence[str]]] = {2: ("oo", "xx")}

    mapped: bool = False
    """If true, keep the blocks in a memory-mapped temporary file, in the folder that TMPDIR names, instead of in memory."""

    def __post_init__(self) -> None:
        TaskConfig.__post_init__(self)
        self.check_mapped(self.mapped)

    def check_host(self, host: HostConfig) -> None:
        TaskConfig.check_host(self, host)
        if not host.sequence_length():
            raise ValueError("host.context must be at least 1 for a text task, got 0: set it to the length of a block")


def blocks(
    texts: Iterable[Sequence[int] | npt.NDArray[np.uint8]], context: int, filler: int, vocab: int, *, mapped: bool = False
) -> tuple[Tensor, Tensor]:
    """Cut texts into tokens `[n, T]` and next tokens `[n, T]`, T = context, so that each token but the first is predicted once.

    The last block of a text is padded with `filler`, with the target `IGNORED`. Texts of fewer than two tokens are skipped.

    Args:
        texts: tokens of each text.
        context: T.
        filler: token of padded positions.
        vocab: size of the vocabulary.
        mapped: if true, keep the blocks in a temporary file, in the smallest type that holds the vocabulary.

    Raises:
        ValueError: all texts have fewer than two tokens.
        TaskError: a token is not in the vocabulary.
    """
    kind = smallest_type(IGNORED, vocab - 1) if mapped else torch.int64
    filled = (_padded(_known(torch.tensor(text, dtype=torch.int64), vocab), context) for text in texts if len(text) > 1)
    pairs = (torch.stack([torch.where(row == IGNORED, filler, row)[:, :-1], row[:, 1:]], 1) for row in filled)
    first = next(pairs, None)
    if first is None:
        raise ValueError("no text has two tokens")
    whole = joined((pair.to(kind).numpy() for pair in chain([first], pairs)), mapped=mapped)
    return whole[:, 0], whole[:, 1]


def _known(tokens: Tensor, vocab: int) -> Tensor:
    if (highest := int(tokens.max())) >= vocab:
        raise TaskError(f"token {highest} exceeds the vocabulary of {vocab}: use the tokenizer of these texts")
    return tokens


def _padded(tokens: Tensor, context: int) -> Tensor:
    """Return the overlapping blocks of a text `[n, T + 1]`, the last padded with `IGNORED`."""
    blocks = -(-max(len(tokens) - 1, 0) // context)
    whole = torch.full((blocks * context + 1,), IGNORED, dtype=torch.int64)
    whole[: len(tokens)] = tokens
    return whole[torch.arange(blocks)[:, None] * context + torch.arange(context + 1)]


def split_texts(
    texts: Mapping[str, bytes], rng: np.random.Generator, context: int, *, mapped: bool = False
) -> list[tuple[Tensor, Tensor]]:
    """Divide texts at random, and return the blocks of training, validation and test texts. If that leaves less than a
    quarter of the bytes for training, the largest text is used for training.

    Args:
        texts: at least three, by name.
        rng: the random stream.
        context: length of a block.
        mapped: if true, keep the blocks in a memory-mapped file.
    """
    names, total = sorted(texts), sum(map(len, texts.values()))
    shuffled = [texts[names[place]] for place in rng.permutation(len(names))]
    parts: tuple[list[bytes], ...] = _fill(shuffled, most=2 * SHARE * total)
    if not (parts[0] and parts[1]):  # there are only large texts
        parts = _fill(shuffled, most=total)
    if sum(map(len, parts[2])) < total / 4:  # a large text was held out: learn from the largest one instead
        largest, *others = sorted(texts.values(), key=len, reverse=True)
        parts = ([], [], [largest])
        for text in others:
            smaller = min(parts[:2], key=lambda part: sum(map(len, part)))
            (smaller if sum(map(len, smaller)) < SHARE * total else parts[2]).append(text)
    valid, test, train = (
        blocks([np.frombuffer(text, np.uint8) for text in part], context, 0, BYTES, mapped=mapped) for part in parts
    )
    return [train, valid, test]


def _fill(texts: Sequence[bytes], most: float) -> tuple[list[bytes], ...]:
    """Return validation, test and training texts: the first two are filled one after the other up to their share, but never
    with more than `most` bytes."""
    parts: tuple[list[bytes], ...] = ([], [], [])
    sizes, total = [0, 0], sum(map(len, texts))
    for text in texts:
        part = next((part for part, size in enumerate(sizes) if size < SHARE * total and size + len(text) <= most), 2)
        parts[part].append(text)
        if part < 2:
            sizes[part] += len(text)
    return parts


def byte_data(texts: Mapping[str, bytes], split_seed: int, name: str, context: int, *, mapped: bool = False) -> Data:
    """Return the bytes of texts, split by text; `name` starts the names of the random streams."""
    train, (valid_x, valid_y), test = split_texts(texts, stream(split_seed, f"{name}_split"), context, mapped=mapped)
    shuffled = stream(split_seed, f"{name}_valid").permutation(len(valid_x))
    return Data.of_sets([train, (valid_x[shuffled], valid_y[shuffled]), test], BYTES, mapped=mapped)
