"""A state and assertions for the tests of checkpoints."""

from pathlib import Path
from typing import Any

import pytest
import torch

STATE: dict[str, Any] = {
    "weights": {"w": torch.arange(6.0).reshape(2, 3), 7: torch.tensor([True, False])},
    "half": torch.ones(3, dtype=torch.bfloat16),
    "list": [1, (2.5, "three"), None, b"\x00\xff"],
    "big": 2**63 + 1,
    "flag": True,
}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_one_sentence(error: pytest.ExceptionInfo[BaseException], *words: str) -> None:
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message
