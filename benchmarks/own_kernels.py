"""Train and validate convolutional hosts on a CPU with Esper's own kernels and with PyTorch's, in turn.

    OMP_NUM_THREADS=1 python benchmarks/own_kernels.py
    OMP_NUM_THREADS=1 python benchmarks/own_kernels.py --tasks digits --hosts 64 --rounds 20

Both train the same hosts for an epoch per round, with the shards of a normal run, after two epochs of warm-up. With --seeds, half
of the hosts hold a seed that learns. CIFAR-10 has random pixels, which take as long. Results: benchmarks/README.md.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing

import numpy as np
import task_cases
from paired_timing import in_turn, print_comparison

from esper.cli.overrides import check
from esper.env.growth_env import GrowthEnv
from esper.lifecycle.roles import Blend, Roles
from esper.task.instances import Split
from esper.training.environment import build_env

TASKS = {
    "digits": [],
    "mnist5k": ["task.epoch_samples=1024"],
    "cifar10_baseline": ["task.epoch_samples=1280", "task.valid_samples=256", "task.crop_padding=0", "task.flip=false"],
}
"""Overrides of each task."""


def plant(env: GrowthEnv, slots: Mapping[int, Sequence[int]]) -> Roles:
    """Plant seeds of all blueprints in turn, which learn, into slots of hosts, and return the roles."""
    shape = (env.num_envs, env.layout.num_slots)
    roles = Roles(
        blueprint=np.full(shape, -1),
        blend=np.full(shape, int(Blend.ADD)),
        alpha=np.zeros(shape, np.float32),
        behind=np.zeros(shape, np.bool_),
        open=np.zeros(shape, np.bool_),
        learns=np.zeros(shape, np.bool_),
        fossil=np.zeros(shape, np.bool_),
    )
    for index, place in enumerate((host, slot) for host in slots for slot in slots[host]):
        kind = index % len(env.layout.blueprint_names)
        env.pool.plant(*place, kind, (0, "benchmark", *place))
        roles.blueprint[place], roles.alpha[place], roles.open[place], roles.learns[place] = kind, 1.0, True, True
    env.pool.arrange(roles)
    return roles


def measure(task: str, hosts: int, rounds: int, overrides: list[str], *, seeds: bool) -> None:
    """Print the ratio of both ways on one task."""
    case = f"{task}, {hosts} hosts{', with seeds' * seeds}"
    print(case)
    ways = dict[str, Callable[[], object]]()
    with ExitStack() as stack:
        for name, own in (("own kernels", "true"), ("torch", "false")):
            given = [f"task={task}", *TASKS[task], *overrides, f"hosts={hosts}", "devices=[cpu]", "agent=wait"]
            config = check([*given, f"devices.cpu.own_kernels={own}"])
            env = stack.enter_context(closing(build_env(config, split=Split.TRAINING)))
            assert isinstance(env, GrowthEnv)
            env.reset(options={"episode": 0})
            if seeds:
                plant(env, dict.fromkeys(range(0, hosts, 2), (1,)))
            alpha_VNS = np.zeros((1, hosts, env.layout.num_slots), np.float32)
            ways[name] = lambda env=env, alpha_VNS=alpha_VNS: env.pool.epoch(env.time, alpha_VNS, probe=False)
            print(f"{name}: shards of {sorted({rows.stop - rows.start for _, rows in env.pool.places})}")
        for way in [*ways.values()] * 2:
            way()  # warm-up
        timings = in_turn(ways, rounds)
        print_comparison(timings, baseline="own kernels", case=case)


def main() -> None:
    parser = task_cases.parser(__doc__, TASKS, rounds=9)
    parser.add_argument("--seeds", action="store_true", help="half of the hosts hold a seed that learns")
    given = parser.parse_args()
    for case in task_cases.cases(given):
        measure(*case, seeds=given.seeds)


if __name__ == "__main__":
    main()
