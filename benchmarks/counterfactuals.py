"""Validates the default CNN with three live seeds under a plan of counterfactuals; the ratio to a plain validation is its price.

    python benchmarks/counterfactuals.py --hosts 4 --samples 512 --blueprint conv_light --rounds 12

Images are noise of 3 x 32 x 32: the price does not depend on what they show. Each round times a plain validation, every plan in
one forward, and leave-one-out by one forward for each setting, in turn in one process; what counts is the least processor time of
each, of one thread. Beside it stands the ratio of counted FLOPs. `--mixed` gives hosts 0, 1, 2, 3 seeds in turn, as they have in
a run: each then pays for its own. Results: benchmarks/README.md.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from esper.env.shard import Shard
from esper.hosts.cnn import CNNConfig
from esper.lifecycle.operations import roles
from esper.lifecycle.slots import SlotsConfig
from esper.lifecycle.stages import Stage, empty
from esper.measure.counterfactuals import settings
from esper.measure.plans import Plan
from esper.seeds.blueprints.registry import BLUEPRINTS
from esper.task.base import Task, TaskConfig
from esper.task.data import Data

PLANS = {"leave_one_out": (), "pairs": (Plan.pairs,), "factorial": (Plan.factorial,)}


def noise(samples: int) -> Task:
    """A task of images that show nothing."""
    x, y = torch.randn(samples, 3, 32, 32), torch.randint(10, (samples,))
    return Task(
        TaskConfig(),
        CNNConfig(base_channels=8),
        Data(train_x=x, train_y=y, valid_x=x, valid_y=y, test_x=x, test_y=y, num_classes=10),
    )


def grown(hosts: int, samples: int, blueprint: str, *, mixed: bool) -> tuple[Shard, dict[str, np.ndarray]]:
    """A shard of hosts whose slots hold seeds in holding, and the settings of each plan."""
    torch.manual_seed(0)
    task, config = noise(samples), BLUEPRINTS[blueprint]()
    modules = [CNNConfig(base_channels=8).build((3, 8, 8), 10, [False] * 3) for _ in range(hosts)]
    shard = Shard(modules, [config], task.data, task, torch.device("cpu"))
    state, generator = empty(hosts, 3), torch.Generator().manual_seed(0)
    for host in range(hosts):
        held = slice(0, host % 4 if mixed else 3)
        state.stage[host, held], state.alpha[host, held], state.blueprint[host, held] = Stage.HOLDING, 1.0, 0
        for slot in range(*held.indices(3)):
            shard.network.plant(host, slot, 0, generator)
    for bank in shard.network.banks.values():  # a newborn seed is the identity
        bank.fleet.flat.data.add_(0.1)
    shard.network.arrange(roles(state, SlotsConfig()))
    alphas = {name: settings(state, frozenset(plans)).alpha_VNS for name, plans in PLANS.items()}
    return shard, {"plain": state.alpha[None], **alphas}


def flops(act: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        act()
    return counter.get_total_flops()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--blueprint", default="conv_light")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--mixed", action="store_true", help="hosts hold 0, 1, 2, 3 seeds in turn")
    given = parser.parse_args()
    torch.set_num_threads(1)
    shard, alphas = grown(given.hosts, given.samples, given.blueprint, mixed=given.mixed)
    acts = {name: (lambda alpha=alpha: shard.validate(alpha)) for name, alpha in alphas.items()}
    acts["one by one"] = lambda: [shard.validate(alpha[None]) for alpha in alphas["leave_one_out"]]
    least = dict.fromkeys(acts, float("inf"))
    for _ in range(given.rounds):
        for name, act in acts.items():
            begun = time.process_time()
            act()
            least[name] = min(least[name], time.process_time() - begun)
    counted = {name: flops(act) for name, act in acts.items()}
    held = "0 to 3" if given.mixed else "3"
    print(f"{given.hosts} hosts, {held} seeds of {given.blueprint}, {given.samples} samples, least of {given.rounds} rounds")
    for name, seconds in least.items():
        ratio, work = seconds / least["plain"], counted[name] / counted["plain"]
        print(f"  {name:<14}{1000 * seconds:8.1f} ms   {ratio:5.2f} x plain   {work:5.2f} by FLOPs")


if __name__ == "__main__":
    main()
