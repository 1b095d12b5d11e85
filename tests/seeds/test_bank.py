"""Per-member optimisers and seed banks."""

import numpy as np
import pytest
import torch
from torch import nn

from esper.fusion.fuse import flatten_parameters
from esper.fusion.stacked import FusionError
from esper.hosts.base import SlotSpec
from esper.lifecycle.roles import Blend
from esper.measure.costs import count_parameters
from esper.seeds.bank import MemberSGD, RowSettings, SeedBank, SGDConfig, newborn
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.blueprints.cnn import ConvLightConfig
from esper.seeds.blueprints.plain import NormConfig
from esper.seeds.gated import Gate, Gated

SLOT = SlotSpec("r0c0", 3)


def bits(tensor):
    """The bit patterns, so that NaN equals NaN and -0.0 differs from 0.0."""
    return tensor.detach().contiguous().view(torch.int32)


# ---- optimisers


@pytest.mark.parametrize(
    "config",
    [
        SGDConfig(),
        SGDConfig(weight_decay=0.01, max_norm=0.5),
        SGDConfig(momentum=0.0, learning_rate=0.3, max_norm=float("inf")),
    ],
    ids=["momentum", "decay", "plain"],
)
def test_member_sgd_is_torch_sgd_with_clipping_for_each_member(float64, config):
    flat = torch.randn(4, 7).requires_grad_()
    alone = [nn.Parameter(row.clone()) for row in flat.detach()]
    mine = MemberSGD(flat, config)
    theirs = [torch.optim.SGD([row], config.learning_rate, config.momentum, weight_decay=config.weight_decay) for row in alone]
    size = torch.tensor([1e-3, 0.1, 1.0, 1e6])[:, None]
    for _ in range(6):
        grad = torch.randn(4, 7) * size
        flat.grad = grad.clone()
        mine.step()
        assert flat.grad is None
        for row, optimiser, g in zip(alone, theirs, grad, strict=True):
            row.grad = g.clone()
            nn.utils.clip_grad_norm_([row], config.max_norm)
            optimiser.step()
        assert torch.allclose(flat, torch.stack(list(alone)), rtol=1e-12, atol=1e-12)


def test_rows_that_are_not_active_keep_their_bits():
    flat = torch.randn(3, 5).requires_grad_()
    sgd = MemberSGD(flat, SGDConfig(weight_decay=0.1))
    active = torch.tensor([[True], [False], [True]])
    for turn in range(3):
        before, momentum = flat.detach().clone(), sgd.momentum.clone()
        flat.grad = torch.randn(3, 5)
        flat.grad[1] = torch.nan if turn == 2 else 1.0
        sgd.step(active)
        assert bits(flat[1]).equal(bits(before[1]))
        assert bits(sgd.momentum[1]).equal(bits(momentum[1]))
        assert not flat[0].equal(before[0])
        assert flat.isfinite().all()
    sgd.step()  # without a gradient: nothing
    assert flat.isfinite().all()


def test_active_rows_step_independently_of_inactive_rows(float64):
    one, two = (torch.ones(2, 3).requires_grad_() for _ in range(2))
    all_of, some = MemberSGD(one, SGDConfig(weight_decay=0.1)), MemberSGD(two, SGDConfig(weight_decay=0.1))
    for turn in range(3):
        for flat in (one, two):
            flat.grad = torch.full((2, 3), 0.1 * (turn + 1))
        all_of.step()
        some.step(torch.tensor([[True], [False]]))
    assert torch.allclose(one[0], two[0], atol=1e-14)


def test_rows_may_have_settings_of_their_own(float64):
    configs = [SGDConfig(), SGDConfig(learning_rate=0.3, momentum=0.5, weight_decay=0.1, max_norm=0.2), SGDConfig(momentum=0.0)]
    rate = torch.tensor([[1.0], [1.0], [3.0]])
    flat = torch.randn(3, 5).requires_grad_()
    alone = [flat.detach()[row : row + 1].clone().requires_grad_() for row in range(3)]
    mine = MemberSGD(flat, SGDConfig(learning_rate=9.0))
    theirs = [MemberSGD(row, config, rate[i : i + 1]) for i, (row, config) in enumerate(zip(alone, configs, strict=True))]
    settings = RowSettings.of(configs, flat).faster(rate)
    for _ in range(4):
        flat.grad = torch.randn(3, 5)
        for row, grad in zip(alone, flat.grad.split(1), strict=True):
            row.grad = grad.clone()
        for optimiser in theirs:
            optimiser.step()
        mine.step(torch.ones(3, 1, dtype=torch.bool), settings)
        assert torch.allclose(flat, torch.cat(alone), atol=1e-14)


