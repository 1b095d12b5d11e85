"""Train the hosts of the default task fused and one by one. The ratio of the two times is the gain of fusing.

    python benchmarks/fused_training.py
    python benchmarks/fused_training.py --rounds 9 --threads 1
    python benchmarks/fused_training.py --only fused

One by one, hosts are plain modules trained by torch.optim.SGD with gradient clipping. Both ways train the same hosts on the same
data in the same order. So does a program of torch.func.vmap and grad. All print the mean validation accuracy, which must agree up
to rounding. The roof is as many FLOPs in large matrix products. Each way trains one epoch as warm-up; timings leave out that and
start-up. `--only` runs one way alone. Results: benchmarks/README.md.
"""

import argparse
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from paired_timing import in_turn, print_comparison
from roofs import Roof
from torch import nn
from vmapped import Vmapped

from esper.hosts.cnn import CNNConfig
from esper.optimisers.sgd import SGDConfig
from esper.pool.host_sampler import EpochOrder
from esper.pool.shard import Shard
from esper.seeding import stream
from esper.task.base import Task
from esper.task.digits import DigitsConfig
from esper.task.instances import Split

OPTIMISER = SGDConfig()


def order_of(host: int, epoch: int, samples: int) -> np.ndarray:
    """Return the order in which a host sees the training samples in an epoch."""
    return stream(0, "data_order", Split.TRAINING, 0, host, epoch).permutation(samples)


class Fused:
    """All hosts as one program."""

    def __init__(self, task: Task, modules: list[nn.Module]) -> None:
        self.shard = Shard(modules, [], task.data, task, torch.device("cpu"), optimiser=OPTIMISER, own_kernels=True)
        self.num_slots = len(modules[0].slots)
        self.samples, self.epoch = len(task.data.train_y), 0

    def train(self, epochs: int) -> None:
        """Train every host for some epochs."""
        for epoch in range(self.epoch, self.epoch + epochs):
            orders = np.stack([order_of(host, epoch, self.samples) for host in range(self.shard.members)])
            self.shard.train_epoch(EpochOrder(orders))
        self.epoch += epochs

    def accuracy(self) -> float:
        """Return the mean validation accuracy [pp]."""
        no_seeds = np.zeros((1, self.shard.members, self.num_slots), dtype=np.float32)
        return float(self.shard.validate(no_seeds).accuracy_VM.mean())


class OneByOne:
    """Every host as a module of its own, with an optimiser of its own."""

    def __init__(self, task: Task, modules: list[nn.Module]) -> None:
        config = OPTIMISER
        self.task, self.max_norm, self.epoch = task, config.max_norm, 0
        self.modules = [module.to(memory_format=torch.channels_last) for module in modules]
        rates = {"lr": config.learning_rate, "momentum": config.momentum, "weight_decay": config.weight_decay}
        self.optimisers = [torch.optim.SGD(module.parameters(), **rates) for module in self.modules]

    def train(self, epochs: int) -> None:
        """Train every host for some epochs."""
        data, batch = self.task.data, self.task.batch_size
        steps = len(data.train_y) // batch
        for epoch in range(self.epoch, self.epoch + epochs):
            for host, (module, optimiser) in enumerate(zip(self.modules, self.optimisers, strict=True)):
                module.train()
                order = order_of(host, epoch, len(data.train_y))[: steps * batch]
                for index in torch.from_numpy(order).view(steps, batch):
                    optimiser.zero_grad()
                    F.cross_entropy(module(data.train_x[index]), data.train_y[index]).backward()
                    nn.utils.clip_grad_norm_(module.parameters(), self.max_norm)
                    optimiser.step()
        self.epoch += epochs

    def accuracy(self) -> float:
        """Return the mean validation accuracy [pp]."""
        data = self.task.data
        with torch.no_grad():
            right = [(module.eval()(data.valid_x).argmax(1) == data.valid_y).float().mean() for module in self.modules]
        return 100 * float(torch.stack(right).mean())


class ByVmap(Vmapped):
    """All hosts as one program of torch.func."""

    epoch = 0

    def train(self, epochs: int) -> None:
        """Train every host for some epochs."""
        data, batch = self.task.data, self.task.batch_size
        steps, hosts = len(data.train_y) // batch, len(next(iter(self.params.values())))
        for epoch in range(self.epoch, self.epoch + epochs):
            orders = np.stack([order_of(host, epoch, len(data.train_y))[: steps * batch] for host in range(hosts)])
            for index_MB in torch.from_numpy(orders).view(hosts, steps, batch).unbind(1):
                self.step(data.train_x[index_MB], data.train_y[index_MB])
        self.epoch += epochs


WAYS = {"fused": Fused, "one by one": OneByOne, "vmap": partial(ByVmap, optimiser=OPTIMISER)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=WAYS, help="run one way alone")
    parser.add_argument("--hosts", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=5, help="epochs per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="intra-op threads; 0 leaves the default of torch")
    parser.add_argument("--quick", action="store_true", help="a few hosts for one epoch: checks the script, measures nothing")
    given = parser.parse_args()
    if given.quick:
        given.hosts, given.epochs, given.rounds = 2, 1, 1
    if given.threads:
        torch.set_num_threads(given.threads)
    task = DigitsConfig().build(CNNConfig())
    names = [given.only] if given.only else list(WAYS)
    ways = {name: WAYS[name](task, [task.host(0, Split.TRAINING, 0, host) for host in range(given.hosts)]) for name in names}
    trained = dict(ways)
    if not given.only:
        some = task.data.train_x[: task.batch_size]
        ways["roof"] = Roof(task.host(0, Split.TRAINING, 0, 0), some, given.hosts * len(task.data.train_y))
    for way in ways.values():
        way.train(1)  # warm-up
    print(f"{given.hosts} hosts, {given.epochs} epochs per round, {torch.get_num_threads()} intra-op threads")
    timings = in_turn({name: lambda way=way: way.train(given.epochs) for name, way in ways.items()}, given.rounds)
    print_comparison(timings, baseline=names[0])
    accuracies = ", ".join(f"{name} {way.accuracy():.2f} %" for name, way in trained.items())
    print(f"Validation accuracy after {1 + given.rounds * given.epochs} epochs: {accuracies}")


if __name__ == "__main__":
    main()
