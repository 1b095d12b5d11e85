"""What runs on the CPU runs on a GPU, with the same numbers up to rounding, and its memory does not grow."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from esper.agent.scripted.schedule import ActionConfig, ActionLists
from esper.cli.overrides import check
from esper.env.base import Environment
from esper.task.instances import Split
from esper.telemetry.jsonl import read_records
from esper.training.environment import build_env
from esper.training.play import play
from esper.training.trainer import Trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device on this machine")

SMALL = ["hosts=4", "steps=7", "slots=every_block", "task.epoch_samples=512", "task.valid_samples=200", "telemetry=quiet"]
WORLDS = {
    "cnn": (["task=digits"], "conv_light"),
    "mlp": (["task=digits_mlp", "blueprint=[mlp_small]"], "mlp_small"),
    "transformer": (["task=python_text", "task.epoch_samples=128", "task.valid_samples=16"], "lora"),
    "numbers": (["task=diabetes", "task.epoch_samples=128", "task.valid_samples=0", "blueprint=[mlp_small]"], "mlp_small"),
    "deployed": (
        ["task=digits_drift", "task.events.count=[1]", "task.events.last=2", "task.pretrain=1", "task.pretrain_pool=2"],
        "conv_light",
    ),
}
"""Overrides and a blueprint, by what trains on the device."""


def environment(world: str, folder: Path, devices: Sequence[str] = ("cuda:0",), *more: str) -> Environment:
    overrides = [*SMALL, *WORLDS[world][0], f"task.pretrain_folder={folder}", f"devices=[{','.join(devices)}]", *more]
    return build_env(check(overrides), split=Split.TRAINING, hosts=4)


def grown(world: str, env: Environment) -> np.ndarray:
    """Return the validation losses `[T, N]` of an episode in which two hosts germinate a seed and keep it."""
    losses: list[np.ndarray] = []
    env.reset(options={"episode": 0})
    germinate = ActionConfig(slot=1, blueprint=WORLDS[world][1])
    lists = [[germinate], [], [germinate], []]
    play(env, ActionLists(lists, env.layout), record=lambda step: losses.append(step.signals.loss_N))
    return np.array(losses)


@pytest.mark.parametrize("world", WORLDS)
def test_an_episode_has_the_numbers_of_the_cpu(world: str, tmp_path: Path) -> None:
    on_gpu = environment(world, tmp_path)
    assert all(rows.device.type == "cuda" for rows in _state(on_gpu, world))
    np.testing.assert_allclose(grown(world, on_gpu), grown(world, environment(world, tmp_path, ["cpu"])), rtol=0.02)


def _state(env: Environment, world: str) -> list[torch.Tensor]:
    """Return the tensors of all hosts and seeds after an episode."""
    grown(world, env)
    return [rows for shard in env.pool.shards for rows in shard.network.rows().values()]


@pytest.mark.parametrize("world", WORLDS)
def test_shards_of_one_host_have_the_numbers_of_one_program(world: str, tmp_path: Path) -> None:
    alone = environment(world, tmp_path, ["cuda:0"], "devices.cuda:0.members_per_shard=1")
    np.testing.assert_allclose(grown(world, alone), grown(world, environment(world, tmp_path)), rtol=0.02)


@pytest.mark.parametrize("world", WORLDS)
def test_streamed_data_gives_the_bits_of_resident_data(world: str, tmp_path: Path) -> None:
    streamed = environment(world, tmp_path, ["cuda:0"], "devices.cuda:0.resident=false")
    np.testing.assert_array_equal(grown(world, streamed), grown(world, environment(world, tmp_path)))
    (data,) = streamed.pool._data.values()
    assert data.train_x.device.type == "cpu"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is no second CUDA device on this machine")
def test_two_devices_have_the_numbers_of_one(tmp_path: Path) -> None:
    both = environment("cnn", tmp_path, ["cuda:0", "cuda:1"])
    np.testing.assert_allclose(grown("cnn", both), grown("cnn", environment("cnn", tmp_path)), rtol=0.02)


@pytest.mark.parametrize("agent", ["ppo", "react_bandit"])
def test_equal_runs_are_equal_and_a_resumed_one_too(agent: str, tmp_path: Path) -> None:
    overrides = [*SMALL, "task=digits", "devices=[cuda:0]", f"agent={agent}"]
    for place, runs in (("whole", ["updates=3"]), ("again", ["updates=3"]), ("parts", ["updates=2", "updates=3"])):
        for more in runs:
            Trainer(check([*overrides, more]), tmp_path / place).run()
    whole, again, parts = (read_records(tmp_path / place / "metrics.jsonl") for place in ("whole", "again", "parts"))
    assert whole == again
    assert agent == "ppo" or whole == parts, "the learning rate of PPO depends on the number of updates"


def test_memory_does_not_grow_over_episodes(tmp_path: Path) -> None:
    env, held = environment("cnn", tmp_path), []
    for _ in range(8):
        grown("cnn", env)
        torch.cuda.synchronize()
        held.append(torch.cuda.memory_allocated())
    assert max(held[2:]) <= held[1] + 2**20
