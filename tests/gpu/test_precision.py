"""Half precision on a GPU; what needs none runs on the CPU in bf16 where there is no GPU."""

from pathlib import Path

import numpy as np
import pytest
import torch

from esper.cli.overrides import check
from esper.env.actions import Head
from esper.fusion.fuse import Fleet
from esper.fusion.layout import side_by_side
from esper.fusion.precision import HALF, Precision, computed_in
from esper.telemetry.jsonl import read_records
from esper.training.trainer import Trainer
from tests.fusion.test_fuse import LAYERS, STREAM, random_module, samples
from tests.gpu.test_gpu import SMALL, WORLDS, environment, grown

GPU = torch.cuda.is_available()
DEVICE = "cuda:0" if GPU else "cpu"
needs_gpu = pytest.mark.skipif(not GPU, reason="there is no CUDA device on this machine")
each_half = pytest.mark.parametrize("precision", ["bf16", pytest.param("fp16", marks=needs_gpu)])


def environment_in(precision: str, world: str, folder: Path, *more: str):
    return environment(world, folder, [DEVICE], f"devices.{DEVICE}.precision={precision}", *more)


@each_half
@pytest.mark.parametrize("world", WORLDS)
def test_hosts_learn_in_half_precision_what_they_learn_in_single(world: str, precision: str, tmp_path: Path) -> None:
    fewer = [] if GPU else ["steps=5", "task.epoch_samples=128", "task.valid_samples=48"]
    if world == "transformer" and not GPU:  # which emulates bf16
        fewer = ["steps=4", "task.epoch_samples=64", "task.valid_samples=16"]
    single, half = (grown(world, environment_in(one, world, tmp_path, *fewer)) for one in ("fp32", precision))
    assert single[-1].mean() < single[0].mean() or world == "deployed"
    assert (single != half).any()
    np.testing.assert_allclose(half, single, rtol=0.1)


@each_half
@pytest.mark.parametrize("name", LAYERS)
def test_a_stacked_layer_returns_half_precision(name: str, precision: str) -> None:
    """Also norms, which autocast would compute in single precision on a GPU."""
    device, half = torch.device(DEVICE), HALF[Precision(precision)]
    layers, x_MB = [random_module(LAYERS[name][0]).float() for _ in range(3)], samples(name, 3)
    fleet, exact = Fleet(layers, device), side_by_side(x_MB).to(device)
    with torch.no_grad():
        wanted = fleet.bind().eval()(exact)
        with computed_in(Precision(precision), device):
            y = fleet.bind()(exact.to(half) if exact.is_floating_point() else exact)
    assert y.dtype is (torch.float32 if name in STREAM else half)
    assert (y - wanted).norm() <= 2 * torch.finfo(half).eps * wanted.norm()


@needs_gpu
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_resumed_run_equals_a_whole_one(precision: str, tmp_path: Path) -> None:
    overrides = [*SMALL, "task=digits", "agent=react_bandit", f"devices=[{DEVICE}]", f"devices.{DEVICE}.precision={precision}"]
    for place, runs in (("whole", ["updates=3"]), ("parts", ["updates=2", "updates=3"])):
        for more in runs:
            Trainer(check([*overrides, more]), tmp_path / place).run()
    whole, parts = (read_records(tmp_path / place / "metrics.jsonl") for place in ("whole", "parts"))
    assert whole[-1] == parts[-1]


@needs_gpu
@pytest.mark.parametrize("world", ["cnn", "mlp", "transformer"])
def test_an_overflow_affects_one_host_only(world: str, tmp_path: Path) -> None:
    losses = []
    for scale in (None, 2.0**30):
        env = environment_in("fp16", world, tmp_path)
        env.reset(options={"episode": 0})
        if scale:
            env.pool.shards[0].network.loss_scale.state["scale"][1] = scale
        infos = [env.step(np.zeros((4, len(Head)), np.int64))[-1] for _ in range(4)]
        assert not any(info["cause"].any() for info in infos)
        assert (infos[0]["overflows"][1] > 3) == bool(scale)
        losses.append(np.array([info["signals"].loss_N for info in infos]))
    np.testing.assert_allclose(losses[1][:, [0, 2, 3]], losses[0][:, [0, 2, 3]], rtol=1e-3)


@needs_gpu
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_training_takes_less_memory_in_half_precision(precision: str, tmp_path: Path) -> None:
    peaks = []
    for one in ("fp32", precision):
        env = environment_in(one, "cnn", tmp_path, "host.base_channels=32", "task.batch_size=512")
        env.reset(options={"episode": 0})
        env.pool.train(0)
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        env.pool.train(1)
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated() - held)
        env.close()
        del env
    assert peaks[1] < 0.8 * peaks[0]