@pytest.mark.parametrize("active", [None, torch.ones(3, 1, dtype=torch.bool)])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_a_row_does_not_depend_on_the_settings_of_others(active, decay):
    """A host's numbers must not depend on whether another host of its shard has a learning rate of its own."""
    config = SGDConfig(weight_decay=decay)
    flats = [torch.arange(15.0).view(3, 5).div(7).requires_grad_() for _ in range(3)]
    factor = torch.tensor([[1.0], [1.0], [2.0]])
    plain, factored, set_apart = MemberSGD(flats[0], config), MemberSGD(flats[1], config, factor), MemberSGD(flats[2], config)
    settings = RowSettings.of([config, config, SGDConfig(learning_rate=1.0)], flats[2])
    for turn in range(4):
        for flat in flats:
            flat.grad = torch.sin(torch.arange(15.0) + turn).view(3, 5)
        plain.step(active)
        factored.step(active)
        set_apart.step(active, settings)
        for flat in flats[1:]:
            assert flat[:2].equal(flats[0][:2])
            assert not flat[2].equal(flats[0][2])


def test_norms_are_means_before_clipping_since_the_last_call():
    flat = torch.zeros(2, 4, requires_grad=True)
    sgd = MemberSGD(flat, SGDConfig(max_norm=0.1))
    assert sgd.take_norms().isnan().all()
    for size in (1.0, 3.0):
        flat.grad = torch.tensor([[3.0, 4.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]) * size
        sgd.step()
    assert sgd.take_norms().tolist() == [10.0, 0.0]
    flat.grad = torch.full((2, 4), torch.nan)
    sgd.step(torch.zeros(2, 1, dtype=torch.bool))
    assert sgd.take_norms().isinf().all()
    flat.grad = torch.ones(2, 4)
    sgd.step()
    assert sgd.take_norms().tolist() == [2.0, 2.0]  # a bad epoch is forgotten


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("learning_rate", 0.0, "above 0"),
        ("learning_rate", float("nan"), "above 0"),
        ("momentum", 1.0, r"in \[0, 1\)"),
        ("momentum", -0.1, r"in \[0, 1\)"),
        ("weight_decay", -1e-4, "at least 0"),
        ("max_norm", 0.0, "above 0"),
        ("max_norm", -1.0, "above 0"),
    ],
)
def test_optimiser_settings_out_of_range_are_refused(field, value, rule):
    with pytest.raises(ValueError, match=rf"task\.host_optimiser\.{field} must be .*{rule}"):
        SGDConfig(**{field: value}).check("task.host_optimiser")
    SGDConfig(max_norm=float("inf"), momentum=0.0).check("x")


def test_a_large_host_gradient_does_not_affect_seeds(grown):
    calm, loud = grown(3), grown(3)
    for population in (calm, loud):
        population.network.train()
        _, ys, x = population.batch(3, 12, 0)
        population.network.backward(x, torch.stack(ys))
    loud.network.host.flat.grad *= 1e12
    for population in (calm, loud):
        population.network.step()
    for key, bank in calm.network.banks.items():
        assert bank.fleet.flat.equal(loud.network.banks[key].fleet.flat)
    moved = (loud.network.host.flat - grown(3).network.host.flat).norm(dim=1)
    assert (moved <= 0.05 * 1.2).all()  # one step of the learning rate times the largest norm, and some decay


@pytest.mark.parametrize(
    "weight_decay",
    [
        0.0,
        0.01,
    ],
)
@pytest.mark.parametrize("rest", ["all_learn", "some_learn"])
def test_an_inactive_seed_keeps_its_bits(grown, weight_decay, rest):
    population = grown(3, seed_sgd=SGDConfig(weight_decay=weight_decay))
    network = population.network
    population.blueprint[:], population.alpha[:], population.behind[:] = 1, 0.5, False
    population.learns[:] = True
    for key in [(slot, 1) for slot in range(3)]:
        for member in range(3):
            network.bank(*key).plant(member, torch.Generator().manual_seed(member))

    def train():
        population.arrange()
        network.train()
        _, ys, x = population.batch(3, 12, 0)
        network.backward(x, torch.stack(ys))
        network.step()

    train()
    population.blueprint[1] = -1
    population.learns[0, 0] = rest == "all_learn"
    before = {name: row.clone() for name, row in network.rows().items()}
    train()
    for name, row in network.rows().items():
        if name.startswith("seed") and name.endswith("/1"):
            assert bits(row[1]).equal(bits(before[name][1])), name
            assert not row[2].equal(before[name][2])
    if rest == "some_learn":
        assert network.rows()["seed/0/1"][0].equal(before["seed/0/1"][0])
    assert not network.rows()["seed/1/1"][0].equal(before["seed/1/1"][0])


