"""TinyStories: short stories in simple words, from the two text files of the data set.

In a file each story ends with a line `<|endoftext|>`. The tokenizer is a `tokenizer.json`, such as that of GPT-2. The validation
file is split into validation and test stories. The task is meant for machines with a GPU and has not been benchmarked: no package
ships the data set, and the tests of the loader write files of their own.
"""

import importlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from esper.ranges import check_ranges
from esper.seeding import stream
from esper.task.data import Data, TaskError, reading
from esper.task.text import TextConfig, blocks

TRAIN_FILE, VALID_FILE, TOKENIZER_FILE = "TinyStories-train.txt", "TinyStories-valid.txt", "tokenizer.json"
END = "<|endoftext|>"
FROM = "download it from huggingface.co/datasets/roneneldan/TinyStories"


@dataclass(kw_only=True, slots=True)
class TinyStoriesConfig(TextConfig):
    """TinyStories, with healthy hosts. Standard kinds: [oo,xx], for hosts of two layers."""

    default_host: ClassVar[str] = "transformer_tinystories"
    default_optimiser: ClassVar[str] = "adamw_warmup"
    own_data: ClassVar[tuple[str, ...]] = ("root",)

    root: str = "data/tinystories"
    """Folder of TinyStories-train.txt, TinyStories-valid.txt and tokenizer.json."""
    stories: int = 20_000
    """Number of training stories, counted from the first, at least 1. More: more data, more memory."""
    valid_stories: int = 2_000
    """Number of stories from the validation file, at least 2; half of them are for testing."""
    batch_size: int = 32
    epoch_samples: int = 2048
    valid_samples: int = 256

    def __post_init__(self) -> None:
        TextConfig.__post_init__(self)
        check_ranges("task", self, {"[1, inf]": ["stories"], "[2, inf]": ["valid_stories"]})

    def load(self, context: int) -> Data:
        folder = Path(self.root)
        tokenizer = _tokenizer(folder / TOKENIZER_FILE)
        end = tokenizer.token_to_id(END)
        if end is None:
            raise TaskError(f"{folder / TOKENIZER_FILE} has no token {END}: use the tokenizer of GPT-2")
        train = _stories(folder / TRAIN_FILE, self.stories)
        held_out = _stories(folder / VALID_FILE, self.valid_stories)
        order = stream(self.split_seed, "tinystories_split").permutation(len(held_out))
        half = math.ceil(len(held_out) / 2)
        valid, test = ([held_out[place] for place in part] for part in (order[:half], order[half:]))

        def tokens(stories: list[str]) -> Iterator[list[int]]:
            for encoded in tokenizer.encode_batch(stories):
                yield [*encoded.ids, end]

        size = tokenizer.get_vocab_size()
        parts = [blocks(tokens(stories), context, end, size, mapped=self.mapped) for stories in (train, valid, test)]
        return Data.of_sets(parts, size, mapped=self.mapped)


def _tokenizer(path: Path) -> Any:
    """Read a tokenizer.

    Raises:
        TaskError: the package or the file is missing, or the file is damaged.
    """
    try:
        package: Any = importlib.import_module("tokenizers")
    except ImportError as error:
        raise TaskError(
            "task=tinystories needs the package tokenizers, which is not installed: "
            "pip install -c constraints.txt -e '.[tinystories]'"
        ) from error
    with reading(path, "download it from huggingface.co/openai-community/gpt2 and set task.root to its folder"):
        content = path.read_text(encoding="utf-8")
        try:
            return package.Tokenizer.from_str(content)
        except Exception as error:  # the package raises plain Exceptions
            raise ValueError(str(error)) from error


def _stories(path: Path, most: int) -> list[str]:
    """Read the first stories of a file.

    Raises:
        TaskError: the file is missing or damaged, or has fewer than two stories.
    """
    stories, lines = list[str](), list[str]()
    with reading(path, f"{FROM}, and set task.root to its folder"):
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
        if len(stories) < 2:
            raise ValueError(f"it has {len(stories)} stories that end in {END}")
    return stories  # text after the last mark is an incomplete story
