"""What a thread of this machine can do at most: copy memory, and multiply matrices."""

import time
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

SIZE = 512
"""Rows and columns of the matrices of `Roof`."""


def _best(run: Callable[[], object], rounds: int = 5) -> float:
    """Return the least processor time of a call of this thread [s]."""
    taken: list[float] = []
    for _ in range(rounds):
        begun = time.thread_time()
        run()
        taken.append(time.thread_time() - begun)
    return max(min(taken), 1e-9)


def copy_bandwidth(numbers: int) -> float:
    """Return the bandwidth of copying this many floats, read and written [GB/s]."""
    torch.set_num_threads(1)
    source, target = torch.ones(numbers), torch.zeros(numbers)
    return 2 * 4 * numbers / _best(lambda: target.copy_(source)) / 1e9


def matmul_rate(size: int) -> float:
    """Return the rate of a product of two square matrices [GFLOP/s]."""
    torch.set_num_threads(1)
    a, b = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / _best(lambda: a @ b) / 1e9


class Roof:
    """As many FLOPs as training takes (forward, and twice as many backward), in large matrix products."""

    def __init__(self, host: nn.Module, samples: torch.Tensor, count: int) -> None:
        """
        Args:
            samples: a batch, to count the FLOPs of a forward pass.
            count: samples of one epoch, of all hosts.
        """
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            host(samples)
        self.products = max(1, round(3 * counter.get_total_flops() / len(samples) * count / (2 * SIZE**3)))
        self.a, self.b = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)

    def train(self, epochs: int) -> None:
        """Compute as much as this many epochs."""
        for _ in range(epochs * self.products):
            torch.mm(self.a, self.b)
