"""Compute the gradients of fused hosts with and without torch.compile.

    python benchmarks/compiled.py
    python benchmarks/compiled.py --device cuda:0 --members 64

The program is that of a shard without seeds: forward pass, loss and backward pass of one batch. On a CPU, compiling needs a C++
compiler. With --quick the program is only traced. Results: benchmarks/README.md.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from gpu import images
from paired_timing import in_turn, print_comparison
from torch import Tensor

from esper.cli.overrides import check
from esper.fusion.fuse import Fleet
from esper.fusion.layout import side_by_side
from esper.growth.loss import LastSegment
from esper.pool.devices import compute_exactly
from esper.task.instances import Split
from esper.task.loading import load_task

TASKS = {"digits": 16, "digits_mlp": 16, "python_text": 8, "cifar10_baseline": 2}
"""Members of a shard by task."""


class Program:
    """Hosts as one program, with or without compilation."""

    def __init__(self, task_name: str, members: int, device: torch.device, overrides: list[str]) -> None:
        config = check([f"task={task_name}", *overrides])
        task = load_task(config.task, config.host)
        self.fleet, self.members = Fleet([task.host(0, Split.TRAINING, 0, host) for host in range(members)], device), members
        self.fleet.flat.requires_grad_(True)
        index_MB = torch.stack([torch.randperm(len(task.data.train_y))[: task.batch_size] for _ in range(members)])
        samples = task.data.inputs(task.data.train_x[index_MB.flatten()]).unflatten(0, index_MB.shape)
        self.x, self.y_MB = side_by_side(samples).to(device), task.data.train_y[index_MB].to(device)

    def loss(self) -> Tensor:
        """Return the sum of the mean losses of all members."""
        x, module = self.x, self.fleet.bind().train()
        *segments, last = module.get_submodule("segments").children()
        for segment in segments:
            x = segment(x)
        return LastSegment(last, x, self.members).losses(self.y_MB).sum()

    def run(self, loss: Callable[[], Tensor]) -> float:
        """Compute all gradients, and return the loss."""
        self.fleet.flat.grad = None
        value = loss()
        value.backward()
        return value.item()


def measure(task: str, members: int, given: argparse.Namespace, overrides: list[str]) -> None:
    """Print the times of one task."""
    program = Program(task, members, torch.device(given.device), overrides)
    compiled = torch.compile(program.loss, dynamic=False, backend="eager" if given.quick else "inductor")
    ways: dict[str, Callable[[], object]] = {
        "eager": lambda: program.run(program.loss),
        "compiled": lambda: program.run(compiled),
    }
    begun = time.perf_counter()
    losses = [float(way()) for way in ways.values() for _ in range(2)]  # pyright: ignore[reportArgumentType]
    print(f"\n{task}, {members} members: warm-up {time.perf_counter() - begun:.1f} s, losses {losses[1]:.6f} and {losses[3]:.6f}")
    print_comparison(in_turn(ways, given.rounds), baseline="compiled", case=task)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--members", type=int, default=0, help="hosts per shard; 0 takes those of a run on a CPU")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="two hosts, without a compiler: checks the script, measures nothing")
    given = parser.parse_args()
    if given.quick:
        given.members, given.rounds = 2, 1
    torch.set_num_threads(1)
    compute_exactly([torch.device(given.device)])
    with TemporaryDirectory() as folder:
        for task, members in TASKS.items():
            if given.quick and task == "digits_mlp":  # python_text has linear layers, too
                continue
            data = [f"task.root={images(Path(folder))}"] if task.startswith("cifar10") else []
            measure(task, given.members or members, given, data)


if __name__ == "__main__":
    main()
