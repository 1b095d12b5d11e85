"""All figures worth knowing of a GPU, in a call of at most eight minutes: roofs, tests, waits, memory, precision, throughput.

    python benchmarks/gpu.py --out FOLDER
    python benchmarks/gpu.py --out FOLDER --only roofs digits
    python benchmarks/gpu.py --quick                          # checks the script, on the CPU where there is no GPU

Hosts train in their environment, with a seed in every second host; a row is one warm-up episode and one timed episode. What does
not fit into the minutes is reported as left out: a row is not begun if less time is left than the last one took. FOLDER gets
gpu.json and gpu.md. Results: benchmarks/README.md. Needs Esper's dependencies and pytest; without an installed Esper, set
PYTHONPATH=. first.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from esper.agent.scripted.schedule import ActionConfig, ActionLists
from esper.cli.overrides import check
from esper.env.base import Environment, EpisodeRecord
from esper.fusion.convolution import by_matrices, contained
from esper.pool.devices import compute_exactly
from esper.task.cifar import RECORDS
from esper.task.instances import Split
from esper.training.environment import build_env
from esper.training.play import play

Row = dict[str, Any]
ROOT = Path(__file__).parents[1]
STEPS = 9
"""Host epochs of an episode."""
WORLDS = {
    "digits": (["task=digits"], "conv_light", 1, (1, 8, 64, 512)),
    "cifar": (["task=cifar10_baseline", "task.epoch_samples=2560", "task.valid_samples=1000"], "conv_light", 1, (1, 8, 64)),
    "text": (["task=python_text", "task.epoch_samples=512", "task.valid_samples=64"], "lora", 1, (1, 8, 32)),
}
"""Overrides, blueprint and slot of the seeds, and numbers of hosts, by the name of the section."""


TESTS = 150
"""Most seconds for tests/gpu."""
PYTEST = [sys.executable, "-m", "pytest", "tests/gpu", "-o", "addopts=--import-mode=importlib", "-v", "-rfEs", "--tb=short"]
PYTEST += ["-n", str(max(1, min(15, (os.cpu_count() or 2) - 1))), "--dist", "worksteal"] if find_spec("xdist") else []
"""Names each test that ends, so that a record shows which one did not."""


class Clock:
    """The device's clock, and what is left of the minutes."""

    def __init__(self, device: torch.device, minutes: float, *, quick: bool) -> None:
        self.device, self.quick = device, quick
        self._end, self._last = time.perf_counter() + 60 * minutes, 20.0

    def left(self) -> float:
        """Return the seconds that are left."""
        return self._end - time.perf_counter()

    def row(self, about: Row, measure: Callable[[], Row]) -> Row:
        """Return a row of figures, or say that there is no time for one: the last one took longer than what is left."""
        begun = time.perf_counter()
        if not self.quick and self.left() < 1.2 * self._last:
            return about | {"samples_per_second": "left out: no time"}
        found = about | measure()
        self._last = time.perf_counter() - begun
        return found

    def seconds(self, work: Callable[[], object]) -> float:
        """Run once, and return the wall time until the device is done [s]."""
        self.wait()
        begun = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - begun

    def wait(self) -> None:
        """Wait until the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def hardware(device: torch.device) -> Row:
    """Return what the figures depend on."""
    found = {"date": str(date.today()), "torch": torch.__version__, "python": platform.python_version(), "cores": os.cpu_count()}
    if device.type != "cuda":
        return found | {"device": platform.machine(), "cuda": None}
    seen = torch.cuda.get_device_properties(device)
    return found | {"device": seen.name, "memory_gib": round(seen.total_memory / 2**30, 1), "cuda": torch.version.cuda}


def run_tests(clock: Clock, quick: bool) -> Iterator[Row]:
    """Run tests/gpu in a process of its own."""
    if quick:
        yield {"tests": "left out: --quick"}
        return
    limit = min(TESTS, max(10.0, clock.left()))
    # In a group of its own, so that no worker of pytest goes on beside the next sections.
    tests = subprocess.Popen(
        PYTEST, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, code = tests.communicate(timeout=limit)[0], str(tests.returncode)
    except subprocess.TimeoutExpired:
        os.killpg(tests.pid, signal.SIGKILL)
        output, code = tests.communicate()[0], f"stopped after {limit:.0f} s"
    yield {"tests": (output.strip().splitlines() or ["no output"])[-1], "exit": code, "output": output[-100_000:]}


def measure_roofs(clock: Clock, quick: bool) -> Iterator[Row]:
    """Measure the bandwidth of a copy, and matrix products in each precision."""
    side, count = (256, 2) if quick else (8192, 20)
    source = torch.rand(side * side * 4, device=clock.device)
    target = torch.empty_like(source)
    repeat = partial(_repeat, lambda: target.copy_(source), count)
    clock.seconds(repeat)
    moved = 2 * source.numel() * source.element_size() * count
    yield {"roof": "copy [GB/s]", "value": round(moved / clock.seconds(repeat) / 1e9, 1)}
    for name, dtype, reduced in (
        ("fp32", torch.float32, False),
        ("tf32", torch.float32, True),
        ("bf16", torch.bfloat16, True),
        ("fp16", torch.float16, True),
    ):
        if clock.device.type != "cuda" and name in ("tf32", "fp16"):
            continue
        torch.backends.cuda.matmul.allow_tf32 = reduced
        a, b = (torch.randn(side, side, device=clock.device, dtype=dtype) for _ in range(2))
        repeat = partial(_repeat, partial(torch.matmul, a, b), count)
        clock.seconds(repeat)
        yield {"roof": f"matmul {name} [TFLOP/s]", "value": round(2 * side**3 * count / clock.seconds(repeat) / 1e12, 2)}
    torch.backends.cuda.matmul.allow_tf32 = False
    compute_exactly([clock.device])


def _repeat(work: Callable[[], object], count: int) -> None:
    for _ in range(count):
        work()


def measure_hosts(world: str, clock: Clock, quick: bool, folder: Path) -> Iterator[Row]:
    """Measure how many samples a second the hosts of a world train on, by their number and by the size of shards."""
    for hosts in WORLDS[world][3] if not quick else (2,):
        for members in sorted({hosts, max(1, hosts // 8), 1 if hosts <= 8 else hosts}, reverse=True):
            about = {"hosts": hosts, "members_per_shard": members}
            yield clock.row(about, partial(_throughput, world, hosts, members, clock, quick, folder))


def measure_precisions(clock: Clock, quick: bool, folder: Path) -> Iterator[Row]:
    """Measure the throughput of the largest populations in each precision."""
    for world in WORLDS if not quick else ("digits",):
        for precision in ("fp32", "bf16", "fp16") if clock.device.type == "cuda" else ("fp32", "bf16"):
            hosts = 2 if quick else WORLDS[world][3][-1]
            about = {"world": world, "precision": precision}
            yield clock.row(about, partial(_throughput, world, hosts, 0, clock, quick, folder, precision))


def measure_graphs(clock: Clock, quick: bool, folder: Path) -> Iterator[Row]:
    """Measure the throughput with and without CUDA graphs of the training step."""
    for world in WORLDS if not quick else ("digits",):
        for graphs in ("true", "false") if clock.device.type == "cuda" else ("true",):
            hosts = 2 if quick else WORLDS[world][3][-2]
            about = {"world": world, "graphs": graphs}
            yield clock.row(about, partial(_throughput, world, hosts, 0, clock, quick, folder, graphs=graphs))


CONVOLUTIONS = {
    "digits": (64, 64, 8, 8, 8, 1),
    "digits, 512 hosts": (512, 64, 8, 8, 8, 1),
    "cifar, first layer": (64, 128, 3, 8, 32, 1),
    "cifar, 32 x 32": (64, 128, 8, 8, 32, 1),
    "cifar, 16 x 16": (64, 128, 16, 16, 16, 1),
    "cifar, stride 2": (64, 128, 8, 16, 32, 2),
}
"""Members, batch, inputs, outputs, side of the images, and stride."""


def measure_convolutions(clock: Clock, quick: bool) -> Iterator[Row]:
    """Measure forward and backward of a layer of many members, by grouped convolution and by what takes its place."""
    for name, (members, batch, inputs, outputs, side, stride) in CONVOLUTIONS.items():
        if quick:
            members, batch = 2, 2
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(batch, members * inputs, side, side, device=clock.device, dtype=dtype)
            x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
            weight = torch.randn(members * outputs, inputs, 3, 3, device=clock.device, dtype=dtype, requires_grad=True)
            how, once = ((stride, stride), (1, 1), (1, 1), members), (1 if quick else 10)
            ways = {
                "grouped": lambda x=x, w=weight, how=how: torch.conv2d(x, w, None, *how),
                "matrices": lambda x=x, w=weight, how=how: by_matrices(x, w, None, *how[:2], how[3]),
                "contained": lambda x=x, w=weight, how=how: contained(x, w, None, *how, how[3]),
            }
            found: Row = {"layer": name, "dtype": str(dtype).removeprefix("torch.")}
            for way, forward in ways.items():
                step = partial(_forward_and_backward, forward, x, weight)
                clock.seconds(partial(_repeat, step, 2))
                found[f"{way}_ms"] = round(1e3 * clock.seconds(partial(_repeat, step, once)) / once, 3)
            yield found


def _forward_and_backward(forward: Callable[[], torch.Tensor], *leaves: torch.Tensor) -> None:
    y = forward()
    torch.autograd.grad(y, leaves, torch.ones_like(y))


def _throughput(
    world: str, hosts: int, members: int, clock: Clock, quick: bool, folder: Path, precision: str = "fp32", graphs: str = "true"
) -> Row:
    """Return the figures of one population."""
    env = _env(world, hosts, members, clock.device, quick, folder, precision, graphs)
    samples, grow = env.sampler.samples_per_epoch, partial(_episode, env, world)
    grow()  # warm-up
    if clock.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(clock.device)
    spent = clock.seconds(grow)
    peak = torch.cuda.max_memory_allocated(clock.device) / 2**20 if clock.device.type == "cuda" else float("nan")
    env.close()
    epochs = hosts * env.num_steps / spent
    return {
        "hosts": hosts,
        "members_per_shard": members,
        "host_epochs_per_second": round(epochs, 2),
        "samples_per_second": round(epochs * samples),
        "peak_mib": round(peak, 1),
    }


def _env(
    world: str,
    hosts: int,
    members: int,
    device: torch.device,
    quick: bool,
    folder: Path,
    precision: str = "fp32",
    graphs: str = "true",
) -> Environment:
    data, name = [f"task.root={images(folder)}"] if world == "cifar" else [], "cpu" if device.type == "cpu" else "cuda:0"
    chosen = [*overrides(world, hosts, members, name, precision, quick=quick), f"devices.{name}.graphs={graphs}"]
    return build_env(check([*chosen, *data]), split=Split.TRAINING, hosts=hosts)


def overrides(world: str, hosts: int, members: int, name: str, precision: str, *, quick: bool) -> list[str]:
    """Return the overrides of a population on the device of this name."""
    small = ["task.epoch_samples=32", "task.valid_samples=8", "task.batch_size=16"] if quick else []
    device = [f"devices=[{name}]", f"devices.{name}.members_per_shard={members}", f"devices.{name}.precision={precision}"]
    agent = ["agent.twins=1", "agent.baseline=critic", "agent.minibatches=1"]
    return [*WORLDS[world][0], *small, *device, f"steps={3 if quick else STEPS}", f"hosts={hosts}", *agent]


def _episode(env: Environment, world: str) -> EpisodeRecord:
    """Run an episode in which every second host germinates a seed at the start."""
    _, blueprint, slot, _ = WORLDS[world]
    env.reset(options={"episode": 0})
    germinate = ActionConfig(slot=slot, blueprint=blueprint)
    return play(env, ActionLists([[germinate] if host % 2 == 0 else [] for host in range(env.num_envs)], env.layout))


def images(folder: Path) -> Path:
    """Return a folder with random images in the format of CIFAR-10."""
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        if not (folder / name).exists():
            records = RECORDS[name]
            classes, pixels = rng.integers(0, 10, (records, 1), np.uint8), rng.integers(0, 256, (records, 3072), np.uint8)
            np.concatenate([classes, pixels], axis=1).tofile(folder / name)
    return folder


def measure_memory(clock: Clock, quick: bool, folder: Path) -> Iterator[Row]:
    """Measure whether the memory of the device grows over episodes."""
    env = _env("digits", 2 if quick else 64, 0, clock.device, quick, folder)
    for episode in range(2 if quick else 12):
        _episode(env, "digits")
        if clock.device.type == "cuda":
            held, reserved = (
                round(get(clock.device) / 2**20, 1) for get in (torch.cuda.memory_allocated, torch.cuda.memory_reserved)
            )
            yield {"episode": episode, "allocated_mib": held, "reserved_mib": reserved}
        else:
            yield {"episode": episode, "allocated_mib": "no GPU"}
        if clock.left() < 10:
            break
    env.close()


def measure_waits(clock: Clock, quick: bool, folder: Path) -> Iterator[Row]:
    """Count where the CPU waits for the device in a host epoch: each place is worth a look."""
    env = _env("digits", 2 if quick else 64, 0, clock.device, quick, folder)
    _episode(env, "digits")
    if clock.device.type == "cuda":
        torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _episode(env, "digits")
    if clock.device.type == "cuda":
        torch.cuda.set_sync_debug_mode("default")
    env.close()
    seen = Counter(f"{_shown(one.filename)}:{one.lineno}" for one in caught if "synchronizing" in str(one.message))
    for place, count in seen.most_common():
        yield {"place": place, "waits_per_host_epoch": round(count / env.num_steps, 2)}
    yield {"place": "all", "waits_per_host_epoch": round(seen.total() / env.num_steps, 2)}


def _shown(file: str) -> str:
    """Return the path of a file from the folder of its package."""
    parts = Path(file).parts
    return str(Path(*parts[-3:]))


PROFILED = (("cifar", 64, "bf16"), ("cifar", 64, "fp32"), ("digits", 64, "fp32"), ("text", 8, "fp32"))
"""Populations that are profiled: world, hosts and precision. The first is farthest from its goal."""


def measure_kernels(clock: Clock, quick: bool, folder: Path) -> Iterator[Row]:
    """Measure how an episode's time is divided among its phases, for which share of it the device computes, how many kernels are
    launched, and which take longest."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if clock.device.type == "cuda" else [])]
    for world, hosts, precision in PROFILED if not quick else (("digits", 2, "fp32"),):
        env = _env(world, hosts, 0, clock.device, quick, folder, precision)
        _episode(env, world)
        clock.wait()
        begun = time.perf_counter()
        phases = _episode(env, world).phases
        clock.wait()
        plain = time.perf_counter() - begun
        with profile(activities=activities) as profiler:
            _episode(env, world)
            clock.wait()
        env.close()
        averages = profiler.key_averages()
        kernels = [one for one in averages if one.device_type == DeviceType.CUDA]
        busy = sum(one.self_device_time_total for one in kernels) / 1e6
        launches = sum(one.count for one in averages if "LaunchKernel" in one.key)
        about = {"world": world, "precision": precision}
        yield about | {
            "hosts": hosts,
            "seconds": round(plain, 3),
            **{f"{phase}_share": round(spent / plain, 3) for phase, spent in phases.items()},
            "busy_share": round(busy / plain, 3),
            "launches_per_host_epoch": round(launches / env.num_steps),
        }
        for one in sorted(kernels, key=lambda one: -one.self_device_time_total)[:12]:
            spent = one.self_device_time_total / 1e6
            figures = {"count": one.count, "ms": round(1e3 * spent, 1), "share_of_busy": round(spent / busy, 3)}
            yield about | {"kernel": one.key[:90].replace("|", "/")} | figures
        if clock.left() < 30 and not quick:
            break


