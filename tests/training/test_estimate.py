"""The estimate of a run: close to what it takes, and computed before anything absurd is allocated."""

import copy
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from esper.cli.overrides import check
from esper.cli.readiness import ready
from esper.config import GROUPS
from esper.growth.loss import LOGITS
from esper.task.data import Data
from esper.task.tinystories import TinyStoriesConfig
from esper.training import estimate as subject
from esper.training.estimate import KERNELS, PROCESS, estimate, in_bytes

BATCH = ["devices=[cpu]", "task.batch_size=1000", "host.base_channels=100", "env.potential=false", "blueprint=[norm]"]
WORDS = ["updates=1", "steps=1", "telemetry=quiet", "devices=[cpu]"]


MEASURE = """
import sys
from pathlib import Path
from esper.cli.overrides import check
from esper.training.trainer import Trainer


def memory(name):
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split(name + ":")[1].split()[0])


config = check(sys.argv[2:])
before = memory("VmRSS")
Trainer(config, Path(sys.argv[1])).run()
print(memory("VmHWM") - before)
"""


def peak(overrides: list[str], folder: Path) -> float:
    """Memory that a run takes beyond that of its new process [bytes]; in this one, earlier tests have left memory to use."""
    command = [sys.executable, "-c", MEASURE, str(folder), *overrides]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("more", [["hosts=64"], ["env=sandbox", "steps=18"]], ids=" ".join)
def test_a_run_takes_what_was_estimated(more: list[str], tmp_path: Path) -> None:
    overrides = [*WORDS, *more] if "steps=18" not in more else ["updates=1", "telemetry=quiet", *more]
    assert 0.5 < (estimate(check(overrides)).bytes - PROCESS) / peak(overrides, tmp_path) < 2


def test_the_line_names_hosts_parameters_memory_and_host_epochs() -> None:
    line = estimate(check(["hosts=64", "updates=50"])).line()
    assert line == "64 hosts of 496 parameters, about 840 MB of memory; 64,000 host epochs"
    assert estimate(check(["env=sandbox"])).line().startswith("32 hosts, about 660 MB of memory; 32,000")


