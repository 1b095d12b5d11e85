"""Half precision in the environment: non-finite members are isolated, and an overflow is a fault only at the lowest scale."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from esper.env.actions import Op
from esper.fusion.precision import HALF, Precision
from esper.governor.base import Cause
from esper.governor.off import NoGovernorConfig
from esper.notices import UserNotice
from esper.optimisers.loss_scale import FIRST
from esper.pool.devices import compute_exactly, find_precision

pytestmark = pytest.mark.filterwarnings("ignore::esper.notices.UserNotice")
HOSTS, FAULTY, STEPS = 4, 1, 6
OTHERS = [host for host in range(HOSTS) if host != FAULTY]


def network(env):
    return env.pool.shards[0].network


def played(env, plan_actions, fault):
    """Play an episode in which every host germinates a seed, and return what each step told."""
    env.reset(seed=0)
    fault(env)
    actions = plan_actions(*[(Op.GERMINATE, host % 3, host % 2) for host in range(HOSTS)])
    told = []
    for step in range(STEPS - 1):
        told.append(env.step(actions if step == 0 else np.zeros_like(actions))[-1])
        told[-1]["rows"] = {name: row.clone() for name, row in network(env).rows().items()}
    return told


CALM = {}
"""Episodes without a fault, by precision."""


def calm_and(fault, make_env, plan_actions, precision):
    """Return what an episode without and one with a fault told."""
    if precision not in CALM:
        CALM[precision] = played(make_env(HOSTS, STEPS, precision=precision), plan_actions, nothing)
    return CALM[precision], played(make_env(HOSTS, STEPS, precision=precision), plan_actions, fault)


def same_bits(told, others):
    """Return whether all hosts but the faulty one have the same bits after every step."""
    return all(
        one["rows"][name][OTHERS].equal(rows[OTHERS])
        for one, other in zip(told, others, strict=True)
        for name, rows in other["rows"].items()
    )


def poison(env):
    network(env).host.flat.data[FAULTY, 3] = math.nan


def overflow(env):
    network(env).host.flat.register_hook(lambda grad: grad.index_fill(0, torch.tensor([FAULTY]), math.inf))


def too_high(env):
    network(env).loss_scale.state["scale"][FAULTY] = 2.0**30


def nothing(env):
    pass


@pytest.mark.parametrize("precision", [Precision.bf16, Precision.fp16])
def test_a_faulty_host_leaves_the_others_their_bits(make_env, plan_actions, precision):
    calm, ill = calm_and(poison, make_env, plan_actions, precision)
    assert same_bits(ill, calm)
    assert ill[0]["cause"].tolist() == [Cause.NONFINITE if host == FAULTY else Cause.HEALTHY for host in range(HOSTS)]
    assert not any(info["cause"].any() for info in [*calm, *ill[1:]])


def test_overflows_adjust_the_scale_and_are_no_sickness(make_env, plan_actions):
    calm, ill = calm_and(too_high, make_env, plan_actions, Precision.fp16)
    assert same_bits(ill, calm)
    assert not any(info["cause"].any() or info["suspect"].any() for info in ill)
    assert ill[0]["overflows"].tolist() == [3 if host == FAULTY else 0 for host in range(HOSTS)]
    assert sum(info["overflows"] for info in ill)[FAULTY] < 3 * len(ill), "in the end it learns"
    assert ill[-1]["scale"][FAULTY] < 2.0**27
    assert not any(info["overflows"][FAULTY] for info in calm)


def test_a_host_that_overflows_at_the_lowest_scale_is_rolled_back(make_env, plan_actions):
    """After 12 batches, 3 in each epoch; its weights stand still meanwhile, so no loss shows it."""
    calm, ill = calm_and(overflow, make_env, plan_actions, Precision.fp16)
    assert same_bits(ill, calm)
    assert [info["cause"][FAULTY] for info in ill] == [Cause.HEALTHY] * 4 + [Cause.NONFINITE]
    assert not any(info["cause"][OTHERS].any() for info in ill)
    assert [info["scale"][FAULTY] for info in ill] == [FIRST / 2**count for count in (3, 6, 9, 12, 12)]
    assert [info["rolled_back"][FAULTY] for info in ill] == [False] * 4 + [True]


def test_without_a_governor_such_a_host_ends_the_run(make_env, plan_actions):
    env = make_env(HOSTS, STEPS, precision=Precision.fp16, governor=NoGovernorConfig())
    env.reset(seed=0)
    overflow(env)
    network(env).loss_scale.state["scale"][FAULTY] = 1.0
    with pytest.raises(FloatingPointError, match="hosts 1 have a non-finite loss, gradient or batch statistic"):
        env.step(plan_actions(*[(Op.WAIT, 0, 0)] * HOSTS))


@pytest.mark.parametrize("precision", [Precision.bf16, Precision.fp16])
def test_half_precision_is_what_computes(make_env, plan_actions, precision):
    """And what is measured is in single precision."""
    env, seen = make_env(2, 3, precision=precision), set()
    env.reset(seed=0)
    for layer in network(env).host.module.modules():
        if not list(layer.children()):
            layer.register_forward_hook(lambda layer, _, y: seen.add((type(layer).__name__, y.dtype)))
    told = env.step(plan_actions(*[(Op.WAIT, 0, 0)] * 2))[-1]
    assert seen == {
        (name, HALF[precision])
        for name in ("StackedConv2d", "StackedBatchNorm2d", "ReLU", "MaxPool2d", "GlobalMean", "StackedLinear")
    }
    assert np.isfinite(env.potential_NSK[:, :, 1]).all()
    assert told["signals"].loss_N.dtype == np.float32


def test_fp16_on_a_cpu_is_said_to_be_slow(make_env):
    slow = r"^devices\.cpu\.precision=fp16 is up to twenty times slower than fp32 on a CPU: choose bf16, or a GPU$"
    with pytest.warns(UserNotice, match=slow):
        make_env(1, 1, precision=Precision.fp16)


def test_a_gpu_without_bf16_is_refused_and_others_are_not(monkeypatch):
    monkeypatch.setattr("esper.pool.devices.find_device", torch.device)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    generations = [SimpleNamespace(major=7), SimpleNamespace(major=8)]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: generations[device.index])
    assert find_precision("cuda:1", Precision.auto) is find_precision("cuda:1", Precision.bf16) is Precision.bf16
    with pytest.raises(ValueError, match=r"^devices\.cuda:0\.precision=bf16 needs a GPU .* Tesla T4 does not: choose fp16$"):
        find_precision("cuda:0", Precision.bf16)
    assert find_precision("cuda:0", Precision.auto) is find_precision("cuda:0", Precision.fp16) is Precision.fp16


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_single_precision_on_a_gpu_is_not_tf32(device, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    torch.set_float32_matmul_precision("high")  # as scripts with Lightning do
    try:
        compute_exactly([torch.device(device)])
        assert torch.backends.cudnn.allow_tf32 == torch.backends.cuda.matmul.allow_tf32 == (device == "cpu")
        assert torch.get_float32_matmul_precision() == ("high" if device == "cpu" else "highest")
    finally:
        torch.set_float32_matmul_precision("highest")
