"""Train and validate hosts with seeds that learn, and the same hosts without, in turn: how much time does a seed take per FLOP?

    OMP_NUM_THREADS=1 python benchmarks/growing_seeds.py
    OMP_NUM_THREADS=1 python benchmarks/growing_seeds.py --tasks digits --hosts 64 --rounds 20

Every host holds a learning seed in each of its first two slots, of all blueprints in turn. Where the ratio of times is that of
FLOPs, a FLOP of a seed takes as long as one of its host. CIFAR-10 has random pixels, which take as long. Results:
benchmarks/README.md.
"""

from collections.abc import Callable
from contextlib import ExitStack, closing

import numpy as np
import task_cases
from own_kernels import TASKS as CONVOLUTIONAL
from own_kernels import plant
from paired_timing import claim, in_turn, print_comparison

from esper.cli.overrides import check
from esper.env.growth_env import GrowthEnv
from esper.lifecycle.roles import Roles
from esper.task.instances import Split
from esper.training.environment import build_env

TASKS = {**CONVOLUTIONAL, "digits_mlp": [], "python_text": ["task.epoch_samples=256", "task.valid_samples=64"]}
"""Overrides of each task."""
SLOTS = (0, 1)


def flops(env: GrowthEnv, roles: Roles, alpha_VNS: np.ndarray) -> float:
    """Return the FLOPs of training and validating all hosts for an epoch."""
    data, config = env.task.data, env.task.config
    trained = config.epoch_samples // config.batch_size * config.batch_size
    training_N = trained * env.costs.flops.training(roles, env.slots.incubation)
    measuring_N = len(data.valid_y) * env.costs.flops.measuring(roles, env.slots.incubation, alpha_VNS)
    return float((training_N + measuring_N).sum())


def measure(task: str, hosts: int, rounds: int, overrides: list[str]) -> None:
    """Print what seeds cost in one task."""
    case = f"{task}, {hosts} hosts"
    print(case)
    ways, counted = dict[str, Callable[[], object]](), dict[str, float]()
    with ExitStack() as stack:
        for name, slots in (("with seeds", SLOTS), ("without", ())):
            given = [f"task={task}", *TASKS[task], *overrides, f"hosts={hosts}", "devices=[cpu]", "agent=wait"]
            env = stack.enter_context(closing(build_env(check(given), split=Split.TRAINING)))
            assert isinstance(env, GrowthEnv)
            env.reset(options={"episode": 0})
            roles = plant(env, dict.fromkeys(range(hosts), slots))
            alpha_VNS = roles.alpha[None]
            ways[name] = lambda env=env, alpha_VNS=alpha_VNS: env.pool.epoch(env.time, alpha_VNS, probe=False)
            counted[name] = flops(env, roles, alpha_VNS)
        for way in [*ways.values()] * 2:
            way()  # warm-up
        timings = in_turn(ways, rounds)
    print_comparison(timings, baseline="without", case=case)
    more = counted["with seeds"] / counted["without"]
    shares = [one.process / other.process / more for one, other in zip(timings["with seeds"], timings["without"], strict=True)]
    spread = f"{np.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})"
    print(f"FLOPs with seeds / without: {more:.2f}; times over FLOPs {spread}")
    claim(f"time of seeds over their FLOPs, process, {case}", shares)


def main() -> None:
    for case in task_cases.cases(task_cases.parser(__doc__, TASKS, rounds=9).parse_args()):
        measure(*case)


if __name__ == "__main__":
    main()