def test_tinystories_as_shipped_fits_a_gpu_of_24_gb(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the vocabulary of GPT-2, whose logits alone would take 13 GB in training."""
    vocabulary, context = 50_257, 256
    tokens = torch.randint(vocabulary, (2048, context))
    parts = {f"{part}_{axis}": tokens for part in ("train", "valid", "test") for axis in "xy"}
    monkeypatch.setattr(TinyStoriesConfig, "load", lambda self, context: Data(**parts, num_classes=vocabulary))
    gpu = torch.device("cuda:0")
    monkeypatch.setattr(subject, "find_device", lambda name: gpu)
    monkeypatch.setattr(subject, "capacity", lambda device: 24e9)
    there = {part.name: part.bytes for part in estimate(check(["experiment=tinystories"])).places[gpu]}
    assert sum(there.values()) < 24e9, there
    assert there["the loss"] == 3 * 4 * LOGITS
    assert there["training on a batch"] > 1e9


def test_bytes_have_two_digits() -> None:
    assert [in_bytes(number) for number in (12, 210e6, 3.7e12)] == ["12 B", "210 MB", "3.7 TB"]


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        (["hosts=2000"], ("hosts", "task.batch_size")),
        (["agent.hidden=100000"], ("agent.hidden", "agent.slot_width")),
        (["buffer=window", "agent.baseline=critic", "buffer.rollouts=100000000"], ("buffer.rollouts", "hosts")),
        (["steps=10000000"], ("hosts", "steps")),
        (["host.base_channels=20000"], ("hosts", "host.base_channels")),
        (["task.epoch_samples=10000000000"], ("hosts", "task.epoch_samples")),
        ([*BATCH], ("task.batch_size", "hosts")),
        ([*BATCH, "devices.cpu.members_per_shard=9"], ("task.batch_size", "devices.cpu.members_per_shard")),
    ],
    ids=lambda part: part[-1],
)
def test_the_keys_that_make_it_smaller_are_named(
    overrides: list[str], keys: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "capacity", lambda device: 4e9)
    first, second = keys
    with pytest.raises(ValueError, match=rf"this machine has 4 GB: lower {first} \(now \d+\) or {second} \(now \d+\)$"):
        ready(check(overrides))


def test_data_of_hosts_elsewhere_may_be_too_large_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key makes them smaller."""
    config = check(["cluster=ray", "cluster.address=10.0.0.1:6379"])
    monkeypatch.setattr(subject, "capacity", lambda device: 1e6)
    with pytest.raises(
        ValueError, match=r"most of it for Python .*, and this machine has 1 MB: use a machine or a GPU with more memory$"
    ):
        estimate(config, 2).check(config)


@pytest.mark.parametrize(
    ("overrides", "processes"),
    [
        ([], 1),
        (["devices.cpu.own_kernels=false"], 0),
        (["devices.cpu.precision=bf16"], 0),
        (["host.base_channels=32"], 0),
        (["cluster=ray", "cluster.workers=3"], 3),
        (["cluster=ray", "cluster.address=10.0.0.1:6379", "devices=[cuda:0]"], 0),
    ],
)
def test_each_process_with_own_kernels_holds_numba(overrides: list[str], processes: int) -> None:
    places = estimate(check(["devices=[cpu]", *overrides])).places
    held = [part.bytes for parts in places.values() for part in parts if part.name == "Numba and its kernels"]
    assert sum(held) == processes * KERNELS


def test_the_memory_of_a_gpu_counts_what_lies_there(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    gpu = torch.device("cuda:0")
    monkeypatch.setattr(subject, "find_device", lambda name: gpu)
    monkeypatch.setattr(subject, "capacity", lambda device: 24e9)
    monkeypatch.setattr(subject, "capacity", lambda device: 1e9 if device == gpu else 1e12)
    config = check(["hosts=512"])
    assert sum(part.bytes for part in estimate(config).places[gpu]) > 1e9
    with pytest.raises(ValueError, match=r"cuda:0 has 1 GB: lower .*hosts"):
        subject.check_memory(config)


def test_data_counts_where_it_is_kept_in_its_smallest_types(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda:0")
    memory = {gpu: 24e9, torch.device("cpu"): 1e12}
    monkeypatch.setattr(subject, "find_device", lambda name: gpu)
    monkeypatch.setattr(subject, "capacity", lambda device: memory[device])
    text = ["task=python_text", "task.valid_samples=16"]

    def sizes(*overrides: str) -> list[float]:
        """Memory for data on the GPU and in the machine."""
        places = estimate(check([*text, *overrides])).places
        return [sum(part.bytes for part in places[place] if part.name == "the data") for place in memory]

    on_gpu, in_memory = sizes()
    assert in_memory / on_gpu == pytest.approx(16 / 3, rel=1e-3)  # two int64 against a byte and an int16
    assert sizes("task.mapped=true") == pytest.approx([on_gpu * 4 / 3, 0], rel=1e-3)  # both in one array of int16
    assert sizes("devices.auto.resident=false") == [0, in_memory]
    memory[gpu] = 1.9 * on_gpu
    assert sizes() == [0, in_memory]


def whole_numbers(node: Any, where: str = "") -> Iterator[tuple[Any, str, str]]:
    """All whole numbers of a config: their owner, field and key."""
    parts = {field.name: getattr(node, field.name) for field in fields(node)} if is_dataclass(node) else node
    for name, value in parts.items():
        if is_dataclass(value) or isinstance(value, dict):
            yield from whole_numbers(value, f"{where}{name}.")
        elif isinstance(value, int) and not isinstance(value, bool):
            yield node, name, f"{where}{name}"


def configs() -> Iterator[Any]:
    """Configs that together hold all hosts, and all blueprints, that need no data of their own."""
    yield check(["blueprint=[norm,conv_light,attention,bottleneck]"])
    yield check(["host=mlp", "blueprint=[norm,lora,mlp]", "buffer=window", "agent.baseline=critic"])
    for agent in (name for name in GROUPS["agent"] if name not in ("ppo", "ppo_mlp", "replay", "event_oracle")):
        yield check([f"agent={agent}", "blueprint=[conv_light]"])  # fewer kinds of seeds to try


def answer(config: Any, key: str, value: int) -> tuple[float, str]:
    """Processor time in which a config with one other value is checked [s], and the message about it, empty if it is valid."""
    whole = copy.deepcopy(config)
    node, name = next((node, name) for node, name, other in whole_numbers(whole) if other == key)
    setattr(node, name, value)
    begun, message = time.thread_time(), ""
    try:
        for part in (node, whole):
            getattr(part, "__post_init__", lambda: None)()
        ready(whole)
    except ValueError as error:
        message = str(error)
    return time.thread_time() - begun, message


def test_growth_potential_counts_where_it_is_measured() -> None:
    words = ["task.batch_size=1000", "host.base_channels=8", "blueprint=[norm]"]
    whole, without = (estimate(check([*words, f"env.potential={word}"])) for word in ("true", "false"))
    assert without.bytes < 0.6 * whole.bytes


def test_blueprints_count_for_the_hosts_that_are_measured_at_once() -> None:
    few, many = (
        next(
            part.bytes
            for part in estimate(check(["hosts=1000", more])).places[subject.CPU]
            if part.name == "the growth potential"
        )
        for more in ("blueprint=[norm]", "blueprint=[norm,conv_light,depthwise,conv_heavy]")
    )
    assert few < many < 1.1 * few


def test_the_optimiser_counts() -> None:
    """Twice the state of momentum, in use and in the snapshot; the activations of one part of a batch."""
    adamw, parts, plain = (
        {part.name: part.bytes for part in estimate(check(more)).places[subject.CPU]}
        for more in (["optimiser=adamw"], ["optimiser.micro_batches=4"], [])
    )
    assert (adamw["hosts"], adamw["seeds"]) == (1.5 * plain["hosts"], 1.5 * plain["seeds"])
    assert parts["training on a batch"] == plain["training on a batch"] / 4


@pytest.mark.slow
def test_absurd_whole_numbers_are_answered_at_once() -> None:
    slow, unnamed, tried = list[str](), list[str](), set[str]()
    for config in configs():
        ready(config)  # loads the data
        keys = [key for _, _, key in whole_numbers(config) if config.agent.buffered or key.startswith("agent")]
        keys = [key for key in keys if key.startswith("agent") or key not in tried]
        tried |= {*keys}
        for key in keys:
            for value in (10**9, 2**63):
                seconds, message = answer(config, key, value)
                if seconds > 1:  # may be the first use of a library, or another process
                    seconds, message = answer(config, key, value)
                slow += [f"{key}={value}"] if seconds > 1 else []
                unnamed += [f"{key}: {message}"] if message and key.rpartition(".")[2] not in message else []
    assert (slow, unnamed) == ([], [])
