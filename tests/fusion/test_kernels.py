"""Kernels equal PyTorch's, whatever the shapes, and give the same bits in the process that compiles them as in later ones."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from esper.fusion import kernels

SCRIPT = """
import hashlib, sys
import numpy as np
from esper.fusion import kernels

def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)

x, weight, bias, grad, maps = (normal(4, 8, *rest) for rest in ((64, 128), (), (), (64, 128), (2,)))
out, few, moments = np.zeros_like(x), np.zeros((4, 2, 64 * 128), np.float32), np.zeros((2, 4, 128), np.float32)
changes = np.zeros_like(x), np.zeros((2, 4, 8), np.float32)
kernels.normalise_groups(x, weight, bias, out, *moments, 1e-5, True)
kernels.normalise_groups_backward(grad, x, out, weight, *moments, True, changes[0], *changes[1])
kernels.mix(x.reshape(4, 8, -1), maps.swapaxes(1, 2).copy(), bias[:, :2].copy(), few, True)
used = kernels.normalise_groups, kernels.normalise_groups_backward, kernels.mix
loaded = sum(sum(kernel.stats.cache_hits.values()) for kernel in used)
print(loaded, *(hashlib.sha256(part.tobytes()).hexdigest() for part in (out, moments, few, *changes)))
"""


def results(cache: Path) -> list[str]:
    """Return the number of kernels that were loaded, and hashes of their results, from a new process."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", SCRIPT]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()


