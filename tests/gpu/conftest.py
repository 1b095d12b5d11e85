"""Tests on a GPU compare numbers: kernels that add in a fixed order, in all bits of single precision."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def same_bits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let cuDNN choose reproducible kernels; `ShardPool` itself turns TF32 off."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    yield
    if torch.cuda.is_available():
        torch.cuda.synchronize()
