"""Optimisers of members, against `torch.optim` on each member alone."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import esper
from esper.cli.overrides import check
from esper.fusion.layout import Layout
from esper.growth.network import GrowingNetwork
from esper.lifecycle.roles import Roles
from esper.optimisers.adamw import AdamWConfig
from esper.optimisers.base import MemberOptimiser, OptimiserConfig, SeedSettingsConfig
from esper.optimisers.schedules import RateSchedule
from esper.optimisers.sgd import NesterovConfig, SGDConfig
from tests.reference_host import WideConfig, make_host, optimiser_step, plain_optimiser

CONFIGS = {
    "sgd": SGDConfig(weight_decay=0.0),
    "sgd_decay": SGDConfig(weight_decay=0.01, max_norm=0.5),
    "sgd_plain": SGDConfig(momentum=0.0, learning_rate=0.3, max_norm=math.inf),
    "nesterov": NesterovConfig(weight_decay=0.01, max_norm=0.5),
    "adamw": AdamWConfig(learning_rate=0.1, weight_decay=0.1),
    "adamw_plain": AdamWConfig(weight_decay=0.0, beta1=0.0, beta2=0.9, eps=1e-3, max_norm=math.inf),
}
each = pytest.mark.parametrize("config", list(CONFIGS.values()), ids=list(CONFIGS))
KINDS = [SGDConfig(weight_decay=0.01), NesterovConfig(), AdamWConfig()]
SIZES = torch.tensor([1e-3, 0.1, 1.0, 1e6])[:, None]


def bits(tensor):
    """The bit patterns, so that NaN equals NaN and -0.0 differs from 0.0."""
    return tensor.detach().contiguous().view(torch.int32)


def alone(rows, config):
    """Return every row as a parameter of its own, with torch's optimiser."""
    parts = [nn.Parameter(row.clone()) for row in rows.detach()]
    return parts, [plain_optimiser([part], config) for part in parts]


def step_alone(part, optimiser, grad, max_norm):
    part.grad = grad.clone()
    nn.utils.clip_grad_norm_([part], max_norm)
    optimiser.step()


@each
def test_a_member_takes_the_steps_of_torch_with_clipping(float64, config):
    flat = torch.randn(4, 7).requires_grad_()
    parts, theirs = alone(flat, config)
    mine, (at_host, _) = config.build(flat), config.at(0.5)
    for _ in range(6):
        grad = torch.randn(4, 7) * SIZES
        flat.grad = grad.clone()
        mine.step(at_host)
        assert flat.grad is None
        for part, optimiser, g in zip(parts, theirs, grad, strict=True):
            step_alone(part, optimiser, g, config.max_norm)
        assert torch.allclose(flat, torch.stack(list(parts)), rtol=1e-12, atol=1e-12)


