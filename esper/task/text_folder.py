"""A byte-level language model of texts of your own: all files of a folder."""

from dataclasses import dataclass
from pathlib import Path

from esper.task.data import Data, TaskError, reading, visible_files
from esper.task.text import SHARE, TextConfig, byte_data

LEAST = 10_000
"""Minimum size of the texts [bytes]. `task.valid_samples` may need more."""


@dataclass(kw_only=True, slots=True)
class TextFolderConfig(TextConfig):
    """Bytes of your own files, split by file, with healthy hosts. Standard kinds: [oo,xx]."""

    folder: str = "data/text"
    """Folder of the files, searched recursively; hidden files and folders are left out."""
    pattern: str = "*.txt"
    """Pattern of the names of the files, as in *.md or chapter_*."""
    batch_size: int = 16
    epoch_samples: int = 512
    valid_samples: int = 128

    def __post_init__(self) -> None:
        TextConfig.__post_init__(self)
        if not self.pattern or "/" in self.pattern or "**" in self.pattern:
            raise ValueError(f"task.pattern must be a pattern of file names without folders, as in *.txt, got {self.pattern!r}")

    def load(self, context: int) -> Data:
        top, texts = Path(self.folder), dict[str, bytes]()
        if not top.is_dir():
            raise TaskError(f"task.folder={self.folder} is not a folder: set it to the folder of the texts")
        for path in visible_files(top, self.pattern):
            with reading(path, "remove it, or make it readable"):
                texts[path.relative_to(top).as_posix()] = path.read_bytes()
        texts = {name: text for name, text in texts.items() if len(text) > 1}
        total = sum(map(len, texts.values()))
        if total < LEAST or len(texts) < 3:
            needed = max(LEAST, round(self.valid_samples * context / SHARE))
            raise TaskError(
                f"task=text_folder needs at least {needed} bytes in three files, and task.folder={self.folder} has {total} in "
                f"{len(texts)} that match task.pattern={self.pattern}: choose a folder or a pattern with more text"
            )
        return byte_data(texts, self.split_seed, "text_folder", context, mapped=self.mapped)
