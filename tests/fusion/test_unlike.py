"""Networks that differ in more than numbers are not fused: all would be computed as the first."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from esper.fusion.fuse import fuse
from esper.fusion.stacked import FusionError


class Times(nn.Module):
    """A layer with a setting."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return self.factor * x


class Does(nn.Module):
    """A layer with a private attribute."""

    def __init__(self, does):
        super().__init__()
        self._does = does

    def forward(self, x):
        return x


def scaling(factor):
    return lambda x: factor * x


@pytest.mark.parametrize(
    ("one", "other", "sentence"),
    [
        (lambda: Times(1.0), lambda: Times(0.1), "is a Times in one host, with another factor in another host"),
        (lambda: Times(None), lambda: Times(torch.ones(1)), "is a Times in one host, with another factor in another host"),
        (
            lambda: Times(torch.zeros(1)),
            lambda: Times(torch.ones(1)),
            "is a Times in one host, with another factor in another host",
        ),
        (lambda: Times({"a": [1]}), lambda: Times({"a": [2]}), "is a Times in one host, with another factor in another host"),
        (lambda: Does(1), lambda: Does(2), "is a Does in one host, with another _does in another host"),
        (lambda: Does(F.relu), lambda: Does(F.gelu), "is a Does in one host, with another _does in another host"),
        (lambda: Does(torch.relu), lambda: Does(torch.tanh), "is a Does in one host, with another _does in another host"),
        (lambda: Does(scaling(1)), lambda: Does(scaling(2)), "is a Does in one host, with another _does in another host"),
        (lambda: Does(partial(F.elu, alpha=1.0)), lambda: Does(partial(F.elu, alpha=2.0)), "with another _does in another host"),
        (nn.ReLU, nn.Sigmoid, "is a ReLU in one host, with a Sigmoid in another host"),
        (lambda: nn.Conv2d(1, 2, 3, padding=1), lambda: nn.Conv2d(1, 2, 3, padding=2, dilation=2), "with another padding in"),
    ],
)
def test_members_that_differ_in_more_than_numbers_are_refused(one, other, sentence):
    with pytest.raises(FusionError, match=f"^0 {sentence}" if sentence.startswith("is") else sentence):
        fuse([nn.Sequential(make(), nn.Flatten()) for make in (one, one, other)])


@pytest.mark.parametrize("make", [lambda: scaling(2), lambda: partial(F.elu, alpha=2.0), lambda: {"a": torch.ones(2)}, object])
def test_members_that_are_alike_are_fused(make):
    called, other = Does(make()), Does(make())
    called._cached = torch.ones(1)
    fuse([nn.Sequential(layer, nn.Flatten()) for layer in (called, other)])
