"""Train and validate the hosts of shipped tasks as a run does, and one by one in plain PyTorch on all cores.

    python benchmarks/shipped_tasks.py
    python benchmarks/shipped_tasks.py --tasks digits cifar10_baseline --hosts 4 32

The plain loop trains each host with torch.optim, clips its gradient and validates it; one thread per core takes hosts in turn,
each with one intra-op thread. Both ways train the same hosts on as many samples, without augmentation, for an epoch per round
after one of warm-up. CIFAR-10 has random pixels, which take as long. Results: benchmarks/README.md.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import numpy as np
import task_cases
import torch
import torch.nn.functional as F
from paired_timing import in_turn, print_comparison
from torch import nn

from esper.cli.overrides import check
from esper.config import Config
from esper.env.growth_env import GrowthEnv
from esper.optimisers.sgd import SGDConfig
from esper.pool.local import all_cores
from esper.task.instances import Split
from esper.training.environment import build_env

TASKS = {
    "digits": [],
    "digits_mlp": [],
    "python_text": ["task.epoch_samples=256", "task.valid_samples=64"],
    "cifar10_baseline": ["task.epoch_samples=2560", "task.valid_samples=512", "task.crop_padding=0", "task.flip=false"],
}
"""Overrides of each task."""


class Plain:
    """Every host as a module with an optimiser of its own."""

    def __init__(self, env: GrowthEnv, config: Config) -> None:
        self.task, self.samples, self.config = env.task, env.sampler.samples_per_epoch, config
        self.modules = [module.to(memory_format=torch.channels_last) for module in env.sampler.hosts()]
        self.optimisers = [self._optimiser(module) for module in self.modules]
        self.pool = ThreadPoolExecutor(all_cores(), initializer=torch.set_num_threads, initargs=(1,))

    def _optimiser(self, module: nn.Module) -> torch.optim.Optimizer:
        rates = {"lr": self.config.optimiser.learning_rate, "weight_decay": self.config.optimiser.weight_decay}
        if isinstance(self.config.optimiser, SGDConfig):
            return torch.optim.SGD(module.parameters(), momentum=self.config.optimiser.momentum, **rates)
        return torch.optim.AdamW(module.parameters(), **rates)

    def epoch(self) -> None:
        """Train and validate every host."""
        list(self.pool.map(self._epoch, range(len(self.modules))))

    def _epoch(self, host: int) -> None:
        module, optimiser, data = self.modules[host].train(), self.optimisers[host], self.task.data
        for index in torch.randperm(len(data.train_y))[: self.samples].split(self.task.batch_size):
            optimiser.zero_grad()
            F.cross_entropy(self._logits(module, data.train_x[index]), data.train_y[index].flatten()).backward()
            nn.utils.clip_grad_norm_(module.parameters(), self.config.optimiser.max_norm)
            optimiser.step()
        with torch.no_grad():
            for x in data.valid_x.split(512):
                self._logits(module.eval(), x)

    def _logits(self, module: nn.Module, samples: torch.Tensor) -> torch.Tensor:
        x = self.task.data.inputs(samples)
        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return module(x).flatten(0, -2)

    def close(self) -> None:
        """Stop the threads."""
        self.pool.shutdown()


def measure(task: str, hosts: int, rounds: int, overrides: list[str]) -> None:
    """Print the rates of all ways on one task."""
    config = check([f"task={task}", *TASKS[task], *overrides, f"hosts={hosts}", "devices=[cpu]", "agent=wait"])
    with ExitStack() as stack:
        env = stack.enter_context(closing(build_env(config, split=Split.TRAINING)))
        assert isinstance(env, GrowthEnv)
        env.reset(options={"episode": 0})
        no_seeds = np.zeros((1, hosts, env.layout.num_slots), np.float32)
        plain = stack.enter_context(closing(Plain(env, config)))
        ways: dict[str, Callable[[], object]] = {
            "esper": lambda: env.pool.epoch(env.time, no_seeds, probe=False),
            "plain": plain.epoch,
        }
        for way in ways.values():
            way()  # warm-up
        timings = in_turn(ways, rounds)
        sizes = sorted({rows.stop - rows.start for _, rows in env.pool.places})
        print(f"\n{task}, {hosts} hosts, shards of {' and '.join(map(str, sizes))}, {all_cores()} cores")
        print_comparison(timings, baseline="esper", case=f"{task}, {hosts} hosts")
        for name, taken in timings.items():
            print(f"{name}: {hosts * env.sampler.samples_per_epoch / np.median([one.wall for one in taken]):,.0f} samples/s")


def main() -> None:
    for case in task_cases.cases(task_cases.parser(__doc__, TASKS, rounds=5).parse_args()):
        measure(*case)


if __name__ == "__main__":
    main()
