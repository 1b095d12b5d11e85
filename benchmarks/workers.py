"""One population in several processes: the same hosts in one process and in workers, and what a message costs.

    python benchmarks/workers.py
    python benchmarks/workers.py --cluster ray --hosts 64 --epochs 40 --sizes 1 2 4 8

Both ways train the same hosts for one epoch in turn, on as many cores. Then empty messages go to 1, 2, 4, ... workers: the slope
is what one more worker costs the controller per step. The last table is a model, not a measurement: the efficiency of 8 to 512
workers with a GPU each, from the measured costs of a worker and of a host, for hosts that take longer or shorter. Results:
benchmarks/README.md.
"""

import argparse
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from env_overhead import BLUEPRINTS, step
from paired_timing import claim, in_turn, timed

from esper.env.base import EnvParts
from esper.env.growth_env import GrowthConfig, GrowthEnv
from esper.governor.watchdog import WatchdogConfig
from esper.hosts.cnn import CNNConfig
from esper.lifecycle.slots import OneSeedConfig
from esper.measure.costs import Meter
from esper.pool.base import HostPool, PoolParts
from esper.pool.cluster import ClusterConfig, LocalConfig
from esper.pool.devices import DeviceConfig
from esper.pool.local import limit_cores
from esper.pool.process_cluster import ProcessesConfig
from esper.pool.ray_cluster import RayClusterConfig
from esper.pool.remote import RemotePool, WorkerGroup
from esper.pool.worker import Call, Message, Reply
from esper.reward.modes import ShapedConfig
from esper.task.digits import DigitsConfig

GPUS = (8, 32, 128, 512)
HOSTS_PER_GPU = 64
EPOCHS_OF = (1.0, 10.0, 60.0)
"""Times of an epoch of all hosts of a GPU [s]."""


CLUSTERS = {"processes": ProcessesConfig, "ray": RayClusterConfig}


class Counter:
    """Counts the bytes that a group of workers receives and sends."""

    def __init__(self, group: WorkerGroup) -> None:
        self.group, self.sent, self.received = group, 0, 0
        self._encode, self._receive = group.encode, group.receive
        group.encode, group.receive = self.encode, self.receive

    def encode(self, call: Call) -> Message:
        message = self._encode(call)
        self.sent += len(message.body)
        return message

    def receive(self, ticket: object) -> Reply:
        reply = self._receive(ticket)
        self.received += len(pickle.dumps(reply))
        return reply


@dataclass(kw_only=True)
class Started(ClusterConfig):
    """Workers of a group."""

    group: WorkerGroup

    def build(self, parts: PoolParts, meter: Meter | None = None) -> HostPool:
        return RemotePool(parts, meter, self.group, key=self.group.join(), replacements=0)


def make(num_hosts: int, epochs: int, cluster: ClusterConfig) -> GrowthEnv:
    """Build an environment whose episode does not end within the benchmark."""
    parts = EnvParts(
        task=DigitsConfig(),
        host=CNNConfig(),
        slots=OneSeedConfig(),
        blueprints=BLUEPRINTS,
        reward=ShapedConfig(),
        governor=WatchdogConfig(),
        devices={"cpu": DeviceConfig()},
        cluster=cluster,
        gamma=0.99,
        num_hosts=num_hosts,
        num_steps=10 * epochs + 10,
    )
    env = GrowthConfig().build(parts)
    env.reset()
    for _ in range(2):
        step(env)
    return env