def as_markdown(title: str, rows: list[Row]) -> str:
    """Return rows as a table; long text is left to the JSON file."""
    columns = [name for name in dict.fromkeys(key for row in rows for key in row) if name != "output"]
    lines = [f"## {title}", "", "| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(str(row.get(name, "")) for name in columns) + " |" for row in rows), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for gpu.json and gpu.md")
    parser.add_argument("--minutes", type=float, default=7.5, help="what does not fit is left out")
    parser.add_argument("--only", nargs="+", help="names of sections")
    parser.add_argument("--quick", action="store_true", help="a few hosts, on the CPU where there is no GPU: measures nothing")
    given = parser.parse_args()
    if not torch.cuda.is_available() and not given.quick:
        parser.error("there is no CUDA device: run this on a machine with one, or add --quick")
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    compute_exactly([device])
    clock, record = Clock(device, given.minutes, quick=given.quick), {"hardware": [hardware(device)]}
    with TemporaryDirectory() as name:
        folder = Path(name)
        sections: Mapping[str, Callable[[], Iterator[Row]]] = {
            "roofs": partial(measure_roofs, clock, given.quick),
            "tests": partial(run_tests, clock, given.quick),
            "graphs": partial(measure_graphs, clock, given.quick, folder),
            "convolutions": partial(measure_convolutions, clock, given.quick),
            "kernels": partial(measure_kernels, clock, given.quick, folder),
            "waits": partial(measure_waits, clock, given.quick, folder),
            "memory": partial(measure_memory, clock, given.quick, folder),
            "precisions": partial(measure_precisions, clock, given.quick, folder),
            **{world: partial(measure_hosts, world, clock, given.quick, folder) for world in WORLDS},
        }
        if unknown := set(given.only or ()) - set(sections):
            parser.error(f"--only knows {', '.join(sections)}, not {', '.join(sorted(unknown))}")
        for section, measure in sections.items():
            if given.only and section not in given.only:
                continue
            rows = record[section] = list[Row]()
            for row in measure():
                rows.append(row)
                print(section, json.dumps({key: value for key, value in row.items() if key != "output"}), flush=True)
                if given.out:  # after every row: a cut-off run keeps what it has
                    given.out.mkdir(parents=True, exist_ok=True)
                    (given.out / "gpu.json").write_text(json.dumps(record, indent=1))
                    (given.out / "gpu.md").write_text("\n".join(as_markdown(*entry) for entry in record.items()))


if __name__ == "__main__":
    main()
