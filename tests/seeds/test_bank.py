"""Seed banks, and the isolation of their seeds."""

import numpy as np
import pytest
import torch
from torch import nn

from esper.fusion.batch_last import batch_last
from esper.fusion.fuse import flatten_parameters
from esper.fusion.layout import Layout, take_members
from esper.fusion.stacked import FusionError
from esper.hosts.base import SlotSpec
from esper.lifecycle.roles import Blend
from esper.measure.costs import count_parameters
from esper.optimisers.adamw import AdamWConfig
from esper.optimisers.base import SeedSettingsConfig
from esper.optimisers.sgd import SGDConfig
from esper.seeds.bank import SeedBank, newborn
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.blueprints.cnn import ConvLightConfig
from esper.seeds.blueprints.plain import NormConfig
from esper.seeds.blueprints.registry import BLUEPRINTS
from esper.seeds.gated import Gate, Gated
from tests.reference_host import optimiser_step

SLOT = SlotSpec("r0c0", 3)


def bits(tensor):
    """The bit patterns, so that NaN equals NaN and -0.0 differs from 0.0."""
    return tensor.detach().contiguous().view(torch.int32)


def test_a_large_host_gradient_does_not_affect_seeds(grown):
    calm, loud = grown(3), grown(3)
    for population in (calm, loud):
        population.network.train()
        _, ys, x = population.batch(3, 12, 0)
        population.network.backward(x, torch.stack(ys))
    loud.network.host.flat.grad *= 1e12
    for population in (calm, loud):
        optimiser_step(population.network)
    for key, bank in calm.network.banks.items():
        assert bank.fleet.flat.equal(loud.network.banks[key].fleet.flat)
    moved = (loud.network.host.flat - grown(3).network.host.flat).norm(dim=1)
    assert (moved <= 0.05 * 1.2).all()  # one step of the learning rate times the largest norm, and some decay


@pytest.mark.parametrize("gated", [False, True])
def test_a_bank_draws_nothing_from_the_global_stream(gated):
    """An agent in the script that steps an environment may draw its actions from there."""
    before = torch.random.get_rng_state()
    SeedBank(ConvLightConfig(), SLOT, 2, SGDConfig(), "cpu", gated=gated)
    assert torch.random.get_rng_state().equal(before)


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("rest", ["all_learn", "some_learn"])
@pytest.mark.parametrize("make", [SGDConfig, AdamWConfig])
def test_an_inactive_seed_keeps_its_bits(grown, weight_decay, rest, make):
    population = grown(3, optimiser=make(weight_decay=5e-3, seeds=SeedSettingsConfig(weight_decay=weight_decay)))
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
        optimiser_step(network)

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


@pytest.mark.parametrize("optimiser", [SGDConfig(), AdamWConfig()], ids=["sgd", "adamw"])
def test_planting_writes_one_row_determined_by_its_generator(optimiser):
    bank = SeedBank(ConvLightConfig(), SLOT, 4, optimiser, "cpu")
    assert not bank.fleet.flat.any()
    for rows in bank.optimiser.state.values():
        rows[:] = 7.0
    torch.manual_seed(123)
    state = torch.random.get_rng_state()
    bank.plant(2, torch.Generator().manual_seed(5))
    assert torch.random.get_rng_state().equal(state)
    assert bank.fleet.flat[2].equal(newborn(ConvLightConfig(), SLOT, torch.Generator().manual_seed(5)))
    assert not bank.fleet.flat[[0, 1, 3]].any()
    assert not any(rows[2].any() for rows in bank.optimiser.state.values())
    assert all((rows[[0, 1, 3]] == 7.0).all() for rows in bank.optimiser.state.values())
    other = newborn(ConvLightConfig(), SLOT, torch.Generator().manual_seed(6))
    assert not bank.fleet.flat[2].equal(other)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        assert flatten_parameters(ConvLightConfig().branch(SLOT)).equal(bank.fleet.flat[2])


def test_clearing_zeroes_parameters_and_optimiser_state():
    bank = SeedBank(NormConfig(), SLOT, 4, AdamWConfig(), "cpu")
    for member in range(4):
        bank.plant(member, torch.Generator().manual_seed(member))
    for rows in bank.optimiser.state.values():
        rows[:] = 1.0
    bank.clear([0, 3])
    assert bank.fleet.flat.any(dim=1).tolist() == [False, True, True, False]
    assert set(bank.optimiser.state) == {"mean", "square", "steps"}
    assert all(rows.any(dim=1).tolist() == [False, True, True, False] for rows in bank.optimiser.state.values())


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
    population = grown(3, blends=(Blend.GATE,), optimiser=SGDConfig(seeds=SeedSettingsConfig(max_norm=1e-3)))
    population.only(alpha=0.1)
    network = population.network
    before = {key: bank.fleet.flat.detach().clone() for key, bank in network.banks.items()}
    network.train()
    _, ys, x = population.batch(3, 12, 0)
    network.backward(x, torch.stack(ys))
    optimiser_step(network)
    for member, slot in np.argwhere(population.blueprint >= 0):
        key = (int(slot), int(population.blueprint[member, slot]), True)
        moved = (network.banks[key].fleet.flat - before[key])[member]
        assert moved[-count_parameters(Gate(network.slots[slot].channels)) :].any()
        assert moved.norm().item() == pytest.approx(0.05 * 1e-3, rel=0.02)  # the whole step: one norm for branch and gate


