"""Every benchmark runs, on a few hosts, and prints figures; paired timing compares round by round."""

import importlib
import io
import json
import re
import runpy
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch

from benchmarks import gpu
from esper.cli.overrides import check
from esper.fusion.precision import Precision
from esper.pool.devices import DeviceConfig
from esper.task import cifar

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PRINTS = {
    "compiled": r"digits, 2 members: warm-up \d+\.\d s, losses (\d+\.\d{4})\d+ and \1[^$]*cifar10_baseline",
    "convolutions": r"16 hosts, 1 to 2 channels, 8 x 8[^$]*torch / own, median \(range\): wall \d[^$]*own: \d+ GFLOP/s",
    "counterfactuals": r"leave_one_out +\d+\.\d ms",
    "deployed_hosts": r"4 hosts, 4 seeds[^$]*learning / frozen, median \(range\): wall \d",
    "env_overhead": r"env / bare, process time: median \d\.\d+",
    "fused_training": r"one by one / fused, median [\s\S]*\nroof / fused, [\s\S]*: fused \d+\.\d+ %, one by one \d+\.\d+ %, vmap",
    "gpu": r'"roof": "copy \[GB/s\]", "value": \d[^$]*memory \{[^$]*"bf16"[^$]*digits \{"hosts": 2[^$]*text \{"hosts": 2',
    "growing_seeds": r"digits, 2 hosts[^$]*with seeds / without, median[^$]*times over FLOPs \d\.\d\d[^$]*python_text, 2 hosts",
    "own_kernels": r"digits, 2 hosts[^$]*torch / own kernels, median \(range\): wall \d[^$]*cifar10_baseline, 2 hosts",
    "policy_speed": r"sb3 / ours, median" if find_spec("sb3_contrib") else r"sb3-contrib is not installed[^$]*\n\| 2 \| \d",
    "precision": r"cifar10_baseline, 2 hosts[\s\S]*train[\s\S]*fp32 / bf16, median [\s\S]*validate[\s\S]*fp32 / bf16, median",
    "shipped_tasks": r"digits, 2 hosts, shards of 2[^$]*cifar10_baseline, 2 hosts[^$]*plain / esper, median \(range\): wall \d",
    "start_time": r"help / import torch, median \(range\): wall \d",
    "step_overhead": r"reward=shaped, 4 hosts x 3 slots, .* together \d\.\d+",
    "workers": r"2 hosts, 1 core or worker[\s\S]*one process / workers, median[\s\S]*\n\| 60 s \| \d+ % ",
}
"""What each script prints with --quick."""


def test_every_script_has_a_quick_mode_that_is_tested() -> None:
    scripts = {path.stem for path in BENCHMARKS.glob("*.py") if "__main__" in path.read_text()}
    assert sorted(PRINTS) == sorted(scripts - {"__main__"})


