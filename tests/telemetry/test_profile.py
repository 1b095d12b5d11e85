"""The times of the phases of an update, and the profile of one."""

import gzip
import json
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.autograd import DeviceType

from esper.phases import MARK, PhaseTimes
from esper.telemetry.jsonl import read_records
from esper.telemetry.profile import operations_table
from esper.telemetry.tags import PHASES
from tests.forked import run_forked

MARKED = {"act", "train", "validate", "potential", "learn", "save"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a profiled run of three updates, and what it printed."""
    folder = tmp_path_factory.mktemp("profiled")
    small = ["hosts=4", "steps=3", "updates=3", "task.epoch_samples=128", "task.valid_samples=64", "agent.hidden=8"]
    small += ["agent.epochs=1", "agent.minibatches=1"]
    shards = [
        "devices.auto.members_per_shard=2",
        "telemetry.writers=[jsonl,console]",
        "telemetry.profile=true",
        "telemetry.page_hosts=0",
    ]
    done = run_forked("esper.train", *small, *shards, f"hydra.run.dir={folder}/run", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run", done.stdout


def test_the_trace_holds_every_phase_and_every_thread(run: tuple[Path, str]) -> None:
    (trace,) = (run[0] / "profile").glob("*.json.gz")
    assert trace.name == "update_000002.pt.trace.json.gz"
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    marks = [event for event in events if event["name"].startswith(MARK)]
    assert {event["name"].removeprefix(MARK) for event in marks} == MARKED
    work = {event["tid"] for event in events if event["name"] == "_BlockBackward"}
    assert work & {event["tid"] for event in marks if event["name"] == f"{MARK}train"}
    assert len([event for event in marks if event["name"] == f"{MARK}act"]) == 2  # host epochs


def test_the_table_lists_the_dearest_operations_of_each_phase(run: tuple[Path, str]) -> None:
    (table,) = (run[0] / "profile").glob("*.txt")
    parts = dict(re.findall(r"^(\w+): [\d.]+ ms\n((?:  .*\n)+)", table.read_text() + "\n", re.MULTILINE))
    assert parts.keys() >= MARKED - {"save"}  # which may compute nothing
    assert "_BlockBackward" in parts["train"]
    assert "_BlockBackward" not in parts["validate"]
    assert all(len(part.splitlines()) <= 1 + 10 for part in parts.values())
    milliseconds = [float(line.split()[0]) for line in parts["train"].splitlines()[1:]]
    assert milliseconds == sorted(milliseconds, reverse=True)


def test_phases_add_up_to_the_update(run: tuple[Path, str]) -> None:
    for record in read_records(run[0] / "times.jsonl"):
        parts = sum(record.get(tag, 0.0) for tag in PHASES) - record["time/update_seconds"] - record["time/save_seconds"]
        assert parts == pytest.approx(record["time/rollout_seconds"])
        assert min(record.get(tag, 0.0) for tag in PHASES) >= 0
        assert record["time/train_seconds"] > 0


def test_the_console_shows_shares_of_the_whole(run: tuple[Path, str]) -> None:
    shares = re.search(r"^  time +(training .*)$", run[1], re.MULTILINE)
    assert shares
    assert sum(map(int, re.findall(r"(\d+) %", shares[1]))) == pytest.approx(100, abs=4)


def test_parallel_work_shares_the_time_of_waiting() -> None:
    times = PhaseTimes()
    with times.waiting():
        for phase, seconds in (("train", 0.03), ("validate", 0.01)):
            with times.working(phase):
                time.sleep(seconds)
    taken = times.take()
    assert taken["train"] > taken["validate"] > 0.009
    assert times.take() == {}


def test_time_on_a_gpu_is_counted_once() -> None:
    """The profiler reports a kernel twice: as the device time of the operation that issued it, and as an event of its own."""

    def event(name: str, device: DeviceType, cpu: float, gpu: float) -> SimpleNamespace:
        times = {"self_cpu_time_total": cpu, "self_device_time_total": gpu, "time_range": SimpleNamespace(start=1.0, end=2.0)}
        return SimpleNamespace(name=name, thread=1, device_type=device, is_user_annotation=False, **times)

    table = operations_table([event("aten::mm", DeviceType.CPU, 5.0, 2000.0), event("gemm", DeviceType.CUDA, 0.0, 2000.0)])
    assert table.startswith("other: 2.0 ms\n")
    assert "gemm" not in table
