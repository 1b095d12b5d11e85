"""Kernels give the same bits in the process that compiles them as in the ones that load them."""

import os
import subprocess
import sys
from pathlib import Path

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


def test_compiled_and_loaded_kernels_give_the_same_bits(tmp_path: Path) -> None:
    """Unless helpers are inlined, a process that compiles links another copy of them than one that loads, rounded differently."""
    compiled, loaded = results(tmp_path), results(tmp_path)
    assert (compiled[0], loaded[0]) == ("0", "3")
    assert compiled[1:] == loaded[1:]
