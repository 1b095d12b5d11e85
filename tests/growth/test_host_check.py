"""Remedies where a host cannot read the samples."""

import pytest
import torch

from esper.growth.compatibility import check_host
from esper.hosts.cnn import CNNConfig


@pytest.mark.parametrize(
    ("shape", "remedy"),
    [((8, 8, 1), r"if channels come last, return x\.permute"), ((8, 1, 1), "choose a smaller host for these samples")],
)
def test_samples_that_a_cnn_cannot_read_have_a_remedy(shape: tuple[int, ...], remedy: str) -> None:
    host, same = (CNNConfig().build(shape, 4, [False] * 3) for _ in range(2))
    with pytest.raises(ValueError, match=remedy):
        check_host(host, same, torch.zeros(3, *shape), (3, 4), 1, "task=mine host=cnn")