def compare(cluster: str, num_hosts: int, epochs: int, workers: int) -> None:
    """Time an epoch in one process and in workers, with one core per worker, and print the bytes of a step."""
    limit_cores(workers)
    group = CLUSTERS[cluster](workers=workers).start_workers()
    envs = {"one process": make(num_hosts, epochs, LocalConfig()), "workers": make(num_hosts, epochs, Started(group=group))}
    counter = Counter(group)
    timings = in_turn({name: partial(step, env) for name, env in envs.items()}, epochs)
    steps = epochs * workers
    sent, received = counter.sent / steps, counter.received / steps
    apart = np.abs(envs["one process"].loss_N - envs["workers"].loss_N).max()
    for env in envs.values():
        env.close()
    of_each = "1 core or worker" if workers == 1 else f"{workers} cores or workers"
    print(f"{num_hosts} hosts, {of_each}; the largest difference in loss is {apart:.1g}")
    each = np.array([[one.wall for one in timings[name]] for name in ("one process", "workers")])
    claim("one process / workers, wall", each[0] / each[1])
    ratio, whole = np.median(each[0] / each[1]), each[0].sum() / each[1].sum()
    print(f"all {epochs} rounds: one process / workers, median {ratio:.2f}, sums {whole:.2f}")
    print(f"a worker receives {sent:,.0f} bytes per step and sends {received:,.0f}, for {num_hosts // workers} hosts")
    limit_cores(None)


def round_trips(cluster: str, sizes: Sequence[int], repetitions: int) -> float:
    """Time empty messages to crews of these sizes, and return what a further worker costs [s]."""
    seconds = list[float]()
    for size in sizes:
        env = make(size, 1, Started(group=CLUSTERS[cluster](workers=size).start_workers()))
        taken = [timed(env.pool.machines).wall for _ in range(repetitions)]
        seconds.append(float(np.median(taken)))
        claim(f"message to {size} workers and back [ms]", [1e3 * one for one in taken])
        print(f"an empty message to {size} workers and back: {1e3 * seconds[-1]:.2f} ms")
        env.close()
    return max(0.0, float(np.polyfit(sizes, seconds, 1)[0])) if len(sizes) > 1 else seconds[0] / sizes[0]


def of_a_host(num_hosts: int, repetitions: int) -> float:
    """Return what a host costs the controller's process per step besides training and the policy [s]."""
    env = make(num_hosts, repetitions, LocalConfig())
    known = env.pool.epoch(env.time, np.zeros((1, num_hosts, env.layout.num_slots), np.float32), probe=False)
    env.pool.epoch = lambda *_, **__: known
    taken = np.array([timed(partial(step, env)).wall for _ in range(repetitions)]) / num_hosts
    env.close()
    claim("environment per host and step [us]", 1e6 * taken)
    print(f"the environment takes {1e6 * np.median(taken):.0f} us per host and step besides training and measuring")
    return float(np.median(taken))


def model(worker: float, host: float) -> None:
    """Print the efficiency of many workers: the time of training over the time of a step."""
    print(
        f"\nmodel: {HOSTS_PER_GPU} hosts per worker, {1e3 * worker:.2f} ms per worker and {1e6 * host:.0f} us per host and step"
    )
    print("| epoch of all hosts of a GPU | " + " | ".join(f"{gpus} GPUs" for gpus in GPUS) + " |")
    print("|---" * (len(GPUS) + 1) + "|")
    for epoch in EPOCHS_OF:
        shares = [epoch / (epoch + gpus * (worker + HOSTS_PER_GPU * host)) for gpus in GPUS]
        print(f"| {epoch:g} s | " + " | ".join(f"{100 * share:.0f} %" for share in shares) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", choices=CLUSTERS, default="processes")
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=40, help="rounds of one epoch each")
    parser.add_argument("--workers", type=int, default=2, help="workers, and cores of the one process")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[1, 2, 4, 8], help="numbers of workers that receive empty messages"
    )
    parser.add_argument("--quick", action="store_true", help="a few hosts and epochs: checks the script, measures nothing")
    given = parser.parse_args()
    repetitions = 100
    if given.quick:
        given.hosts, given.epochs, given.workers, given.sizes, repetitions = 2, 2, 1, [1], 3
    torch.set_num_threads(1)
    begun = time.perf_counter()
    compare(given.cluster, given.hosts, given.epochs, given.workers)
    worker = round_trips(given.cluster, given.sizes, repetitions)
    model(worker, of_a_host(4 * given.hosts, repetitions))
    print(f"took {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
