"""What runs on the CPU runs on a GPU, with the same numbers up to rounding, and its memory does not grow."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.gpu import images
from esper.cli.overrides import check
from esper.env.actions import Head
from esper.env.base import Environment
from esper.fusion import convolution
from esper.fusion.fuse import Fleet
from esper.fusion.layout import add_members, side_by_side, take_members
from esper.fusion.precision import Precision, computed_in
from esper.pool.lane import Lane
from esper.task.instances import Split
from esper.telemetry.jsonl import read_records
from esper.training.environment import build_env
from esper.training.trainer import Trainer
from tests.fusion.test_fuse import LAYERS, random_module
from tests.worlds import SMALL, WORLDS, environment, grown, in_a_loop

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device on this machine")


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


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("world", WORLDS)
def test_replayed_steps_have_the_bits_of_others(
    world: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replays = list[int]()
    launch = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (replays.append(1), launch(graph))[1])
    losses = []
    for graphs in ("false", "true"):
        device = [f"devices.cuda:0.graphs={graphs}", f"devices.cuda:0.precision={precision}"]
        env = environment(world, tmp_path, ["cuda:0"], "task.batch_size=16", *device)
        losses.append(grown(world, env))
        assert bool(replays) == (graphs == "true")
    np.testing.assert_array_equal(*losses)


@pytest.mark.parametrize("members", [0, 1])
def test_delays_of_streams_and_reused_memory_change_nothing(
    members: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What crosses streams without an order would be read before it is written, or after its memory has been used again."""
    more = "task.batch_size=32", f"devices.cuda:0.members_per_shard={members}"
    wanted = grown("cnn", environment("cnn", tmp_path, ["cuda:0"], *more))
    issued = Lane.issued

    @contextmanager
    def delayed(lane: Lane) -> Generator[None]:
        torch.cuda._sleep(2_000_000)  # about a millisecond, on the caller's stream
        with issued(lane):
            torch.cuda._sleep(2_000_000)
            yield
        for size in range(9, 21):
            torch.full((2**size,), torch.nan, device="cuda")

    monkeypatch.setattr(Lane, "issued", delayed)
    np.testing.assert_array_equal(grown("cnn", environment("cnn", tmp_path, ["cuda:0"], *more)), wanted)


def test_images_are_augmented_on_the_device(tmp_path: Path) -> None:
    overrides = ["task=cifar10_baseline", f"task.root={images(tmp_path)}", "task.epoch_samples=512", "task.valid_samples=100"]
    overrides += ["agent.twins=1", "agent.baseline=critic", "agent.minibatches=1"]
    losses = []
    for resident in ("true", "false"):
        more = [*overrides, "devices=[cuda:0]", f"devices.cuda:0.resident={resident}", "hosts=2", "steps=4"]
        env = build_env(
            check([*more, "agent.twins=1", "agent.baseline=critic", "agent.minibatches=1"]), split=Split.TRAINING, hosts=2
        )
        env.reset(options={"episode": 0})
        losses.append([env.step(np.zeros((2, len(Head)), np.int64))[-1]["signals"].train_loss_N for _ in range(4)])
        env.close()
    np.testing.assert_array_equal(*losses)


def test_matrices_that_are_gathered_again_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [nn.Conv2d(8, 8, 3, padding=1) for _ in range(4)]
    found = []
    for kept in (convolution.KEPT, 0):
        monkeypatch.setattr(convolution, "KEPT", kept)
        fleet = Fleet(layers, torch.device("cuda:0"))
        x = torch.ones(16, 32, 8, 8, device="cuda").cumsum(3).requires_grad_()
        fleet.bind()(x).square().sum().backward()
        found.append((fleet.flat.grad, x.grad))
    assert all(one.equal(other) for one, other in zip(*found, strict=True))


HALVES = {torch.float32: Precision.fp32, torch.bfloat16: Precision.bf16, torch.float16: Precision.fp16}
ALONE = {name: case for name, case in LAYERS.items() if name != "embedding"} | {
    "conv_of_hosts": (lambda: nn.Conv2d(8, 8, 3, padding=1), (8, 8, 8)),
    "conv_of_large_images": (lambda: nn.Conv2d(8, 16, 3, padding=1, stride=2), (8, 32, 32)),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("place", ["input", "weight", "gradient"])
@pytest.mark.parametrize("name", ALONE)
def test_a_member_that_is_not_finite_is_so_alone(name: str, place: str, dtype: torch.dtype) -> None:
    make, shape = ALONE[name]
    fleet = Fleet([random_module(make).float() for _ in range(8)], torch.device("cuda:0"))
    sick, others = torch.tensor([3], device="cuda"), torch.tensor([0, 1, 2, 4, 5, 6, 7], device="cuda")
    x_MB = torch.randn(8, 32, *shape, device="cuda")
    if place == "input":
        x_MB[3, 0] = torch.inf
    if place == "weight":
        with torch.no_grad():
            fleet.flat[3] = torch.nan
    x = side_by_side(x_MB).to(dtype).requires_grad_()
    with computed_in(HALVES[dtype], x.device):
        y = fleet.bind().eval()(x)
    pull = torch.ones_like(y)
    if place == "gradient":
        add_members(pull, sick, torch.full_like(take_members(pull, sick, 8), torch.inf), 8)
    y.backward(pull)
    assert x.grad is not None
    assert fleet.flat.grad is None or fleet.flat.grad[others].isfinite().all()
    assert all(take_members(part, others, 8).isfinite().all() for part in (y, x.grad))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is no second CUDA device on this machine")
def test_two_devices_have_the_numbers_of_one(tmp_path: Path) -> None:
    small = "task.batch_size=32"  # enough batches to capture graphs
    both = environment("cnn", tmp_path, ["cuda:0", "cuda:1"], small)
    np.testing.assert_allclose(grown("cnn", both), grown("cnn", environment("cnn", tmp_path, ["cuda:0"], small)), rtol=0.02)


@pytest.mark.parametrize("agent", ["ppo", "react_bandit"])
def test_equal_runs_are_equal_and_a_resumed_one_too(agent: str, tmp_path: Path) -> None:
    overrides = [*SMALL, "task=digits", "devices=[cuda:0]", f"agent={agent}"]
    for place, runs in (("whole", ["updates=3"]), ("again", ["updates=3"]), ("parts", ["updates=2", "updates=3"])):
        for more in runs:
            Trainer(check([*overrides, more]), tmp_path / place).run()
    whole, again, parts = (read_records(tmp_path / place / "metrics.jsonl") for place in ("whole", "again", "parts"))
    assert whole == again
    # The last update of a run has records that others lack, and the learning rate of PPO depends on the number of updates.
    assert agent == "ppo" or whole[-1] == parts[-1]


def test_a_module_grows_in_a_loop_as_on_the_cpu(tmp_path: Path) -> None:
    found, wanted = (in_a_loop(torch.device(device), tmp_path / device) for device in ("cuda", "cpu"))
    np.testing.assert_allclose(found, wanted, rtol=0.02, atol=5e-3)


def test_memory_does_not_grow_over_episodes(tmp_path: Path) -> None:
    env, held = environment("cnn", tmp_path, ["cuda:0"], "task.batch_size=32"), []  # enough batches to capture graphs
    for _ in range(8):
        grown("cnn", env)
        torch.cuda.synchronize()
        held.append(torch.cuda.memory_allocated())
    assert max(held[2:]) <= held[1] + 2**20
