"""Train and measure hosts of CIFAR-10's size in single and in half precision. The ratio of the two times is the gain.

    python benchmarks/precision.py
    python benchmarks/precision.py --task digits --hosts 32
    python benchmarks/precision.py --device cuda:0 --precision fp16

The images are random, and every second host has a seed. All hosts are one program, on one thread. Results: benchmarks/README.md.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from gpu import images
from paired_timing import in_turn, print_comparison

from esper.cli.overrides import check
from esper.fusion.precision import Precision
from esper.lifecycle.roles import Roles
from esper.pool.devices import find_device
from esper.pool.host_sampler import HostSampler
from esper.pool.shard import Shard
from esper.task.base import Task
from esper.task.instances import Split
from esper.task.loading import load_task


class Hosts:
    """Hosts in one precision."""

    def __init__(self, task: Task, config, hosts: int, precision: Precision, device: torch.device) -> None:
        self.sampler, self.time = HostSampler(task=task, split=Split.TRAINING, num_hosts=hosts), 0
        blueprints = tuple(config.blueprint.values())
        self.shard = Shard(
            self.sampler.hosts(), blueprints, task.data.to(device), task, device, optimiser=config.optimiser, precision=precision
        )
        kind = [one.obstacle(self.shard.slots[1]) is None for one in blueprints].index(True)
        blueprint = np.full((hosts, len(self.shard.slots)), -1)
        blueprint[::2, 1] = kind + (kind + 1 < len(blueprints))  # not the cheapest
        for host in range(0, hosts, 2):
            self.shard.plant(host, 1, int(blueprint[host, 1]), (0, "seed_init", host))
        here, none = blueprint >= 0, np.zeros(blueprint.shape, np.bool_)
        self.alpha = here.astype(np.float32)
        self.shard.arrange(
            Roles(
                blueprint=blueprint,
                blend=np.zeros_like(blueprint),
                alpha=self.alpha,
                behind=none,
                open=here,
                learns=here,
                fossil=none,
            )
        )

    def train(self) -> None:
        """Train every host for an epoch."""
        self.shard.train_epoch(self.sampler.order(self.time, self.sampler.views()))
        self.time += 1

    def validate(self) -> float:
        """Return the mean validation accuracy [pp], with and without the seeds."""
        self.shard.forget()
        return float(self.shard.validate(np.stack([self.alpha, 0 * self.alpha])).accuracy_VM[0].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="cifar10_baseline")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--precision", choices=["bf16", "fp16"], default="bf16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=2560, help="training samples of an epoch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="two small epochs: checks the script, measures nothing")
    given = parser.parse_args()
    if given.quick:
        given.hosts, given.samples, given.rounds = 2, 128, 1
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        data = [f"task.root={images(Path(folder))}"] if given.task.startswith("cifar10") else []
        amount = [f"task.epoch_samples={given.samples}", f"task.valid_samples={given.samples // 4}"]
        config = check([f"task={given.task}", *data, *amount])
        task, device = load_task(config.task, config.host), find_device(given.device)
    ways = {name: Hosts(task, config, given.hosts, Precision(name), device) for name in ("fp32", given.precision)}
    for way in ways.values():
        way.train()  # warm-up
    print(f"{given.task}, {given.hosts} hosts, {given.samples} samples an epoch, {device}")
    for phase in ("train", "validate"):
        timings = in_turn({name: getattr(way, phase) for name, way in ways.items()}, given.rounds)
        print(f"\n{phase}")
        print_comparison(timings, baseline=given.precision, case=f"{phase}, {given.task}")
    accuracies = ", ".join(f"{name} {way.validate():.2f} %" for name, way in ways.items())
    print(f"Validation accuracy: {accuracies}")


if __name__ == "__main__":
    main()
