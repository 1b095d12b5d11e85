"""Layers and parameters that a network uses in two places."""

import copy

import pytest
import torch
from torch import nn

from esper.fusion.fuse import Fleet, fuse
from esper.fusion.stacked import FusionError


def test_a_shared_layer_is_fused_as_shared_or_refused():
    def make():
        act = nn.Tanh()
        return nn.Sequential(nn.Conv2d(2, 2, 1), act, nn.Conv2d(2, 2, 1), act)

    modules = [make() for _ in range(2)]
    x = torch.randn(3, 4, 5, 5)
    wanted = torch.cat([module(part) for module, part in zip(modules, x.chunk(2, 1), strict=True)], 1)
    try:
        fused = fuse(modules)
    except FusionError:
        return
    assert torch.allclose(fused(x), wanted, atol=1e-6)


def test_a_shared_layer_with_buffers_is_not_fused():
    """Its two stacked forms would keep running statistics each, and `member` would return those of the first."""

    def make():
        norm = nn.BatchNorm2d(2)
        return nn.Sequential(nn.Conv2d(2, 2, 1), norm, nn.Conv2d(2, 2, 1), norm)

    with pytest.raises(FusionError, match="1 and 3 are one BatchNorm2d, and stacked forms do not share buffers: use two layers"):
        Fleet([make() for _ in range(2)])
    fleet, alone = Fleet([module := make()]), copy.deepcopy(module)
    x = torch.randn(5, 2, 4, 4)
    fleet.bind().train()(x)
    alone.train()(x)
    assert torch.allclose(fleet.member(0).eval()(x), alone.eval()(x), atol=1e-6)


def test_a_tied_parameter_is_refused_by_fuse_and_tied_by_a_fleet():
    def make():
        conv = nn.Conv2d(2, 2, 1)
        return nn.Sequential(conv, nn.ReLU(), nn.Sequential(conv))

    with pytest.raises(FusionError, match="in two places"):
        fuse([make() for _ in range(2)])
    fleet, x = Fleet([make() for _ in range(2)]), torch.randn(3, 4, 5, 5)
    alone = [fleet.member(index)(part) for index, part in enumerate(x.chunk(2, 1))]
    assert fleet.flat.shape[1] == 6
    assert torch.allclose(fleet.bind()(x), torch.cat(alone, 1), atol=1e-6)


@pytest.mark.parametrize("members", [1, 2])
def test_two_names_of_one_parameter_in_a_layer_are_tied(members: int) -> None:
    def make(kept: nn.Module) -> nn.Module:
        norm = nn.GroupNorm(2, 4)
        norm.bias = norm.weight
        return nn.Sequential(nn.Conv2d(2, 4, 1), norm, kept)

    kept = nn.ReLU() if members > 1 else nn.PReLU()
    fleet, x = Fleet([make(kept) for _ in range(members)]), torch.randn(3, 2 * members, 5, 5)
    alone = [fleet.member(index) for index in range(members)]
    wanted = torch.cat([one(part) for one, part in zip(alone, x.chunk(members, 1), strict=True)], 1)
    y = fleet.bind()(x)
    assert torch.allclose(y, wanted, atol=1e-6)
    y.square().sum().backward()
    wanted.square().sum().backward()
    assert fleet.flat.grad is not None
    for grad, one in zip(fleet.flat.grad, alone, strict=True):
        assert torch.allclose(grad, torch.cat([weight.grad.flatten() for weight in one.parameters()]), atol=1e-4)