# ---- banks


def test_planting_writes_one_row_determined_by_its_generator():
    bank = SeedBank(ConvLightConfig(), SLOT, 4, SGDConfig(), "cpu")
    assert not bank.fleet.flat.any()
    bank.optimiser.momentum[:] = 7.0
    torch.manual_seed(123)
    state = torch.random.get_rng_state()
    bank.plant(2, torch.Generator().manual_seed(5))
    assert torch.random.get_rng_state().equal(state)
    assert bank.fleet.flat[2].equal(newborn(ConvLightConfig(), SLOT, torch.Generator().manual_seed(5)))
    assert not bank.fleet.flat[[0, 1, 3]].any()
    assert not bank.optimiser.momentum[2].any()
    assert (bank.optimiser.momentum[[0, 1, 3]] == 7.0).all()
    other = newborn(ConvLightConfig(), SLOT, torch.Generator().manual_seed(6))
    assert not bank.fleet.flat[2].equal(other)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        assert flatten_parameters(ConvLightConfig().branch(SLOT)).equal(bank.fleet.flat[2])


def test_clearing_zeroes_parameters_and_momentum():
    bank = SeedBank(NormConfig(), SLOT, 4, SGDConfig(), "cpu")
    for member in range(4):
        bank.plant(member, torch.Generator().manual_seed(member))
    bank.optimiser.momentum[:] = 1.0
    bank.clear([0, 3])
    assert bank.fleet.flat.any(dim=1).tolist() == [False, True, True, False]
    assert bank.optimiser.momentum.any(dim=1).tolist() == [False, True, True, False]


def test_a_branch_with_buffers_is_refused():
    class WithBatchNorm(BlueprintConfig):
        def branch(self, slot):
            return nn.Sequential(nn.BatchNorm2d(slot.channels))

    with pytest.raises(FusionError, match="WithBatchNorm has buffers"):
        SeedBank(WithBatchNorm(), SLOT, 2, SGDConfig(), "cpu")


def test_a_gated_seed_draws_its_branch_before_its_gate():
    bank = SeedBank(ConvLightConfig(), SLOT, 3, SGDConfig(), "cpu", gated=True)
    plain = newborn(ConvLightConfig(), SLOT, torch.Generator().manual_seed(5))
    bank.plant(1, torch.Generator().manual_seed(5))
    assert bank.fleet.flat.shape[1] == len(plain) + count_parameters(Gate(3))
    assert bank.fleet.flat[1, : len(plain)].equal(plain)  # the same initial weights whatever the blend
    assert bank.fleet.flat[1, len(plain) :].any()
    assert isinstance(bank.fleet.member(1), Gated)
    bank.clear([1])
    assert not bank.fleet.flat.any()


def test_gated_seeds_have_separate_banks_and_are_cleared_with_their_gate(grown):
    network = grown(2).network
    network.plant(0, 0, 1, torch.Generator().manual_seed(1), Blend.GATE)
    network.plant(1, 0, 1, torch.Generator().manual_seed(1), Blend.MULTIPLY)
    gated, plain = (network.bank(0, 1, kind).fleet for kind in (True, False))
    assert gated.flat.any(dim=1).tolist() == [True, False]
    assert plain.flat.any(dim=1).tolist()[1]
    network.clear(0, 0, 1)
    network.clear(1, 0, 1)
    assert not gated.flat.any()
    assert not plain.flat[1].any()


def test_a_gate_learns_from_the_first_step_within_the_clipping_of_its_seed(grown):
    population = grown(3, blends=(Blend.GATE,), seed_sgd=SGDConfig(max_norm=1e-3))
    population.only(alpha=0.1)
    network = population.network
    before = {key: bank.fleet.flat.detach().clone() for key, bank in network.banks.items()}
    network.train()
    _, ys, x = population.batch(3, 12, 0)
    network.backward(x, torch.stack(ys))
    network.step()
    for member, slot in np.argwhere(population.blueprint >= 0):
        key = (int(slot), int(population.blueprint[member, slot]), True)
        moved = (network.banks[key].fleet.flat - before[key])[member]
        assert moved[-count_parameters(Gate(network.slots[slot].channels)) :].any()
        assert moved.norm().item() == pytest.approx(0.05 * 1e-3, rel=0.02)  # the whole step: one norm for branch and gate
