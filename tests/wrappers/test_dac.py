"""Hosts as a benchmark of DACBench, which `.ci/run slow` tests in an environment of its own."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import esper
from esper.config import ConfigError

if find_spec("dacbench") is None:
    pytest.skip("needs DACBench: pip install dacbench", allow_module_level=True)
try:
    import torchvision  # noqa: F401  (DACBench imports it)
except RuntimeError:  # a build for GPUs beside a torch without
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from dacbench.agents import RandomAgent
from dacbench.logger import Logger
from dacbench.runner import run_benchmark
from dacbench.wrappers import PerformanceTrackingWrapper
from gymnasium.utils.env_checker import check_env

from esper.wrappers.dac import INSTANCES, GrowthBenchmark, GrowthInstance

SMALL = ["env=sandbox", "steps=5", "seed=3"]


def episode(env: Any, **options: Any) -> list[Any]:
    """Return all observations and rewards of an episode of fixed actions."""
    seen, _ = env.reset(options=options)
    found, over = [seen], False
    plant = np.eye(len(env.action_space.nvec), dtype=np.int64)[0]
    while not over:
        seen, reward, terminated, truncated, _ = env.step(plant)
        found += [seen, reward]
        over = terminated or truncated
    return found


def equal(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_instances_are_the_hosts_of_episodes_and_the_test_set_holds_others() -> None:
    env = GrowthBenchmark(overrides=SMALL).get_environment()
    assert (env.n_steps, len(env.instance_set), len(env.test_set)) == (5, INSTANCES, INSTANCES)
    training = episode(env, instance_id=7)
    env.use_test_set()
    held_out = episode(env, instance_id=7)
    env.use_training_set()
    assert equal(episode(env, instance_id=7), training)
    assert not equal(training, held_out)
    for split, found in (("training", training), ("held_out", held_out)):
        assert equal(episode(esper.make_env(SMALL, flat=True, split=split), episode=7), found)


def test_without_a_seed_in_the_overrides_instances_stay_the_same() -> None:
    envs = [GrowthBenchmark(overrides=SMALL[:2]).get_environment() for _ in range(2)]
    assert equal(episode(envs[0], instance_id=7), episode(envs[1], instance_id=7))
    assert equal(episode(esper.make_env([*SMALL[:2], "seed=0"], flat=True), episode=7), episode(envs[0], instance_id=7))


def test_instances_follow_one_another_and_gymnasium_finds_no_fault() -> None:
    env = GrowthBenchmark(overrides=SMALL).get_environment()
    first, second = episode(env), episode(env)
    assert (env.inst_id, env.instance) == (2, GrowthInstance(2))
    assert not equal(first, second)
    check_env(env, skip_render_check=True)
    chosen = GrowthBenchmark(config={"instance_set": {0: GrowthInstance(4)}, "overrides": SMALL}).get_environment()
    assert equal(episode(chosen), episode(env, instance_id=4))


def test_its_runner_logs_and_its_configs_are_saved(tmp_path: Path) -> None:
    benchmark = GrowthBenchmark(overrides=SMALL)
    log = Logger("growth", output_path=tmp_path)
    tracked = log.add_module(PerformanceTrackingWrapper)
    log.add_benchmark(benchmark)
    env = PerformanceTrackingWrapper(benchmark.get_benchmark(seed=1), logger=tracked)
    log.set_env(env)
    assert np.isfinite(run_benchmark(env, RandomAgent(env), 3, log))
    log.close()
    (lines,) = tmp_path.rglob("PerformanceTrackingWrapper.jsonl")
    assert [json.loads(line)["episode"] for line in lines.read_text().splitlines()] == [0, 1, 2]
    benchmark.save_config(tmp_path / "config.json")
    again = GrowthBenchmark(config_path=tmp_path / "config.json")
    assert equal(episode(again.get_environment(), instance_id=9), episode(benchmark.get_environment(), instance_id=9))
    with pytest.raises(ConfigError, match="overrides are given twice"):
        GrowthBenchmark(config_path=tmp_path / "config.json", overrides=["env=sandbox"])


def test_without_it_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dacbench", None)
    monkeypatch.delitem(sys.modules, "esper.wrappers.dac")
    with pytest.raises(ConfigError, match="needs DACBench: pip install dacbench"):
        __import__("esper.wrappers.dac")
