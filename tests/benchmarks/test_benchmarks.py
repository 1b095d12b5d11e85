"""Every benchmark runs, on a few hosts, and prints figures; paired timing compares round by round."""

import importlib
import re
import runpy
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PRINTS = {
    "counterfactuals": r"leave_one_out +\d+\.\d ms",
    "deployed_hosts": r"4 hosts, 4 seeds[^$]*learning / frozen, median \(range\): wall \d",
    "env_overhead": r"env / bare, process time: median \d\.\d+",
    "fused_training": r"one by one / fused, median \(range\): wall \d+\.\d+ .*\n.*fused (\d+\.\d+) %, one by one \1 %",
    "gpu": r'"roof": "copy \[GB/s\]", "value": \d[^$]*digits \{"hosts": 2[^$]*text \{"hosts": 2[^$]*memory \{"episode": 1',
    "policy_speed": r"sb3 / ours, median" if find_spec("sb3_contrib") else r"sb3-contrib is not installed[^$]*\n\| 2 \| \d",
    "step_overhead": r"reward=shaped, 4 hosts x 3 slots, .* together \d\.\d+",
}
"""What each script prints with --quick."""


def test_every_script_has_a_quick_mode_that_is_tested() -> None:
    assert sorted(PRINTS) == sorted(path.stem for path in BENCHMARKS.glob("*.py") if "__main__" in path.read_text())


@pytest.fixture
def beside_benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The state in which a script starts; what it changes in this process is restored."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    with torch.random.fork_rng():
        yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", PRINTS)
def test_a_benchmark_runs(
    name: str, beside_benchmarks: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--quick"])
    runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(PRINTS[name], printed), printed


@pytest.fixture
def paired_timing(beside_benchmarks: None) -> ModuleType:
    """The module that the scripts share."""
    return importlib.import_module("paired_timing")


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