@each
def test_newborn_and_resting_members_are_as_old_as_their_own_steps(float64, config):
    """Row 1 rests now and then, row 2 starts anew; torch steps each row alone, with a new optimiser for the newborn."""
    flat = torch.randn(3, 5).requires_grad_()
    parts, theirs = alone(flat, config)
    mine, (at_host, _) = config.build(flat), config.at(0.0)
    for turn in range(8):
        if turn == 3:
            flat.data[2] = newborn = torch.randn(5)
            mine.forget([2])
            parts[2].data.copy_(newborn)
            theirs[2] = plain_optimiser([parts[2]], config)
        takes = torch.tensor([[True], [turn % 3 > 0], [True]])
        flat.grad = torch.randn(3, 5)
        for part, optimiser, grad, taken in zip(parts, theirs, flat.grad.clone(), takes, strict=True):
            if taken:
                step_alone(part, optimiser, grad, config.max_norm)
        mine.step(at_host, takes)
        assert torch.allclose(flat, torch.stack(list(parts)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("config", KINDS, ids=["sgd", "nesterov", "adamw"])
@given(members=st.integers(2, 4), seed=st.integers(0, 99), poison=st.sampled_from([0.0, 1e6, math.inf, math.nan]))
@settings(deadline=None, max_examples=20)
def test_members_do_not_affect_each_other(config, members, seed, poison):
    """Whatever the gradient, the settings and the steps of row 0, the other rows keep every bit."""
    generator = torch.Generator().manual_seed(seed)
    born, rest = torch.randn(members, 5, generator=generator), torch.arange(members)[:, None] > 0
    networks = [born.clone().requires_grad_() for _ in range(2)]
    for disturbed, flat in enumerate(networks):
        mine, (at_host, at_seed) = config.build(flat), config.at(0.0)
        draws = torch.Generator().manual_seed(seed)
        for turn in range(4):
            flat.grad = torch.randn(members, 5, generator=draws)
            if not disturbed:
                mine.step(at_seed, None if turn % 2 else torch.ones(members, 1, dtype=torch.bool))
                continue
            flat.grad[0] *= poison
            rate = torch.where(rest, 1.0, 3.0)
            mine.step(at_host.where(~rest, at_seed).scaled(rate), rest if turn % 2 else rest | True)
            if turn == 2:
                mine.forget([0])
        assert mine.state
    assert bits(networks[0][1:]).equal(bits(networks[1][1:]))
    assert not bits(networks[0][0]).equal(bits(networks[1][0]))


@pytest.mark.parametrize("config", KINDS, ids=["sgd", "nesterov", "adamw"])
def test_rows_that_take_no_step_keep_their_bits(config):
    flat = torch.randn(3, 5).requires_grad_()
    mine, takes = config.build(flat, warmup_batches=4), torch.tensor([[True], [False], [True]])
    for turn in range(3):
        before = [rows.detach().clone() for rows in (flat, *mine.state.values())]
        flat.grad = torch.randn(3, 5)
        flat.grad[1] = torch.nan if turn == 2 else 1.0
        mine.step(config.at(0.0)[0], takes)
        for old, rows in zip(before, (flat, *mine.state.values()), strict=True):
            assert bits(rows[1]).equal(bits(old[1]))
            assert not rows[0].equal(old[0])
        assert flat.isfinite().all()
    mine.step(config.at(0.0)[0])  # without a gradient: nothing
    assert flat.isfinite().all()
    assert mine.state["steps"].tolist() == [[3.0], [0.0], [3.0]]


def test_a_warm_up_counts_the_steps_of_each_row(float64):
    config, factors = (
        SGDConfig(momentum=0.0, weight_decay=0.0),
        [[0.125, 0.375, 0.625, 0.875, 1, 1], [1, 1, 0.125, 0.375, 0.625, 0.875]],
    )
    flat = torch.zeros(2, 1).requires_grad_()
    mine = config.build(flat, warmup_batches=4)
    mine.state["steps"][1] = 5.0
    for step in range(6):
        if step == 2:
            mine.forget([1])
        before = flat.detach().clone()
        flat.grad = torch.full((2, 1), 0.5)
        mine.step(config.at(0.0)[1])
        assert (before - flat).flatten().tolist() == pytest.approx([0.05 * 0.5 * row[step] for row in factors], rel=1e-12)


def test_fossils_have_no_warm_up():
    config, flat = SGDConfig(momentum=0.0, weight_decay=0.0), torch.zeros(2, 1).requires_grad_()
    flat.grad = torch.full((2, 1), 0.5)
    config.build(flat, warmup_batches=4).step(config.at(0.0)[1], fossil_M1=torch.tensor([[True], [False]]))
    assert (-flat).flatten().tolist() == pytest.approx([0.05 * 0.5, 0.05 * 0.5 / 8])


def test_settings_for_seeds_are_those_for_hosts_unless_they_are_given():
    host, seed = AdamWConfig(learning_rate=0.2, weight_decay=0.1).at(0.0)
    assert (seed.learning_rate, seed.weight_decay, seed.max_norm) == (0.2, 0.0, 1.0)
    own = SeedSettingsConfig(learning_rate=0.3, weight_decay=None, max_norm=2.0)
    host, seed = AdamWConfig(learning_rate=0.2, weight_decay=0.1, seeds=own, schedule=RateSchedule.cosine, warmup=0.5).at(0.25)
    assert (host.learning_rate, host.weight_decay, host.max_norm) == (0.1, 0.1, 1.0)
    assert (seed.learning_rate, seed.weight_decay, seed.max_norm) == (0.3, 0.1, 2.0), "the warm-up is that of hosts"
    host, seed = AdamWConfig(learning_rate=0.2, seeds=own, schedule=RateSchedule.cosine, warmup=0.5).at(0.75)
    assert (host.learning_rate, seed.learning_rate) == pytest.approx((0.1, 0.15)), "the fall is that of both"


def test_norms_are_means_before_clipping_since_the_last_call():
    flat, config = torch.zeros(2, 4, requires_grad=True), SGDConfig(max_norm=0.1)
    sgd, (at_host, _) = config.build(flat), config.at(0.0)
    assert sgd.take_norms().isnan().all()
    for size in (1.0, 3.0):
        flat.grad = torch.tensor([[3.0, 4.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]) * size
        sgd.step(at_host)
    assert sgd.take_norms().tolist() == [10.0, 0.0]
    flat.grad = torch.full((2, 4), torch.nan)
    sgd.step(at_host, torch.zeros(2, 1, dtype=torch.bool))
    assert sgd.take_norms().isinf().all()
    flat.grad = torch.ones(2, 4)
    sgd.step(at_host)
    assert sgd.take_norms().tolist() == [2.0, 2.0]  # a bad epoch is forgotten


@dataclass(kw_only=True, slots=True)
class SignConfig(OptimiserConfig):
    """Steps of one size."""

    def build(self, flat, warmup_batches=0):
        return MemberSign(flat, [], warmup_batches=warmup_batches)


class MemberSign(MemberOptimiser):
    """An optimiser without state."""

    def update(self, grad, settings, takes_M1):
        change = grad.sign() * settings.learning_rate
        self.flat.sub_(change if takes_M1 is None else torch.where(takes_M1, change, 0.0))


def test_an_optimiser_may_come_from_outside(own_parts):
    esper.register("optimiser", "sign", SignConfig)
    config = check(["optimiser=sign", "optimiser.learning_rate=0.5", "optimiser.seeds.warmup_batches=2"]).optimiser
    network = GrowingNetwork([make_host(Layout.VECTORS, 0)] * 2, [WideConfig()], optimiser=config)
    before, bank = network.host.flat.detach().clone(), network.bank(0, 0)
    bank.plant(0, torch.Generator())
    one = np.array([[True, False, False], [False] * 3])
    network.arrange(
        Roles(
            blueprint=one - 1, blend=one * 0, alpha=np.float32(one), behind=one & False, open=one, learns=one, fossil=one & False
        )
    )
    assert list(network.rows()) == ["host", "seed/0/0", "seed_steps/0/0"]
    born = bank.fleet.flat.detach().clone()
    network.host.flat.grad, bank.fleet.flat.grad = torch.ones_like(before), -torch.ones_like(born)
    optimiser_step(network)
    assert torch.allclose(before - network.host.flat, torch.tensor(0.5), atol=1e-6)
    assert torch.allclose(bank.fleet.flat - born, torch.tensor([[0.125], [0.0]]), atol=1e-6)
    with pytest.raises(TypeError, match="OptimiserConfig does not define build"):
        OptimiserConfig().build(torch.zeros(1, 1))
