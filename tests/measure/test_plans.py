"""Plans: their settings, shared computation that changes no result, and the cost model of the docs."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from docs.tables.counterfactuals import plan_cost
from esper.fusion.layout import Layout
from esper.growth.variants import Fork
from esper.hosts.base import Host, segments_of
from esper.hosts.cnn import CNNConfig
from esper.lifecycle.roles import Blend
from esper.measure.attribution import draw_orders, subsets
from esper.measure.plans import Plan, coalitions
from tests.reference_host import forward, variants


def test_settings_of_each_plan():
    found = {plan: coalitions(plan, 0b1011, 0b0001) for plan in Plan}
    assert found == {
        Plan.leave_one_out: [0b1010, 0b1001, 0b0011],
        Plan.solo_on: [0b0001, 0b0011, 0b1001],
        Plan.all_off: [0b0001],
        Plan.pairs: [0b0001, 0b0011, 0b1001, 0b1011],
        Plan.committed: [0b0001],
        Plan.factorial: subsets(0b1011),
        Plan.shapley: subsets(0b1011),
    }
    assert coalitions(Plan.shapley, 0b11111, 0, [(4, 3, 2, 1, 0)]) == [0, 16, 24, 28, 30, 31]
    assert all(coalitions(plan, 0, 0) == [0] for plan in Plan if plan is not Plan.leave_one_out)


def settings_of(plan, population):
    """Return the settings of each member, padded with the current one, as alphas and as coalitions."""
    inside = (population.alpha > 0) & (population.blueprint >= 0)
    bits, own = 1 << np.arange(3), []
    for member in range(len(inside)):
        present, fossils = int(inside[member] @ bits), int((inside & population.fossil)[member] @ bits)
        own.append(list(dict.fromkeys([present, *coalitions(plan, present, fossils)])))
    alpha = np.repeat(population.alpha[None], max(map(len, own)), axis=0)
    for member, some in enumerate(own):
        for variant, coalition in enumerate(some):
            alpha[variant, member] *= (coalition & bits) > 0
    return alpha, own, inside


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("plan", list(Plan))
@pytest.mark.parametrize("members", [1, 5])
def test_shared_computation_equals_one_forward_for_each_setting(grown, plan, layout, members):
    """Up to rounding: a batched product may sum in another order. Below, convolutions agree to the bit."""
    population = grown(members, blends=tuple(Blend), layout=layout)
    network, (_, _, x) = population.network, population.batch(members, 12, 0)
    network.train(False)
    alpha, _, _ = settings_of(plan, population)
    together = variants(network, x, alpha)
    for index, setting in enumerate(alpha):
        population.arrange(setting)
        with torch.no_grad():
            brute = forward(network, x)
        population.arrange()
        assert torch.allclose(together[index], brute, atol=2e-6, rtol=1e-5)


class Peak(nn.Module):
    def forward(self, x):
        return x.amax((2, 3))


def conv_host(member):
    """Return a host without sums over space: every operation treats a group of channels the same at any position."""
    host = CNNConfig(base_channels=8).build((1, 8, 8), 10, [member % 2 == 0, False, False])
    return Host([*list(host.segments)[:-1], nn.Sequential(nn.Conv2d(32, 10, 1), Peak())], host.slots)


@pytest.mark.parametrize("plan", list(Plan))
def test_convolutions_equal_one_forward_for_each_setting_bit_for_bit(grown, plan):
    population = grown(4, blends=(Blend.ADD, Blend.MULTIPLY), hosts=[conv_host(member) for member in range(4)])
    network, (_, _, x) = population.network, population.batch(4, 12, 0)
    network.train(False)
    alpha, _, _ = settings_of(plan, population)
    together = variants(network, x, alpha)
    for index, setting in enumerate(alpha):
        population.arrange(setting)
        with torch.no_grad():
            assert together[index].equal(forward(network, x))
        population.arrange()


def test_settings_of_other_hosts_do_not_change_a_host(grown):
    population = grown(4, layout=Layout.SEQUENCES)
    network, (_, _, x) = population.network, population.batch(4, 12, 0)
    network.train(False)
    alpha, _, _ = settings_of(Plan.factorial, population)
    alone = alpha.copy()
    alone[:, 1:] = alpha[0, 1:]  # only the first host has several settings
    assert variants(network, x, alone)[:, 0].equal(variants(network, x, alpha)[:, 0])


def test_a_non_finite_seed_shows_only_in_settings_where_it_is_on(grown):
    population = grown(3, layout=Layout.SEQUENCES)
    population.only()
    with torch.no_grad():
        population.bank_of(1, 1).fleet.flat[1] = torch.nan
    network, (_, _, x) = population.network, population.batch(3, 12, 0)
    network.train(False)
    alpha, own, _ = settings_of(Plan.factorial, population)
    logits = variants(network, x, alpha)
    for variant, coalition in enumerate(own[1]):
        assert logits[variant, 1].isnan().all() == bool(coalition & 0b010)
    assert logits[:, [0, 2]].isfinite().all()
    population.only(behind=True)
    assert variants(network, x, population.alpha[None])[0, 1].isnan().all()
    population.only()
    population.alpha[:, 1], population.behind[:, 1] = 0.0, population.blueprint[:, 1] >= 0
    population.arrange()
    assert variants(network, x, settings_of(Plan.leave_one_out, population)[0])[:, 1].isnan().all()  # also where paths fork


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("plan", list(Plan))
def test_cost_model_equals_the_computation(grown, plan, layout):
    """The model has the counts of the tree, host by host, and exactly the FLOPs that torch counts."""
    population = grown(8, layout=layout, samples_last=False)  # torch does not count the FLOPs of Esper's own kernels
    network, (_, _, x) = population.network, population.batch(8, 12, 0)
    network.train(False)
    alpha, own, inside = settings_of(plan, population)
    population.alpha[~inside] = 0
    population.behind[:] = False
    population.blueprint[~inside] = -1
    population.arrange()
    model = [plan_cost(some, int(inside[m] @ (1 << np.arange(3))), 3) for m, some in enumerate(own)]
    tree = network.tree(alpha)
    assert tree.path_VM.max() + 1 == sum(one.settings for one in model)
    owner = np.arange(8)
    for slot, fork in enumerate(tree.forks):
        assert Counter(owner.tolist()) == {member: one.segments[slot] for member, one in enumerate(model)}
        if isinstance(fork, Fork):
            assert Counter(owner[fork.seeded_D].tolist()) == {
                m: one.seeds[slot] for m, one in enumerate(model) if one.seeds[slot]
            }
            owner = fork.owner_P
    flops = flops_of(lambda: network.path_logits(x, tree))
    part, samples = [], x
    for segment in segments_of(network.host.bind()):
        part.append(flops_of(lambda segment=segment, samples=samples: segment(samples)) // 8)
        samples = segment(samples)
    expected = sum(part[slot] * one.segments[slot] for one in model for slot in range(4))
    for member, slot in np.argwhere(inside):
        expected += seed_flops(population, int(member), int(slot)) * model[member].seeds[slot]
    assert flops >= expected
    assert flops - expected <= single_rows(tree, population)


def flops_of(run):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run()
    return counter.get_total_flops()


def features(population, slot, members):
    channels = population.network.slots[slot].channels
    size = 8 // 2 ** min(slot, 2)
    shapes = {
        Layout.IMAGES: (12, members * channels, size, size),
        Layout.VECTORS: (12, members * channels),
        Layout.SEQUENCES: (12 * members, 6, channels),
    }
    x = torch.randn(shapes[population.layout])
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def seed_flops(population, member, slot):
    bank = population.bank_of(member, slot)
    return flops_of(lambda: bank.delta(torch.tensor([member, member]), features(population, slot, 2))) // 2


def single_rows(tree, population):
    """Return the FLOPs of rows that are alone in their bank, which are computed twice."""
    extra = 0
    for slot, fork in enumerate(tree.forks):
        groups = (
            []
            if fork is None
            else fork.banks
            if isinstance(fork, Fork)
            else [(group.bank, group.rows_L.numpy()) for group in fork.seeds.groups]
        )
        extra += sum(seed_flops(population, int(rows[0]), slot) for _, rows in groups if len(rows) == 1)
    return extra


def test_orders_of_many_seeds_share_settings():
    orders = draw_orders(0b111111, 8, np.random.default_rng(0))
    one = plan_cost(coalitions(Plan.shapley, 0b111111, 0, orders), 0b111111, 6)
    assert one.settings < 8 * 2 * 5 + 2
    assert one.segments[0] == 1
    assert one.segments[-1] == one.settings
    full = plan_cost(coalitions(Plan.factorial, 0b111111, 0), 0b111111, 6)
    assert full.segments == (1, 2, 4, 8, 16, 32, 64)
    assert full.seeds == (1, 2, 4, 8, 16, 32)