@contextmanager
def beside_benchmarks() -> Iterator[pytest.MonkeyPatch]:
    """The state in which a script starts; what it changes in this process is restored."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
        yield patch
    torch.set_num_threads(threads)


def quick(folder: Path) -> tuple[Path, str]:
    """Return the record of `python -m benchmarks --quick`, and what it printed."""
    out, printed = folder / "record.md", io.StringIO()
    with beside_benchmarks() as patch, redirect_stdout(printed):
        for name in cifar.RECORDS:
            patch.setitem(cifar.RECORDS, name, 200)  # images, instead of 10,000 per file
        patch.setattr(sys, "argv", ["benchmarks", "--quick", "--out", str(out)])
        runpy.run_path(str(BENCHMARKS / "__main__.py"), run_name="__main__")
    return out, printed.getvalue()


def test_the_gpu_script_names_devices_as_the_command_line_reads_them() -> None:
    config = check(gpu.overrides("digits", 2, 1, "cuda:0", "bf16", quick=True))
    assert config.devices == {"cuda:0": DeviceConfig(members_per_shard=1, precision=Precision.bf16)}


@pytest.mark.parametrize(
    ("limit", "code", "last"),
    [(60, "print('1 passed'); exit(1)", "1 passed"), (2, "import time; print('slow', flush=True); time.sleep(60)", "slow")],
)
def test_the_gpu_script_keeps_what_its_tests_print(limit: int, code: str, last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "TESTS", limit)
    monkeypatch.setattr(gpu, "PYTEST", [sys.executable, "-c", code])
    (row,) = gpu.run_tests(gpu.Clock(torch.device("cpu"), 1, quick=False), quick=False)
    assert (row["tests"], row["exit"]) == (last, "1" if limit == 60 else "stopped after 2 s")


def test_the_gpu_script_begins_no_row_that_would_not_end_in_time() -> None:
    clock = gpu.Clock(torch.device("cpu"), minutes=0.1, quick=False)
    assert clock.row({"hosts": 1}, dict) == {"hosts": 1, "samples_per_second": "left out: no time"}
    clock = gpu.Clock(torch.device("cpu"), minutes=1, quick=False)
    assert clock.row({"hosts": 1}, lambda: {"peak_mib": 2}) == {"hosts": 1, "peak_mib": 2}


def test_every_benchmark_runs_and_leaves_a_record(tmp_path: Path) -> None:
    """One test, so that the scripts run once however the tests are dealt to processes."""
    path, printed = quick(tmp_path)
    parts = {part.split()[0]: part for part in reversed(printed.split("\n== ")[1:])}  # of several calls the first
    assert parts.keys() == PRINTS.keys()
    for name, pattern in PRINTS.items():
        assert re.search(pattern, parts[name]), parts[name]
    same = re.search(r"fused (\d+\.\d+) %, one by one (\d+\.\d+) %, vmap (\d+\.\d+) %", printed)
    assert same
    fused, *others = map(float, same.groups())
    assert others == pytest.approx([fused] * 2, abs=0.3), "all train the same hosts; rounding can cost a few samples"
    record, markdown = json.loads(path.with_suffix(".json").read_text()), path.read_text()
    assert record["about"].keys() >= {"date", "esper", "torch", "processor", "copy bandwidth of a thread [GB/s]"}
    compared = PRINTS.keys() - {"gpu"} - (set() if find_spec("sb3_contrib") else {"policy_speed"})
    assert {claim["benchmark"].split()[0] for claim in record["claims"]} == compared
    assert {claim["what"] for claim in record["claims"]} >= {f"{way} / fused, process" for way in ("one by one", "vmap", "roof")}
    for claim in record["claims"]:
        assert 0 < claim["low"] <= claim["median"] <= claim["high"]
        assert f"| {claim['what']} | {claim['median']:.3g} |" in markdown


@pytest.fixture
def paired_timing() -> Iterator[ModuleType]:
    """The module that the scripts share."""
    with beside_benchmarks():
        yield importlib.import_module("paired_timing")


def test_candidates_run_in_turn_in_alternating_order(paired_timing: ModuleType) -> None:
    ran: list[str] = []
    timings = paired_timing.in_turn({name: lambda name=name: ran.append(name) for name in "ab"}, rounds=3)
    assert "".join(ran) == "abbaab"
    assert {name: len(some) for name, some in timings.items()} == {"a": 3, "b": 3}


def test_a_ratio_is_the_median_over_rounds_with_its_range(paired_timing: ModuleType) -> None:
    ratio = paired_timing.ratio([2.0, 9.0, 4.0], [1.0, 3.0, 1.0])
    assert (ratio.median, ratio.low, ratio.high, ratio.rounds) == (3.0, 2.0, 4.0, 3)
    assert str(ratio) == "3.00 (2.00 to 4.00, 3 rounds)"


def test_wall_time_includes_waiting_and_process_time_does_not(paired_timing: ModuleType) -> None:
    timing = paired_timing.timed(lambda: time.sleep(0.05))
    assert timing.wall >= 0.05
    assert timing.process < 0.05