@pytest.mark.slow
def test_compiled_and_loaded_kernels_give_the_same_bits(tmp_path: Path) -> None:
    """Unless helpers are inlined, a process that compiles links another copy of them than one that loads, rounded differently."""
    compiled, loaded = results(tmp_path), results(tmp_path)
    assert (compiled[0], loaded[0]) == ("0", "3")
    assert compiled[1:] == loaded[1:]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize(
    ("groups", "inputs", "outputs", "height", "width", "batch"),
    [
        (2, 3, 5, 7, 5, 10),
        (1, 1, 1, 1, 1, 2),
        (2, 4, 6, 3, 2, 37),
        (1, 2, 4, 2, 1, 64),
        (3, 5, 3, 2, 3, 16),
        (1, 7, 8, 4, 3, 130),
    ],
)
def test_convolutions_equal_pytorch_whatever_the_length_of_rows(dtype, size, groups, inputs, outputs, height, width, batch):
    """Rows shorter than a vector, not of whole vectors, and of several; outputs in fours, a pair and one."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((groups, inputs, height, width, batch)).astype(dtype)
    weight = rng.standard_normal((groups, outputs, inputs, size, size)).astype(dtype)
    bias = rng.standard_normal((groups, outputs)).astype(dtype)
    grad = rng.standard_normal((groups, outputs, height, width, batch)).astype(dtype)
    exact_weight = torch.from_numpy(weight).double().requires_grad_()
    images = torch.from_numpy(x).double().permute(4, 0, 1, 2, 3).flatten(1, 2)
    exact = F.conv2d(images, exact_weight.flatten(0, 1), torch.from_numpy(bias).double().flatten(), padding="same", groups=groups)
    by_group = torch.from_numpy(grad).double().permute(4, 0, 1, 2, 3).flatten(1, 2)
    exact.backward(by_group)

    rows, out, change = (groups, -1, height, width * batch), np.full_like(grad, np.nan), np.full_like(weight, np.nan)
    if size == 1:
        flat = (groups, -1, height * width * batch)
        maps, change = np.ascontiguousarray(weight[..., 0, 0]), np.ascontiguousarray(change[..., 0, 0])
        kernels.mix(x.reshape(flat), maps, bias, out.reshape(flat), True)
        kernels.mix_weight(x.reshape(flat), grad.reshape(flat), change)
    else:
        kernels.convolve(x.reshape(rows), weight, bias, out.reshape(rows), batch, True)
        kernels.convolve_weight(x.reshape(rows), grad.reshape(rows), change, batch)
    tolerance = {np.float32: 1e-4, np.float64: 1e-11}[dtype]
    wanted = exact.detach().relu().unflatten(1, (groups, outputs)).permute(1, 2, 3, 4, 0).numpy()
    assert np.allclose(out, wanted, rtol=tolerance, atol=tolerance)
    assert np.allclose(change.ravel(), exact_weight.grad.numpy().ravel(), rtol=tolerance, atol=10 * tolerance)


def test_a_nan_stays_where_it_is_and_is_not_rectified():
    x = np.zeros((1, 1, 3, 3 * 64), np.float32)
    x[0, 0, 2, 0] = np.nan
    out = np.empty_like(x)
    kernels.convolve(x, np.ones((1, 1, 1, 3, 3), np.float32), np.zeros((1, 1), np.float32), out, 64, True)
    found = np.isnan(out[0, 0].reshape(3, 3, 64))
    assert np.array_equal(found[..., 0], [[False, False, False], [True, True, False], [True, True, False]])
    assert not found[..., 1:].any()


def test_an_infinity_reaches_no_weight_of_another_channel():
    x = np.random.default_rng(0).standard_normal((1, 2, 3, 3 * 3)).astype(np.float32)
    x[0, 1, 0, 0] = -np.inf  # a vector beyond the last row of channel 0 reaches it
    change = np.empty((1, 2, 2, 3, 3), np.float32)
    kernels.convolve_weight(x, np.ones_like(x), change, 3)
    assert np.isfinite(change[:, :, 0]).all()
    assert not np.isfinite(change[:, :, 1]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_pass_a_relu_exactly_where_its_results_are_positive(dtype):
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (40, 2051)).astype(dtype) / 3
    weight, mean, var = rng.normal(1, 0.2, 40).astype(dtype), np.empty(40), np.empty(40)
    centre, spread = x.mean(1), x.std(1)
    bias = ((centre - 1 / 3) / np.sqrt(spread**2 + 1e-5) * weight).astype(dtype)  # a seventh of the results is 0 but for rounding
    out, grad = np.empty_like(x), np.empty_like(x)
    kernels.normalise_channels(x, weight, bias, out, mean, var, 1e-5, True)
    assert (np.abs(out) < 1e-4).sum(1).min() > 200
    assert 0 < ((out > 0) & (out < 1e-4)).any(1).sum() < 40
    passed, product = np.empty(40, dtype), np.empty(40, dtype)
    kernels.normalise_channels_backward(np.ones_like(x), x, weight, bias, mean, var, 1e-5, True, grad, product, passed)
    assert passed.tolist() == (out > 0).sum(1).tolist()
    scaled, slope = (x - mean[:, None]) / np.sqrt(var + 1e-5)[:, None], (out > 0).astype(float)
    apart = slope - slope.mean(1, keepdims=True) - scaled * (slope * scaled).mean(1, keepdims=True)
    assert np.allclose(grad, apart * (weight / np.sqrt(var + 1e-5))[:, None], atol=1e-4)


@pytest.mark.parametrize("length", [4096, 4097, 3 * 4096 + 5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_moments_are_those_of_the_whole_channel(dtype, length):
    x = (np.arange(length) / 1000 + np.random.default_rng(0).normal(size=(2, length))).astype(dtype)
    out, mean, var = np.empty_like(x), np.empty(2), np.empty(2)
    kernels.normalise_channels(x, np.ones(2, dtype), np.zeros(2, dtype), out, mean, var, 0.0, False)
    assert np.allclose(mean, x.mean(1, dtype=np.float64), rtol=1e-5)
    assert np.allclose(var, x.var(1, dtype=np.float64), rtol=1e-5)


def test_no_gradient_passes_a_relu_where_its_results_are_zero():
    x, zero = np.random.default_rng(0).normal(size=(2, 50)).astype(np.float32), np.zeros(2, np.float32)
    x[1] = 0
    out, grad, product, passed = np.empty_like(x), np.empty_like(x), np.empty(2, np.float32), np.empty(2, np.float32)
    mean, var, weight = np.empty(2), np.empty(2), np.array([0, 1], np.float32)
    kernels.normalise_channels(x, weight, zero, out, mean, var, 1e-5, True)
    assert not out.any()
    kernels.normalise_channels_backward(np.ones_like(x), x, weight, zero, mean, var, 1e-5, True, grad, product, passed)
    assert not passed.any()
    assert not grad.any()
