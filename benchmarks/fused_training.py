"""Trains the hosts of the default task for some epochs, fused or one by one; the ratio of the two is the gain of fusing.

    python benchmarks/fused_training.py fused --hosts 32 --epochs 5
    python benchmarks/fused_training.py single --hosts 32 --epochs 5

The single hosts are plain modules, trained by torch.optim.SGD with gradient clipping; both train the same hosts on the same data
in the same order, and both print the mean validation accuracy at the end, which must agree. Run the two in turn, several times,
and compare the printed seconds, which leave out start-up. Results: benchmarks/README.md.
"""

import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from esper.env.shard import Shard
from esper.hosts.cnn import CNNConfig
from esper.seeding import stream
from esper.task.digits import Digits, DigitsConfig
from esper.task.instances import Split


def orders(hosts: int, epoch: int, samples: int) -> np.ndarray:
    return np.stack([stream(0, "data_order", Split.TRAINING, 0, host, epoch).permutation(samples) for host in range(hosts)])


def fused(task: Digits, modules: list[nn.Module], epochs: int) -> tuple[float, float]:
    shard = Shard(modules, [], task.data, task, torch.device("cpu"))
    samples = len(task.data.train_y)
    shard.train_epoch(orders(len(modules), 0, samples), probe=False)  # warm-up: not timed, but trained, as below
    begun = time.perf_counter()
    for epoch in range(1, epochs + 1):
        shard.train_epoch(orders(len(modules), epoch, samples), probe=False)
    seconds = time.perf_counter() - begun
    nothing = np.zeros((1, len(modules), len(modules[0].slots)), dtype=np.float32)
    return seconds, float(shard.validate(nothing).accuracy_VM.mean())


def single(task: Digits, modules: list[nn.Module], epochs: int) -> tuple[float, float]:
    config, data = task.optimisers[0], task.data
    samples, batch = len(data.train_y), task.batch_size
    steps = samples // batch
    optimisers = [
        torch.optim.SGD(module.parameters(), lr=config.learning_rate, momentum=config.momentum, weight_decay=config.weight_decay)
        for module in modules
    ]
    modules = [module.to(memory_format=torch.channels_last) for module in modules]
    begun = 0.0
    for epoch in range(epochs + 1):
        if epoch == 1:
            begun = time.perf_counter()
        for module, optimiser, order in zip(modules, optimisers, orders(len(modules), epoch, samples), strict=True):
            module.train()
            for index in torch.from_numpy(order[: steps * batch]).view(steps, batch):
                optimiser.zero_grad()
                F.cross_entropy(module(data.train_x[index]), data.train_y[index]).backward()
                nn.utils.clip_grad_norm_(module.parameters(), config.max_norm)
                optimiser.step()
    seconds = time.perf_counter() - begun
    with torch.no_grad():
        right = [(module.eval()(data.valid_x).argmax(1) == data.valid_y).float().mean() for module in modules]
    return seconds, 100 * float(torch.stack(right).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("how", choices=("fused", "single"))
    parser.add_argument("--hosts", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="intra-op threads; 0 leaves torch's default")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    task = DigitsConfig().build(CNNConfig())
    modules = [task.host(0, Split.TRAINING, 0, index) for index in range(given.hosts)]
    seconds, accuracy = {"fused": fused, "single": single}[given.how](task, modules, given.epochs)
    print(
        f"{given.how}: {given.hosts} hosts x {given.epochs} epochs, {torch.get_num_threads()} threads: {seconds:.3f} s, "
        f"{given.hosts * given.epochs / seconds:.1f} host epochs/s, accuracy {accuracy:.2f} %"
    )


if __name__ == "__main__":
    main()
