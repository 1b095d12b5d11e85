"""Tasks of predicting the next token: the hosts, their instances, and how texts become blocks."""

# n blocks, T positions

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from esper.hosts.transformer import TransformerConfig
from esper.task.base import Task, TaskConfig, check_kinds
from esper.task.data import IGNORED, Data, TaskError
from esper.task.instances import Instance, Instances, Name


@dataclass(kw_only=True, slots=True)
class TextConfig(TaskConfig):
    """Fields of all language tasks. A sample is a block of `task.host.context` tokens; loss and accuracy are per token."""

    instances: Instances = Instances.healthy
    """`lesioned` hosts have layers whose attention sees nothing of what was before; `healthy` hosts are whole."""
    kinds: list[str] = field(default_factory=lambda: list[str]())
    """Kinds of lesion, each as likely as any other: one letter a layer in forward order, x lesioned, o whole."""
    host: TransformerConfig = field(default_factory=lambda: TransformerConfig())
    """The host's architecture."""
    split_seed: int = 0
    """Names the split of the texts; the same for every run, so that runs can be compared."""

    def __post_init__(self) -> None:
        TaskConfig.__post_init__(self)
        check_kinds(self.instances, self.kinds, self.host.layers, "layer (task.host.layers)")

    def load(self) -> Data:
        """Reads the texts.

        Raises:
            TaskError: they are not there or not what they should be.
        """
        raise TypeError(f"{type(self).__name__} does not say how to load its texts: define load()")

    def build(self) -> "Text":
        return Text(self)


class Text(Task):
    """The task of a `TextConfig`."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__(config, config.load())
        self.config = config

    def lesion(self, name: Name) -> str:
        """Such as "xo": in the first layer each position attends to itself alone."""
        if self.config.instances is Instances.healthy:
            return "o" * self.config.host.layers
        return name.choose("instance", self.config.kinds)

    def make_host(self, instance: Instance) -> nn.Module:
        return self.config.host.build(self.data.num_classes, [letter == "x" for letter in instance.lesion])


def blocks(
    texts: Iterable[Sequence[int] | npt.NDArray[np.uint8]], context: int, stride: int, filler: int
) -> tuple[Tensor, Tensor]:
    """Cuts texts into tokens `[n, T]` and next tokens `[n, T]`, T = context, a block every `stride` tokens of each text.

    The last block of a text is filled up; what is filled has the target `IGNORED`, so that it counts nowhere. A text of fewer
    than two tokens has nothing to predict and is left out; so is a block of which every prediction lies in the block before it.

    Raises:
        ValueError: no text has two tokens.
    """
    rows: list[Tensor] = []
    for text in texts:
        tokens = torch.tensor(text, dtype=torch.int64)
        if len(tokens) < 2:
            continue
        starts = range(0, max(1, len(tokens) - 1 - (context - stride)), stride)
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
    """The data of blocks for training, validation and test; those for validation lie in an order that `valid_samples` may cut."""
    (train_x, train_y), (valid_x, valid_y), (test_x, test_y) = parts
    highest = max(int(x.max()) for x, _ in parts)
    if highest >= vocab:
        raise TaskError(f"a text has token {highest}, and the vocabulary has only {vocab}: use the tokenizer that belongs to it")
    return Data(
        train_x=train_x,
        train_y=train_y,
        valid_x=valid_x,
        valid_y=valid_y,
        test_x=test_x,
        test_y=test_y,
        num_classes=vocab,
    )
