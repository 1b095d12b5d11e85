"""Chains of layers against PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from torch import nn

from esper.fusion.chain import Convolution, GroupNorm, Link, chain
from esper.fusion.fuse import fuse
from esper.fusion.layout import side_by_side
from tests.fusion.alike import assert_alike, few, images, sizes, vectors


@pytest.mark.parametrize("learning", [(True, True, True, True), (False, True, False, True), (False, False, True, False)])
@few
@given(sizes)
def test_a_chain(learning, size):
    """A convolution with ReLU, a group norm with ReLU and a convolution; gradients of what learns alone."""
    (groups, inputs, outputs, height, width, batch), dtype = size, torch.float64
    x = images(batch, groups * inputs, height + 1, width, dtype)  # PyTorch refuses a group norm of one value
    first, last = vectors(dtype, groups, outputs, inputs, 3, 3), vectors(dtype, groups, inputs, outputs, 1, 1)
    scale, shift = (vectors(dtype, groups, outputs) for _ in range(2))
    pairs = [pair for pair, learns in zip((x, first, scale, last), learning, strict=True) if learns]
    for pair, learns in zip((x, first, scale, last), learning, strict=True):
        for one in pair:
            one.requires_grad_(learns)
    links = Link(Convolution(groups, True), first[0], None), Link(GroupNorm(groups, 1e-2, True), scale[0], shift[0])
    y = chain(x[0], [*links, Link(Convolution(groups), last[0], None)])
    conv = F.conv2d(x[1], first[1].flatten(0, 1), None, 1, 1, 1, groups)
    norm = F.group_norm(F.relu(conv), groups, scale[1].flatten(), shift[1].flatten(), 1e-2)
    assume(min(conv.detach().abs().min(), norm.detach().abs().min()) > 1e-9)
    assert_alike(pairs, y, F.conv2d(F.relu(norm), last[1].flatten(0, 1), None, 1, 0, 1, groups))


@pytest.mark.parametrize("between", [nn.ReLU, nn.Identity])
def test_norms_of_vectors_are_no_part_of_a_chain(between):
    layers, x_MB = [nn.Sequential(nn.GroupNorm(2, 4), between(), nn.Linear(4, 2)) for _ in range(3)], torch.randn(3, 7, 4)
    wanted = torch.cat([layer(x) for layer, x in zip(layers, x_MB, strict=True)], 1)
    torch.testing.assert_close(fuse(layers)(side_by_side(x_MB, samples_last=True)), wanted)


def test_a_hook_between_layers_is_called():
    layers, x_MB = [nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.Identity(), nn.Conv2d(2, 2, 1))], torch.randn(1, 3, 2, 4, 4)
    layers[0][1].register_forward_hook(lambda layer, given, y: 2 * y)
    y = fuse(layers)(side_by_side(x_MB, samples_last=True))
    torch.testing.assert_close(y, layers[0](x_MB[0]), rtol=1e-4, atol=1e-5)
