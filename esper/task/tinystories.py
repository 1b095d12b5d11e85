"""TinyStories: short stories in the words of a small child, from the two text files that the data set is published as.

A file holds one story after another, each followed by a line `<|endoftext|>`. The tokenizer is a `tokenizer.json`, such as that
of GPT-2. The published validation file is cut into validation and test stories. Written for machines with a GPU, and not measured
here: the data is in no package, so that the loader is tested on files made by the tests.
"""

import importlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from esper.hosts.transformer import TransformerConfig
from esper.seeding import stream
from esper.seeds.bank import SGDConfig
from esper.task.data import Data, TaskError
from esper.task.text import TextConfig, blocks, text_data

TRAIN_FILE, VALID_FILE, TOKENIZER_FILE = "TinyStories-train.txt", "TinyStories-valid.txt", "tokenizer.json"
END = "<|endoftext|>"
FROM = "download it from huggingface.co/datasets/roneneldan/TinyStories"


@dataclass(kw_only=True, slots=True)
class TinyStoriesConfig(TextConfig):
    """TinyStories with a decoder of six layers; slots after the MLP of every second layer."""

    root: str = "data/tinystories"
    """Folder with TinyStories-train.txt, TinyStories-valid.txt and tokenizer.json."""
    stories: int = 20_000
    """Training stories that are read, from the first on, at least 1. More: more to learn from, and more memory."""
    valid_stories: int = 2_000
    """Stories read of the validation file, at least 2; half of them are for the test."""
    stride: int = 256
    """Distance between the beginnings of two blocks of a story [tokens], from 1 to task.host.context. Less: blocks overlap."""
    batch_size: int = 32
    """Blocks in one optimiser step of a host, at least 1; the rest of an epoch that fills no batch is left out."""
    epoch_samples: int = 2048
    """Blocks a host sees in an epoch, 0 for as many as there are. Fewer: shorter epochs, and a host's walk through its blocks
    goes on over the epochs."""
    valid_samples: int = 256
    """Blocks every measurement uses, 0 for all. Fewer: faster, and noisier rewards."""
    host: TransformerConfig = field(
        default_factory=lambda: TransformerConfig(
            layers=6, width=384, heads=6, context=256, slot_layers=[1, 3, 5], surfaces=["mlp"], tied=True
        )
    )
    """The host's architecture."""
    host_optimiser: SGDConfig = field(default_factory=lambda: SGDConfig(learning_rate=0.3))
    """How hosts learn."""
    seed_optimiser: SGDConfig = field(default_factory=lambda: SGDConfig(learning_rate=0.3))
    """How seeds learn; their gradients are clipped apart from the host's."""

    def __post_init__(self) -> None:
        TextConfig.__post_init__(self)
        if self.stories < 1:
            raise ValueError(f"task.stories must be at least 1, got {self.stories}")
        if self.valid_stories < 2:
            raise ValueError(f"task.valid_stories must be at least 2, got {self.valid_stories}: half of them are for the test")
        if not 1 <= self.stride <= self.host.context:
            raise ValueError(
                f"task.stride must be from 1 to task.host.context={self.host.context}, got {self.stride}: "
                "a larger one would leave out tokens"
            )

    def load(self) -> Data:
        folder = Path(self.root)
        tokenizer = _tokenizer(folder / TOKENIZER_FILE)
        end = tokenizer.token_to_id(END)
        if end is None:
            raise TaskError(f"{folder / TOKENIZER_FILE} has no token {END}: use that of GPT-2")
        train = _stories(folder / TRAIN_FILE, self.stories)
        judged = _stories(folder / VALID_FILE, self.valid_stories)
        order = stream(self.split_seed, "tinystories_split").permutation(len(judged))
        half = math.ceil(len(judged) / 2)
        valid, test = ([judged[place] for place in part] for part in (order[:half], order[half:]))

        def tokens(stories: list[str]) -> Iterator[list[int]]:
            for encoded in tokenizer.encode_batch(stories):
                yield [*encoded.ids, end]

        context = self.host.context
        parts = [blocks(tokens(stories), context, self.stride, end) for stories in (train, valid, test)]
        return text_data(parts, tokenizer.get_vocab_size())


def _tokenizer(path: Path) -> Any:
    """The tokenizer of a file.

    Raises:
        TaskError: the package or the file is missing, or the file is damaged.
    """
    try:
        package: Any = importlib.import_module("tokenizers")
    except ImportError as error:
        raise TaskError(
            "task=tinystories needs the package tokenizers, which is not installed: pip install -e '.[tinystories]'"
        ) from error
    if not path.is_file():
        raise TaskError(
            f"task=tinystories needs {path}, which is not there: download it from huggingface.co/openai-community/gpt2 "
            "and set task.root to its folder"
        )
    try:
        return package.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises plain Exceptions
        raise TaskError(f"{path} is damaged ({error}): download it again") from error


def _stories(path: Path, most: int) -> list[str]:
    """The first stories of a file.

    Raises:
        TaskError: it is missing, damaged, or holds fewer than two.
    """
    if not path.is_file():
        raise TaskError(f"task=tinystories needs {path}, which is not there: {FROM}, and set task.root to its folder")
    stories, lines = list[str](), list[str]()
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                if line.strip() != END:
                    lines.append(line)
                    continue
                if story := "".join(lines).strip():
                    stories.append(story)
                lines = []
                if len(stories) == most:
                    return stories
    except UnicodeDecodeError as error:
        raise TaskError(f"{path} is damaged ({error}): {FROM} again") from error
    if len(stories) < 2:
        raise TaskError(f"{path} is damaged: it holds {len(stories)} stories that end in {END}: {FROM} again")
    return stories  # what follows the last mark is a story that was cut off
