"""Tests on a GPU compare numbers: kernels that add in a fixed order, in all bits of single precision."""

from collections.abc import Iterator

import pytest
import torch

from esper.pool.devices import compute_exactly


@pytest.fixture(autouse=True)
def same_bits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let cuDNN choose reproducible kernels, and none of TF32, which `ShardPool` itself turns off."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    compute_exactly([torch.device("cuda")] if torch.cuda.is_available() else [])
    yield
    if torch.cuda.is_available():
        torch.cuda.synchronize()
