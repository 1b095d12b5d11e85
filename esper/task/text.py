"""Next-token prediction tasks, and the division of texts into blocks."""

# n blocks, T positions

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.fusion.layout import Layout
from esper.hosts.base import HostConfig
from esper.task.base import TaskConfig
from esper.task.data import IGNORED, Data, TaskError


@dataclass(kw_only=True, slots=True)
class TextConfig(TaskConfig):
    """Fields of all language tasks. A sample is a block of `host.context` tokens; loss and accuracy are per token."""

    samples: ClassVar[Layout] = Layout.SEQUENCES
    default_host: ClassVar[str] = "transformer"
    default_optimiser: ClassVar[str] = "adamw_text"
    default_blueprint: ClassVar[tuple[str, ...]] = ("lora", "attention", "mlp_small")
    standard_kinds: ClassVar[Mapping[int, Sequence[str]]] = {2: ("oo", "xx")}

    def check_host(self, host: HostConfig) -> None:
        TaskConfig.check_host(self, host)
        if not host.sequence_length():
            raise ValueError("host.context must be at least 1 for a text task, got 0: set it to the length of a block")


def blocks(texts: Iterable[Sequence[int] | npt.NDArray[np.uint8]], context: int, filler: int) -> tuple[Tensor, Tensor]:
    """Cut texts into tokens `[n, T]` and next tokens `[n, T]`, T = context, so that each token but the first is predicted once.

    The last block of a text is padded with `filler`, with the target `IGNORED`. Texts of fewer than two tokens are skipped.

    Raises:
        ValueError: all texts have fewer than two tokens.
    """
    rows: list[Tensor] = []
    for text in texts:
        tokens = torch.tensor(text, dtype=torch.int64)
        if len(tokens) < 2:
            continue
        starts = range(0, len(tokens) - 1, context)
        row = torch.full((len(starts), context + 1), IGNORED, dtype=torch.int64)
        for part, start in zip(row, starts, strict=True):
            chunk = tokens[start : start + context + 1]
            part[: len(chunk)] = chunk
        rows.append(row)
    if not rows:
        raise ValueError("no text has two tokens")
    whole = torch.cat(rows)
    x, y = whole[:, :-1], whole[:, 1:]
    return torch.where(x == IGNORED, filler, x), y


def text_data(parts: Sequence[tuple[Tensor, Tensor]], vocab: int) -> Data:
    """Return the data of training, validation and test blocks; validation blocks must be shuffled, since a task may cut them."""
    (train_x, train_y), (valid_x, valid_y), (test_x, test_y) = parts
    highest = max(int(x.max()) for x, _ in parts)
    if highest >= vocab:
        raise TaskError(f"token {highest} exceeds the vocabulary of {vocab}: use the tokenizer of these texts")
    return Data(
        train_x=train_x, train_y=train_y, valid_x=valid_x, valid_y=valid_y, test_x=test_x, test_y=test_y, num_classes=vocab
    )
