"""Validate CNNs with three live seeds under each plan of counterfactuals. The ratio to a plain validation is the price.

    python benchmarks/counterfactuals.py --hosts 4 --samples 512 --blueprint conv_light --rounds 12

Images are noise of 3 x 32 x 32: the price does not depend on their content. Each round times a plain validation, every plan in
one forward pass, and leave-one-out with one forward pass per setting, in turn in one process on one thread. The printed ratio
is that of the smallest process times; beside it stands the median of the ratios of all rounds with its range, and the ratio of
counted FLOPs. `--mixed` gives hosts 0, 1, 2, 3 seeds in turn, as in a run, where each host only adds its own settings. Results:
benchmarks/README.md.
"""

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from paired_timing import claim, in_turn, ratio
from torch.utils.flop_counter import FlopCounterMode

from esper.hosts.cnn import CNNConfig
from esper.lifecycle.operations import roles
from esper.lifecycle.slots import SlotsConfig
from esper.lifecycle.stages import Stage, empty
from esper.measure.counterfactuals import settings
from esper.measure.plans import Plan
from esper.optimisers.sgd import SGDConfig
from esper.pool.shard import Shard
from esper.seeds.blueprints.registry import BLUEPRINTS
from esper.task.base import Task, TaskConfig
from esper.task.data import Data

PLANS = {"leave_one_out": (), "pairs": (Plan.pairs,), "factorial": (Plan.factorial,)}


def noise(samples: int) -> Task:
    """Return a task whose images are noise."""
    x, y = torch.randn(samples, 3, 32, 32), torch.randint(10, (samples,))
    return Task(
        TaskConfig(),
        CNNConfig(base_channels=8),
        Data(train_x=x, train_y=y, valid_x=x, valid_y=y, test_x=x, test_y=y, num_classes=10),
    )


def grown(hosts: int, samples: int, blueprint: str, *, mixed: bool) -> tuple[Shard, dict[str, np.ndarray]]:
    """Return a shard of hosts whose slots hold seeds in holding, and the alphas of each plan."""
    torch.manual_seed(0)
    task, config = noise(samples), BLUEPRINTS[blueprint]()
    modules = [CNNConfig(base_channels=8).build((3, 8, 8), 10, [False] * 3) for _ in range(hosts)]
    shard = Shard(modules, [config], task.data, task, torch.device("cpu"), optimiser=SGDConfig())
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
    """Return the FLOPs of a call, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        act()
    return counter.get_total_flops()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--blueprint", default="conv_light")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--mixed", action="store_true", help="give hosts 0, 1, 2, 3 seeds in turn")
    parser.add_argument("--quick", action="store_true", help="one host and few samples: checks the script, measures nothing")
    given = parser.parse_args()
    if given.quick:
        given.hosts, given.samples, given.rounds = 1, 16, 1
    torch.set_num_threads(1)
    shard, alphas = grown(given.hosts, given.samples, given.blueprint, mixed=given.mixed)

    def measure(alpha_VMS: npt.NDArray[np.float32]) -> None:
        shard.forget()
        shard.validate(alpha_VMS)

    acts = {name: partial(measure, alpha) for name, alpha in alphas.items()}
    acts["one by one"] = lambda: [measure(alpha[None]) for alpha in alphas["leave_one_out"]]
    timings = in_turn(acts, given.rounds)
    process = {name: [one.process for one in some] for name, some in timings.items()}
    counted = {name: flops(act) for name, act in acts.items()}
    held = "0 to 3" if given.mixed else "3"
    print(f"{given.hosts} hosts, {held} seeds of {given.blueprint}, {given.samples} samples, {given.rounds} rounds")
    print("  smallest process time, ratio to plain; median ratio (range); ratio of FLOPs")
    for name, seconds in process.items():
        claim(f"{name} / plain, process", np.array(seconds) / np.array(process["plain"]))
        smallest, work = min(seconds) / min(process["plain"]), counted[name] / counted["plain"]
        print(f"  {name:<14}{1000 * min(seconds):8.1f} ms  {smallest:5.2f}   {ratio(seconds, process['plain'])}   {work:5.2f}")


if __name__ == "__main__":
    main()
