"""Batch-last memory: layers against PyTorch's, and which networks are computed in it."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from esper.cli.overrides import check
from esper.env.actions import Op
from esper.fusion import batch_last_layers as own
from esper.fusion import kernels
from esper.fusion.batch_last import any_strides, batch_last, can_convolve, flattens, is_batch_last, suits
from esper.fusion.chain import GroupNorm, Link, chain
from esper.fusion.fuse import Fleet, fuse
from esper.fusion.layers import ChannelScale
from esper.fusion.layout import side_by_side
from esper.fusion.precision import Precision
from esper.hosts.base import SlotSpec
from esper.hosts.cnn import CNNConfig
from esper.hosts.mlp import MLPConfig
from esper.notices import heard_by
from esper.optimisers.sgd import SGDConfig
from esper.seeds.bank import SeedBank
from esper.seeds.blueprints.base import BlueprintConfig, born_as_zero
from esper.seeds.blueprints.registry import BLUEPRINTS
from esper.seeds.gated import Gated
from esper.task.instances import Split
from esper.training.environment import build_env
from tests.fusion.alike import assert_alike, each_dtype, few, images, sizes, vectors


@each_dtype
@few
@given(sizes, st.sampled_from([1, 3, 5]), st.booleans())
def test_convolution(dtype, size, kernel, biased):
    groups, inputs, outputs, height, width, batch = size
    x, w = images(batch, groups * inputs, height, width, dtype), vectors(dtype, groups * outputs, inputs, kernel, kernel)
    b = vectors(dtype, groups * outputs) if biased else (None, None)
    y = own.convolution(x[0], w[0], b[0], groups)
    assert is_batch_last(y) or batch == 1
    assert_alike([x, w, *([b] if biased else [])], y, F.conv2d(x[1], w[1], b[1], 1, kernel // 2, 1, groups))


@each_dtype
@few
@given(sizes, st.sampled_from([1, 3]))
def test_a_rectified_convolution(dtype, size, kernel):
    groups, inputs, outputs, height, width, batch = size
    x, w = images(batch, groups * inputs, height, width, dtype), vectors(dtype, groups * outputs, inputs, kernel, kernel)
    before = F.conv2d(x[1], w[1], None, 1, kernel // 2, 1, groups)
    assert_alike([x, w], own.convolution(x[0], w[0], None, groups, rectify=True), before, rectify=True)


@each_dtype
@pytest.mark.parametrize("rectify", [False, True])
@few
@given(sizes)
def test_norms(dtype, rectify, size):
    groups, inputs, _, height, width, batch = size
    channels, batch = groups * inputs, batch + 1  # PyTorch refuses a batch norm of one value
    x, w, b = images(batch, channels, height, width, dtype), vectors(dtype, channels), vectors(dtype, channels)
    mean, var = torch.randn(channels, dtype=dtype), torch.rand(channels, dtype=dtype)
    after = mean.clone(), var.clone()
    y = own.batch_norm(x[0], w[0], b[0], mean, var, 0.3, 1e-2, rectify=rectify)
    wanted = F.batch_norm(x[1], *after, w[1], b[1], True, 0.3, 1e-2)
    torch.testing.assert_close((mean, var), after, rtol=1e-4, atol=1e-5)
    assert_alike([x, w, b], y, wanted, rectify=rectify)
    y, wanted = chain(x[0], [Link(GroupNorm(groups, 1e-2, rectify), w[0], b[0])]), F.group_norm(x[1], groups, w[1], b[1], 1e-2)
    assert_alike([x, w, b], y, wanted, rectify=rectify)


@each_dtype
@pytest.mark.parametrize("pools", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@few
@given(sizes)
def test_a_block(dtype, biased, pools, size):
    members, inputs, outputs, height, width, batch = size
    height, width, batch = height + pools, width + pools, batch + 1
    x, w = images(batch, members * inputs, height, width, dtype), vectors(dtype, members * outputs, inputs, 3, 3)
    bias, scale, shift = (vectors(dtype, members * outputs) for _ in range(3))
    mean, var = torch.randn(members * outputs, dtype=dtype), torch.rand(members * outputs, dtype=dtype)
    after, b = (mean.clone(), var.clone()), bias if biased else (None, None)
    how = {"members": members, "pools": pools}
    y = own.block(x[0], w[0], b[0], scale[0], shift[0], mean, var, 0.3, 1e-2, **how)
    conv = F.conv2d(F.max_pool2d(x[1], 2) if pools else x[1], w[1], b[1], 1, 1, 1, members)
    before = F.batch_norm(conv, *after, scale[1], shift[1], True, 0.3, 1e-2)
    torch.testing.assert_close((mean, var), after, rtol=1e-4, atol=1e-5)
    assert_alike([x, w, scale, shift, *([bias] if biased else [])], y, before, rectify=True)


@few
@given(sizes)
def test_max_pooling_is_that_of_torch_bit_for_bit(size):
    _, channels, _, height, width, batch = size
    x = images(batch, channels, height + 1, width + 1, torch.float32)
    x[0].detach().round_()[0, 0, 0, 0] = torch.nan  # rounded: ties
    x[1].detach().copy_(x[0].detach())
    y, wanted = own.max_pool(x[0]), F.max_pool2d(x[1], 2)
    assert y[0, 0, 0, 0].isnan()
    pull = torch.randn_like(wanted)
    torch.testing.assert_close(y, wanted, rtol=0, atol=0, equal_nan=True)
    assert torch.autograd.grad(y, x[0], pull)[0].equal(torch.autograd.grad(wanted, x[1], pull)[0])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_member_that_is_not_finite_stays_so_and_affects_no_other(value):
    """The governor must see it: neither ReLU nor pooling may hide it."""
    hosts = [CNNConfig(base_channels=3).build((1, 8, 8), 10, [False] * 3) for _ in range(3)]
    x_MB = torch.randn(3, 4, 1, 8, 8)
    outputs = []
    for bad in (False, True):
        fleet = Fleet(hosts)
        with torch.no_grad():
            fleet.flat[1, :3] = value if bad else 0.1
        y = fleet.bind().train()(side_by_side(x_MB, samples_last=True)).unflatten(1, (3, 10))
        y.square().sum().backward()
        outputs.append((y.detach(), fleet.flat.grad))
    for good, bad in zip(*outputs, strict=True):
        axis = 1 if good.dim() == 3 else 0
        assert bad.select(axis, 1).isnan().any()
        for member in (0, 2):
            assert bad.select(axis, member).equal(good.select(axis, member))


def test_what_is_batch_last():
    x = torch.randn(4, 3, 5, 6)
    assert is_batch_last(batch_last(x))
    assert batch_last(x).equal(x)
    last = batch_last(x)
    assert batch_last(last).data_ptr() == last.data_ptr(), "no copy"
    for other in (
        x,
        x.contiguous(memory_format=torch.channels_last),
        batch_last(x)[:2],
        batch_last(x).half(),
        batch_last(x)[:, :, 1:],
    ):
        assert not is_batch_last(other)
    assert is_batch_last(batch_last(x)[:, 1:]), "members side by side are split along the channels"
    assert not is_batch_last(batch_last(x).to("meta"))


class Own(nn.Module):
    """A layer from outside that needs channels-last memory."""

    def __init__(self, channels):
        super().__init__()
        self.map = born_as_zero(nn.Conv2d(channels, channels, 1))

    def forward(self, x):
        assert x.is_contiguous(memory_format=torch.channels_last)
        return self.map(x)


class OwnConfig(BlueprintConfig):
    def branch(self, slot):
        return Own(slot.channels)


def test_which_networks_suit_batch_last_memory():
    def host(channels=1, **keys):
        return CNNConfig(**keys).build((channels, 8, 8), 10, [False] * keys.get("blocks", 3))

    assert suits(host())
    assert suits(host(base_channels=16)), "32 channels enter its last convolution"
    assert not suits(host(base_channels=32)), "PyTorch's kernels are as fast with many channels"
    odd = host()
    odd.segments[0].append(Own(2))
    assert not suits(odd)
    assert not suits(dense := MLPConfig(width=4).build((1, 8, 8), 10, [False, True]))
    assert flattens(dense)
    assert not flattens(nn.Sequential(nn.GroupNorm(1, 1), nn.Flatten(), nn.Linear(64, 3))), "its first layer computes images"
    assert not any(
        map(flattens, (host(), host(base_channels=8), nn.Sequential(nn.Flatten()), nn.Sequential(nn.Linear(3, 3), Own(3))))
    )
    assert [
        can_convolve(nn.Conv2d(2, 2, 3, padding=1, **keys)) for keys in ({}, {"stride": 2}, {"dilation": 2}, {"bias": False})
    ] == [
        True,
        False,
        False,
        True,
    ]
    assert not can_convolve(nn.Conv2d(2, 2, 3))
    assert not can_convolve(nn.Conv2d(2, 2, 2, padding=1))
    assert not can_convolve(nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"))


def test_branches_from_outside_get_the_memory_they_were_checked_with():
    slot = SlotSpec("r0c0", 3)
    x = side_by_side(torch.randn(2, 4, 3, 5, 5), samples_last=True)
    bank = SeedBank(OwnConfig(), slot, 2, SGDConfig(), "cpu")
    assert not bank.delta(torch.arange(2), x).any()
    assert not any_strides(type("Subclass", (ChannelScale,), {})(3)), "its forward may be another"
    assert all(
        any_strides(Gated(BLUEPRINTS[name]().branch(slot), 3)) for name in ("conv_light", "norm", "attention", "depthwise")
    )


def test_hooks_and_attributes_of_a_sequence_survive_fusion():
    """Those of its ReLU, too, which is then no part of a larger step."""
    seen = list[str]()

    def make():
        layers = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU())
        layers.label = "first"
        layers.register_forward_hook(lambda *_: seen.append("sequence"))
        layers[2].register_forward_pre_hook(lambda *_: seen.append("relu"))
        return layers

    fused = fuse([make(), make()])
    fused(side_by_side(torch.randn(2, 4, 1, 6, 6), samples_last=True))
    assert fused.label == "first"
    assert seen == ["relu", "sequence"]


def test_layers_that_have_no_kernel_compute_batch_last_images_too():
    def make():
        norm, pool = nn.BatchNorm2d(4), nn.MaxPool2d(3, 1)
        return nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(inplace=True), norm, nn.ReLU(), pool)

    layers, x_MB = [make() for _ in range(2)], torch.randn(2, 4, 3, 9, 9)
    y = fuse(layers)(side_by_side(x_MB, samples_last=True))
    wanted = torch.cat([layer(x) for layer, x in zip(layers, x_MB, strict=True)], 1)
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-5)


def test_kernels_are_compiled_where_no_cache_can_be_written(monkeypatch):
    def refusing(*, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**options)

    njit = kernels.njit
    monkeypatch.setattr(kernels, "njit", refusing)

    @kernels.compiled
    def doubled(x):
        return 2 * x

    assert doubled(4) == 8


def test_compilation_is_announced():
    heard = list[tuple[str, str]]()

    @kernels.njit
    def doubled(x):
        return 2 * x

    with heard_by(lambda *text: heard.append(text)):
        for x in (1, 1.0, 2):  # two compilations, and a call of compiled code
            with kernels.announced():
                doubled(x)
    announcement = ("compiling kernels for small convolutions", "(20 seconds, once per installation)")
    assert heard == [announcement, ("", "")] * 2


def test_all_kernels_are_loaded_before_training(make_env, plan_actions):
    def signatures():
        return {name: len(kernel.signatures) for name, kernel in vars(kernels).items() if hasattr(kernel, "signatures")}

    env = make_env(8, 5)
    before = signatures()
    assert before["run_block"]
    env.reset()
    kinds = len(env.layout.blueprint_names)
    env.step(plan_actions(*[(Op.GERMINATE, host % 3, host % kinds) for host in range(8)]))
    for op in (Op.ADVANCE, Op.ADVANCE, Op.WAIT):
        env.step(plan_actions(*[(op, host % 3, 0) for host in range(8)]))
    assert signatures() == before


def test_numbers_do_not_depend_on_the_other_members():
    def make():
        first = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2))
        return nn.Sequential(first, nn.Sequential(nn.Conv2d(3, 4, 1), nn.GroupNorm(2, 4), nn.ReLU()))

    modules, x_MB = [make() for _ in range(5)], torch.randn(5, 7, 2, 6, 6)
    fleets = Fleet(modules), Fleet(modules[1:3])
    whole, part = (
        fleet.bind().train()(side_by_side(x, samples_last=True)) for fleet, x in zip(fleets, (x_MB, x_MB[1:3]), strict=True)
    )
    assert part.equal(whole[:, 4:12])
    for y in (whole, part):
        y.square().sum().backward()
    assert fleets[0].flat.grad[1:3].equal(fleets[1].flat.grad)


@pytest.mark.parametrize(
    ("keys", "batch_lasts"),
    [({}, True), ({"own_kernels": False}, False), ({"precision": Precision.bf16}, False)],
    ids=["default", "torch", "bf16"],
)
def test_environments_compute_small_hosts_in_batch_last_memory(make_env, keys, batch_lasts):
    env = make_env(3, 3, **keys)
    env.reset()
    shard = env.pool.shards[0]
    seen = list[bool]()
    shard.network.host.module.segments[0].register_forward_pre_hook(lambda _, given: seen.append(is_batch_last(given[0])))
    env.step(np.zeros(env.action_space.shape, np.int64))
    assert set(seen) == {batch_lasts}


def test_an_episode_gives_the_numbers_of_pytorch(make_env, plan_actions):
    """Seeds included: one of each kind learns, is blended in and measured."""
    ends = []
    for own_kernels in (True, False):
        env = make_env(8, 5, own_kernels=own_kernels)
        kinds = len(env.layout.blueprint_names)
        env.reset(options={"episode": 0})
        steps = [plan_actions(*[(Op.GERMINATE, host % 3, host % kinds) for host in range(8)])]
        steps += [plan_actions(*[(op, host % 3, 0) for host in range(8)]) for op in (Op.ADVANCE, Op.ADVANCE, Op.WAIT, Op.WAIT)]
        losses = [env.step(actions)[-1]["signals"].loss_N for actions in steps]
        network = env.pool.shards[0].network
        ends.append((losses, [network.host.flat.detach(), *(bank.fleet.flat.detach() for bank in network.banks.values())]))
    (losses, weights), (torchs, others) = ends
    np.testing.assert_allclose(losses, torchs, rtol=2e-3)
    for one, other in zip(weights, others, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-3)


@pytest.mark.parametrize("overrides", [[], ["devices.cpu.own_kernels=false"], ["devices.cpu.precision=bf16"]], ids=str)
def test_hosts_of_linear_layers_are_computed_in_batch_last_memory(monkeypatch, overrides):
    """Whatever the kernels and the precision, with the numbers of the usual memory."""
    losses = []
    for last in (True, False):
        monkeypatch.setattr("esper.pool.shard.flattens", lambda host, last=last: last and flattens(host))
        env = build_env(check(["task=digits_mlp", "devices=[cpu]", "hosts=3", "agent=wait", *overrides]), split=Split.TRAINING)
        env.reset(options={"episode": 0})
        seen = list[bool]()
        segment = env.pool.shards[0].network.host.module.segments[1]
        segment.register_forward_pre_hook(lambda _, given, seen=seen: seen.append(is_batch_last(given[0])))
        env.step(np.zeros(env.action_space.shape, np.int64))
        assert set(seen) == {last}
        losses.append(env.signals.loss_N)
        env.close()
    np.testing.assert_allclose(*losses, rtol=0.02 if "bf16" in str(overrides) else 1e-4)


@pytest.mark.parametrize("deviation", [0.1, 0.01, 1e-3])
def test_a_batch_norm_of_nearly_constant_channels_rounds_no_more_than_pytorchs(deviation):
    """Differences of large numbers lose digits, PyTorch's in channels-last memory most."""
    x, pull = 5 + deviation * torch.randn(64, 4, 8, 8), torch.randn(64, 4, 8, 8)

    def computed(dtype, norm):
        h = (batch_last if norm is ours else channels_last)(x.to(dtype)).requires_grad_()
        weight, bias = (torch.full([4], value, dtype=dtype, requires_grad=True) for value in (0.7, 0.3))
        mean, var = torch.zeros(4, dtype=dtype), torch.ones(4, dtype=dtype)
        y = norm(h, weight, bias, mean, var)
        return y, *torch.autograd.grad(y, [h, weight], pull.to(dtype))

    def channels_last(x):
        return x.contiguous(memory_format=torch.channels_last)

    def torchs(h, weight, bias, mean, var):
        return F.batch_norm(h, mean, var, weight, bias, True, 0.1, 1e-5)

    def ours(*given):
        return own.batch_norm(*given, 0.1, 1e-5, rectify=False)

    exact = computed(torch.float64, torchs)
    for mine, theirs, wanted in zip(computed(torch.float32, ours), computed(torch.float32, torchs), exact, strict=True):
        assert (mine - wanted).norm() < (theirs - wanted).norm()