FEATURES = {
    "own kernels": (SlotSpec("r0c0", 4), lambda: batch_last(torch.randn(16, 12, 6, 6))),
    "grouped": (SlotSpec("r0c0", 4), lambda: torch.randn(16, 12, 6, 6).contiguous(memory_format=torch.channels_last)),
    "one by one": (SlotSpec("r0c0", 8), lambda: torch.randn(33, 24, 24, 24).contiguous(memory_format=torch.channels_last)),
    "sequences": (SlotSpec("l0", 32, layout=Layout.SEQUENCES), lambda: torch.randn(48, 64, 32)),
    "vectors": (SlotSpec("h0", 16, layout=Layout.VECTORS), lambda: torch.randn(16, 48)),
    "vectors, batch-last": (SlotSpec("h0", 16, layout=Layout.VECTORS), lambda: batch_last(torch.randn(128, 48))),
    "few vectors, batch-last": (SlotSpec("h0", 10, layout=Layout.VECTORS), lambda: batch_last(torch.randn(50, 30))),
}


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("blueprint", BLUEPRINTS)
def test_the_numbers_of_a_member_do_not_depend_on_whether_others_hold_a_seed(blueprint, features, gated):
    """Not a single bit, except that torch's sums over images, and the matrix products of gates, round by their number."""
    slot, make = FEATURES[features]
    config = BLUEPRINTS[blueprint]()
    if config.obstacle(slot):
        pytest.skip("does not grow there")
    bank = SeedBank(config, slot, 4, SGDConfig(), "cpu", gated=gated)
    with torch.no_grad():
        bank.fleet.flat.normal_()
    x, results, piece = make(), [], {1: 0, 2: 1, 0: 2, 3: 1}  # a piece of the features for each row
    slope = torch.randn_like(x)
    assert bank._one_by_one(x, 3) == (features == "one by one")
    for chosen in ([1], [1, 2], [0, 1, 3]):
        pieces, here, bank.fleet.flat.grad = torch.tensor([piece[row] for row in chosen]), torch.tensor([chosen.index(1)]), None
        part = take_members(x, pieces, 3).requires_grad_()
        delta = bank.delta(torch.tensor(chosen), part)
        delta.backward(take_members(slope, pieces, 3))
        of_member = [take_members(whole, here, len(chosen)) for whole in (delta.detach(), part.grad)]
        results.append([*of_member, bank.fleet.flat.grad[1]])
    summed = (gated or blueprint in ("norm", "attention")) and features in ("own kernels", "grouped")
    summed |= gated and features == "few vectors, batch-last"
    for alone, beside in [*zip(results[0], results[1], strict=True), *zip(results[0], results[2], strict=True)]:
        torch.testing.assert_close(alone, beside, rtol=1e-5 * summed, atol=1e-4 * summed)


class SharedConfig(BlueprintConfig):
    """A convolution with a bias that is used twice."""

    def branch(self, slot):
        conv = nn.Conv2d(slot.channels, slot.channels, 3, padding=1)
        return nn.Sequential(conv, nn.Identity(), nn.ReLU(), conv, nn.ReLU())


@pytest.mark.parametrize("learns", [None, (True, False)], ids=["all learn", "one learns"])
@pytest.mark.parametrize("blueprint", ["conv_small", "conv_light", "conv_heavy", "depthwise", "bottleneck", "shared"])
def test_a_seed_that_is_one_chain_has_the_bits_of_its_layers(blueprint, learns):
    """A hook has the layers called one after another."""
    config = SharedConfig() if blueprint == "shared" else BLUEPRINTS[blueprint]()
    bank, rows = SeedBank(config, SlotSpec("r0c0", 4), 5, SGDConfig(), "cpu"), torch.tensor([3, 1])
    learns_L1 = None if learns is None else torch.tensor(learns)[:, None]
    with torch.no_grad():
        bank.fleet.flat.normal_()
    x, slope = (batch_last(torch.randn(16, 8, 5, 6)) for _ in range(2))
    results, calls = [], []
    for _ in range(2):
        bank.fleet.flat.grad = None
        given = x.clone().requires_grad_()
        delta = bank.delta(rows, given, learns_L1)
        delta.backward(slope)
        with torch.no_grad():
            again = bank.delta(torch.tensor([1, 1, 3, 1, 0]), batch_last(x.repeat(1, 3, 1, 1)[:, :20]), repeats=True)
        results.append([delta.detach(), given.grad, bank.fleet.flat.grad, again])
        calls.append(bank.fleet.module.register_forward_hook(lambda *_: calls.append(None)))
    assert calls.count(None) == 2, "the second time, the module was called"
    for ours, layers in zip(*results, strict=True):
        assert ours.equal(layers)
