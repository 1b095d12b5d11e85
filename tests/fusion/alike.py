"""Random images and parameters, and comparisons with PyTorch, for tests of the kernels."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import settings
from hypothesis import strategies as st

from esper.fusion.batch_last import batch_last

few = settings(max_examples=30, deadline=None)
sizes = st.tuples(*[st.integers(1, 5)] * 3, *[st.integers(1, 9)] * 2, st.integers(1, 40))
"""Groups, inputs and outputs of a group, height, width, batch."""
each_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])


def images(batch, channels, height, width, dtype):
    """Return random images in batch-last memory, and the same for PyTorch."""
    x = batch_last(torch.randn(batch, channels, height, width, dtype=dtype))
    return x.requires_grad_(), x.detach().contiguous().requires_grad_()


def vectors(dtype, *shape):
    """Return random parameters twice."""
    one = torch.randn(shape, dtype=dtype)
    return one.clone().requires_grad_(), one.clone().requires_grad_()


def assert_alike(pairs, y, before, *, rectify=False):
    """Check results and gradients at pairs of inputs; `rectify` if a ReLU follows what PyTorch has computed before."""
    wanted = F.relu(before) if rectify else before
    exact = y.dtype is torch.float64
    close = {"rtol": 1e-9, "atol": 1e-9} if exact else {"rtol": 1e-3, "atol": 1e-3 * max(1.0, float(wanted.detach().abs().max()))}
    torch.testing.assert_close(y, wanted, **close)
    pull = torch.randn_like(wanted)
    if rectify:
        pull = pull * (before.detach().abs() > 1e-3)  # elsewhere, rounding decides about the gradient
    mine, theirs = (
        torch.autograd.grad(out, inputs, pull) for out, inputs in zip((y, wanted), zip(*pairs, strict=True), strict=True)
    )
    for one, other in zip(mine, theirs, strict=True):
        scale = max(1.0, float(other.abs().max()))
        torch.testing.assert_close(one, other, rtol=close["rtol"], atol=close["atol"] * scale)
