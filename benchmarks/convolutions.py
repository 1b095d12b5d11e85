"""Compute one convolution of several hosts, forward and backward, with Esper's own kernels and with PyTorch's, in turn.

    OMP_NUM_THREADS=1 python benchmarks/convolutions.py
    OMP_NUM_THREADS=1 python benchmarks/convolutions.py --rounds 50

Sizes are those of the blocks of hosts of `digits`, `mnist5k` and CIFAR-10, with batches of 128. PyTorch convolves all hosts as
groups, in channels-last memory. A round of a case is several passes. Results: benchmarks/README.md.
"""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from paired_timing import in_turn, print_comparison

from esper.fusion import kernels

CASES = ((16, 1, 2, 8), (16, 2, 4, 4), (16, 4, 8, 2), (8, 4, 8, 14), (1, 8, 16, 16), (1, 16, 32, 8))
"""Hosts, input channels, output channels, and rows and columns of the images."""
PASSES = 10
"""Forward and backward passes in a round."""


class Own:
    """The convolution in batch-last memory."""

    def __init__(self, hosts: int, inputs: int, outputs: int, side: int, batch: int) -> None:
        rng, self.batch = np.random.default_rng(0), batch

        def random(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(np.float32)

        self.x, self.grad = random(hosts, inputs, side, side * batch), random(hosts, outputs, side, side * batch)
        self.weight, self.turned = random(hosts, outputs, inputs, 3, 3), random(hosts, inputs, outputs, 3, 3)
        self.bias, self.zero = random(hosts, outputs), np.zeros((hosts, inputs), np.float32)
        self.out, self.grad_x, self.change = np.empty_like(self.grad), np.empty_like(self.x), np.empty_like(self.weight)

    def run(self) -> None:
        """Compute the outputs, and the gradients of the weights and of the inputs."""
        for _ in range(PASSES):
            kernels.convolve(self.x, self.weight, self.bias, self.out, self.batch, False)
            kernels.convolve_weight(self.x, self.grad, self.change, self.batch)
            kernels.convolve(self.grad, self.turned, self.zero, self.grad_x, self.batch, False)


class Torch:
    """The convolution in channels-last memory."""

    def __init__(self, hosts: int, inputs: int, outputs: int, side: int, batch: int) -> None:
        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape).contiguous(memory_format=torch.channels_last)

        self.groups, self.x = hosts, random(batch, hosts * inputs, side, side).requires_grad_()
        self.weight, self.bias = random(hosts * outputs, inputs, 3, 3).requires_grad_(), torch.randn(hosts * outputs)
        self.grad = random(batch, hosts * outputs, side, side)

    def run(self) -> None:
        """Compute the outputs, and the gradients of the weights and of the inputs."""
        for _ in range(PASSES):
            y = F.conv2d(self.x, self.weight, self.bias, padding=1, groups=self.groups)
            torch.autograd.grad(y, (self.x, self.weight), self.grad)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="a small batch and one round: checks the script, measures nothing")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for hosts, inputs, outputs, side in CASES:
        batch = 8 if args.quick else 128
        own, pytorch = (way(hosts, inputs, outputs, side, batch) for way in (Own, Torch))
        ways = {"own": own.run, "torch": pytorch.run}
        in_turn(ways, 1)  # warm-up
        timings = in_turn(ways, 1 if args.quick else args.rounds)
        case = f"{hosts} hosts, {inputs} to {outputs} channels, {side} x {side}"
        print(f"\n{case}, {PASSES} passes")
        print_comparison(timings, baseline="own", case=case)
        flops = 3 * 2 * 9 * hosts * inputs * outputs * side**2 * batch * PASSES
        print(f"own: {flops / np.median([one.process for one in timings['own']]) / 1e9:.0f} GFLOP/s")


if __name__ == "__main__":
    main()
