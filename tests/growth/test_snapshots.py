"""Snapshots: a member is a set of rows, copied and restored exactly."""

import numpy as np
import pytest
import torch

from esper.fusion.layout import Layout
from esper.growth.network import GrowingNetwork
from esper.hosts.cnn import CNNConfig
from esper.lifecycle.roles import Blend, Fossils, Incubation
from esper.optimisers.adamw import AdamWConfig
from esper.optimisers.base import SeedSettingsConfig
from esper.optimisers.sgd import SGDConfig
from esper.seeds.blueprints.registry import BLUEPRINTS
from tests.reference_host import optimiser_step

each_layout = pytest.mark.parametrize("layout", list(Layout))
ADAMW = AdamWConfig(seeds=SeedSettingsConfig(warmup_batches=5))
EVERYTHING = {"blends": tuple(Blend), "incubation": Incubation.closed_loop, "fossils": Fossils.learning}


def bits(tensor):
    """Return bit patterns, so that NaN equals NaN and -0.0 differs from 0.0."""
    return tensor.detach().float().contiguous().view(torch.int32)


def train(population, *steps):
    network = population.network
    network.train()
    for step in steps:
        _, ys, x = population.batch(network.members, 12, step)
        network.backward(x, torch.stack(ys))
        optimiser_step(network)


def copies(population):
    return {name: row.clone() for name, row in population.network.rows().items()}


@each_layout
def test_restore_is_exact_and_leaves_other_members_unchanged(grown, layout):
    population = grown(3, layout=layout, **EVERYTHING)
    network = population.network
    train(population, 0, 1)
    network.save_snapshots(np.ones(3, dtype=np.bool_))
    first = copies(population)
    train(population, 0)
    network.save_snapshots(np.array([True, True, False]))  # member 2 is not healthy: its snapshot stays
    second = copies(population)
    train(population, 0)
    every = {(slot, kind, gated) for slot in range(3) for kind in range(len(population.blueprints)) for gated in (False, True)}
    late = min(every - set(network.banks))
    network.bank(*late).plant(2, torch.Generator())  # a bank created after the snapshot
    third = copies(population)
    network.restore(np.array([False, True, True]))
    for name, row in network.rows().items():
        assert bits(row[0]).equal(bits(third[name][0])), name
        if name in first:
            assert bits(row[1]).equal(bits(second[name][1])), name
            assert bits(row[2]).equal(bits(first[name][2])), name
        else:
            assert not row[1:].any(), name
    changed = [name for name in first if not first[name][1].equal(third[name][1])]
    assert {name.split("/")[0] for name in changed} >= {"host", "host_momentum", "seed", "seed_momentum"}
    assert any(name.endswith("gated") for name in changed)


@each_layout
def test_rows_hold_the_whole_state_of_a_member(grown, layout):
    """Copying all rows of one network into another makes them equal."""
    one, two = (grown(3, layout=layout, optimiser=ADAMW, **EVERYTHING) for _ in range(2))
    train(one, 0, 1, 2)
    with torch.no_grad():
        for name, row in two.network.rows().items():
            row.copy_(one.network.rows()[name])
    for population in (one, two):
        train(population, 9)
    for name, row in copies(one).items():
        assert bits(row).equal(bits(two.network.rows()[name])), name


@pytest.mark.parametrize("incubation", list(Incubation))
@pytest.mark.parametrize("optimiser", [SGDConfig(), ADAMW], ids=["sgd", "adamw"])
def test_a_restored_member_continues_exactly(grown, incubation, optimiser):
    """After a restore, the same steps give the same bits: host, seeds, gates, fossils and the state of the optimiser."""
    population = grown(4, blends=tuple(Blend), incubation=incubation, optimiser=optimiser)
    network = population.network
    train(population, 0, 1)
    network.save_snapshots(np.ones(4, dtype=np.bool_))
    train(population, 2, 3)
    wanted = copies(population)
    for row in network.rows().values():
        row[2] = torch.nan if row.is_floating_point() else 7
    network.restore(np.array([False, True, True, False]))
    train(population, 2, 3)
    for name, row in network.rows().items():
        assert bits(row[[1, 2]]).equal(bits(wanted[name][[1, 2]])), name
        assert name.startswith("buffer") or not row[0].any() or not row[0].equal(wanted[name][0]), name


def test_memory_of_many_hosts_with_all_banks():
    """64 hosts of digits with every image blueprint in all slots, with and without gate, and a snapshot of all."""
    blueprints = [make() for make in BLUEPRINTS.values() if Layout.IMAGES in make.layouts]
    hosts = [CNNConfig().build((1, 8, 8), 10, [False] * 3) for _ in range(64)]
    network = GrowingNetwork(hosts, blueprints, optimiser=SGDConfig())
    assert not network.banks
    for slot in range(3):
        for kind in range(len(blueprints)):
            for gated in (False, True):
                network.bank(slot, kind, gated)
    network.save_snapshots(np.ones(64, dtype=np.bool_))
    rows = network.rows()
    assert len(rows) > 12 * len(blueprints)
    assert 2 * sum(row.nbytes for row in rows.values()) < 32e6


def test_a_frozen_host_has_no_optimiser_state():
    host = CNNConfig().build((1, 8, 8), 10, [False] * 3)
    sizes = [
        sum(state.numel() for state in GrowingNetwork([host] * 2, (), optimiser=ADAMW, frozen=frozen).optimiser.state.values())
        for frozen in (False, True)
    ]
    assert sizes[0] >= 4 * sum(parameter.numel() for parameter in host.parameters())
    assert sizes[1] == 2, "a count of steps each"
    assert GrowingNetwork([host], (), optimiser=ADAMW, frozen=True).take_norms().isnan().all()
