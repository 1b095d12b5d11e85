"""Fused training equals single hosts: every blend, stage and incubation."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from esper.fusion.fuse import flatten_parameters
from esper.fusion.layout import Layout
from esper.hosts.base import SlotSpec
from esper.lifecycle.roles import Blend, Fossils, Incubation
from esper.optimisers.adamw import AdamWConfig
from esper.optimisers.base import SeedSettingsConfig
from esper.optimisers.schedules import RateSchedule
from esper.optimisers.sgd import NesterovConfig, SGDConfig
from esper.seeds.blueprints.registry import BLUEPRINTS
from esper.seeds.slot_gradients import GradientHooks
from tests.reference_host import forward, optimiser_step

each_incubation = pytest.mark.parametrize("incubation", list(Incubation))
each_layout = pytest.mark.parametrize("layout", list(Layout))
MEMORIES = [(layout, True) for layout in Layout] + [(Layout.IMAGES, False), (Layout.VECTORS, False)]
"""Layouts, and whether images and vectors are in batch-last memory."""
each_memory = pytest.mark.parametrize(("layout", "samples_last"), MEMORIES)


def paced(config, reference, progress):
    """Set the rates of torch's optimisers of one host by the schedule, with the rates for hosts for its fossils."""
    host, seed = config.at(progress)
    for group in reference.host_optimiser.param_groups:
        group["lr"] = host.learning_rate
    for slot, optimiser in reference.seed_optimisers.items():
        optimiser.param_groups[0]["lr"] = (host if reference.seeds[slot].fossil else seed).learning_rate


def assert_trained_alike(grown, steps, *, atol, config=None):
    network, members = grown.network, grown.network.members
    network.train()
    for step in range(steps):
        xs, ys, x = grown.batch(members, 12, step)
        losses = network.backward(x, torch.stack(ys))
        optimiser_step(network, step / steps)
        for reference in grown.references if config else ():
            paced(config, reference, step / steps)
        wanted = torch.stack([ref.train_batch(*pair) for ref, *pair in zip(grown.references, xs, ys, strict=True)])
        assert torch.allclose(losses, wanted, atol=atol)
    for member, reference in enumerate(grown.references):
        assert torch.allclose(network.host.flat[member], flatten_parameters(reference.host), atol=atol)
        for name, buffer in network.host.buffers.items():
            if "num_batches" not in name:
                assert torch.allclose(buffer[member], reference.host.get_buffer(name), atol=atol), name
        for slot, seed in reference.seeds.items():
            row = grown.bank_of(member, slot).fleet.flat[member]
            assert torch.allclose(row, flatten_parameters(seed.module), atol=atol), (member, slot)


@each_incubation
@pytest.mark.parametrize(
    ("members", "blends", "samples_last"),
    [
        *((members, tuple(Blend), last) for members in (1, 8) for last in (False, True)),
        *((8, (blend,), True) for blend in Blend),
    ],
    ids=str,
)
def test_an_epoch_with_seeds_in_all_stages_equals_plain_pytorch(float64, grown, members, blends, samples_last, incubation):
    population = grown(members, blends=blends, incubation=incubation, samples_last=samples_last)
    if incubation is Incubation.none:
        population.behind[:] = False
        for reference in population.references:
            for seed in reference.seeds.values():
                seed.behind = False
        population.arrange()
    before = [flatten_parameters(reference.host) for reference in population.references]
    assert_trained_alike(population, 3, atol=1e-9)
    assert all(not torch.equal(old, flatten_parameters(ref.host)) for old, ref in zip(before, population.references, strict=True))


@each_incubation
@each_layout
@pytest.mark.parametrize("members", [1, 4])
def test_an_epoch_with_all_seeds_in_one_stage_equals_plain_pytorch(float64, grown, members, layout, incubation):
    """Several seeds behind one host share its closed-loop pass."""
    population = grown(members, blends=tuple(Blend), incubation=incubation, layout=layout)
    population.only(alpha=0.5, behind=incubation is not Incubation.none)
    assert_trained_alike(population, 3, atol=1e-9)


@each_incubation
@pytest.mark.parametrize("layout", [Layout.VECTORS, Layout.SEQUENCES])
@pytest.mark.parametrize(("members", "fossils"), [(1, Fossils.frozen), *((5, fossils) for fossils in Fossils)])  # one has none
def test_an_epoch_in_the_other_layouts_equals_plain_pytorch(float64, grown, members, layout, fossils, incubation):
    population = grown(members, blends=tuple(Blend), incubation=incubation, fossils=fossils, layout=layout)
    assert_trained_alike(population, 4, atol=1e-9)


STRAIGHT = ("norm", "attention", "flex_attention")
"""Blueprints that also train straight through: incubation changes the passes of the network, whatever the seed."""


@pytest.mark.parametrize(
    ("layout", "samples_last", "name", "incubation"),
    [
        (layout, samples_last, name, incubation)
        for name, kind in BLUEPRINTS.items()
        for layout, samples_last in MEMORIES
        if layout in kind.layouts
        for incubation in (Incubation.closed_loop, *([Incubation.straight_through] if name in STRAIGHT else []))
    ],
)
def test_an_epoch_with_every_blueprint_equals_plain_pytorch(float64, grown, layout, samples_last, name, incubation):
    blueprints = [BLUEPRINTS[name]()]
    population = grown(
        6, blends=tuple(Blend), incubation=incubation, layout=layout, blueprints=blueprints, samples_last=samples_last
    )
    assert_trained_alike(population, 3, atol=1e-8)


SEEDS = SeedSettingsConfig(learning_rate=0.03, weight_decay=0.02, max_norm=0.3)
OPTIMISERS = {
    "sgd": SGDConfig(learning_rate=0.2, momentum=0.5, weight_decay=0.1, max_norm=0.7, seeds=SEEDS),
    "nesterov": NesterovConfig(learning_rate=0.1, max_norm=0.7, seeds=SEEDS),
    "adamw": AdamWConfig(learning_rate=0.02, weight_decay=0.1, max_norm=0.7, seeds=SEEDS),
}


@pytest.mark.parametrize("name", list(OPTIMISERS))
@pytest.mark.parametrize("fossils", list(Fossils))
def test_fossils_learn_with_the_settings_of_the_host_or_stay_frozen(float64, grown, fossils, name):
    population = grown(8, blends=tuple(Blend), fossils=fossils, optimiser=OPTIMISERS[name])
    before = {name: row.clone() for name, row in population.network.rows().items()}
    assert_trained_alike(population, 5, atol=1e-9)
    after = population.network.rows()
    for member, slot in np.argwhere(population.fossil):
        gated = "/gated" if population.blend[member, slot] == Blend.GATE else ""
        name = f"seed/{slot}/{population.blueprint[member, slot]}{gated}"
        assert after[name][member].equal(before[name][member]) == (fossils is Fossils.frozen)


def test_rows_without_a_seed_take_no_step(float64, grown):
    population = grown(8, blends=tuple(Blend), optimiser=OPTIMISERS["adamw"])
    assert_trained_alike(population, 2, atol=1e-9)
    for (slot, kind, gated), bank in population.network.banks.items():
        holds = (population.blueprint[:, slot] == kind) & ((population.blend[:, slot] == Blend.GATE) == gated)
        assert not bank.optimiser.state["steps"][~holds].any()
        assert holds.any()


@pytest.mark.parametrize("schedule", list(RateSchedule))
def test_a_schedule_sets_the_rates_of_hosts_seeds_and_fossils(float64, grown, schedule):
    config = replace(OPTIMISERS["adamw"], schedule=schedule, warmup=0.4)
    population = grown(8, blends=tuple(Blend), optimiser=config)
    assert_trained_alike(population, 6, atol=1e-9, config=config)


@each_incubation
@pytest.mark.parametrize("members", [1, 8])
def test_an_epoch_in_single_precision_agrees_to_rounding(grown, members, incubation):
    assert_trained_alike(grown(members, blends=tuple(Blend), incubation=incubation), 3, atol=2e-4)


def test_the_cases_cover_all_stages_and_blends(grown):
    population = grown(8, blends=tuple(Blend))
    inside = population.blueprint >= 0
    assert set(population.blueprint[inside].tolist()) == {0, 1, 2, 3}
    assert set(population.alpha[inside].tolist()) == {0.0, 0.25, 0.5, 0.75, 1.0}
    stages = {name: getattr(population, name)[inside] for name in ("behind", "open", "learns", "fossil")}
    assert all(part.any() and not part.all() for part in stages.values())
    assert (~inside).any()
    behind = population.behind & inside
    assert set(population.blend[behind].tolist()) == {0, 1, 2}
    assert len(set(behind.argmax(axis=1)[behind.any(axis=1)].tolist())) > 1  # closed-loop passes start at several slots
    mixed = [len(set(population.blueprint[:, slot].tolist())) for slot in range(3)]
    assert min(mixed) >= 3  # several blueprints in one slot
    assert all(len(set(population.blend[inside[:, slot], slot].tolist())) == 3 for slot in range(3))  # and all blends


@each_incubation
@each_layout
@pytest.mark.parametrize("members", [1, 5])
def test_seeds_of_frozen_hosts_learn_as_behind_hosts_that_are_put_back_after_every_step(grown, layout, incubation, members):
    populations = [
        grown(members, blends=tuple(Blend), incubation=incubation, layout=layout, frozen=frozen) for frozen in (True, False)
    ]
    frozen, free = (population.network for population in populations)
    born = {name: row.clone() for name, row in frozen.rows().items()}
    constant = [part.detach().clone() for part in (frozen.host.flat, *frozen.host.buffers.values())]
    for step in range(4):
        _, ys, x = populations[0].batch(members, 12, step)
        frozen.train()
        free.train(False)
        hooks = [GradientHooks(members) if step == 2 else None for _ in range(2)]
        losses = [network.backward(x, torch.stack(ys), hook) for network, hook in zip((frozen, free), hooks, strict=True)]
        assert losses[0].equal(losses[1])
        if step == 2:
            for one, other in zip(*(hook.gradients() for hook in hooks), strict=True):
                assert torch.allclose(one.grad, other.grad, atol=1e-7)
        assert frozen.host.flat.grad is None
        free.host.flat.grad = None
        for network in (frozen, free):
            optimiser_step(network)
    learnt = frozen.rows()
    assert not any(name.startswith(("host", "buffer")) for name in learnt), "snapshots hold nothing that is constant"
    assert all(torch.allclose(row, free.rows()[name], atol=1e-6) for name, row in learnt.items())
    assert any(not row.equal(born[name]) for name, row in learnt.items())
    now = (frozen.host.flat, *frozen.host.buffers.values())
    assert all(part.equal(before) for part, before in zip(now, constant, strict=True))
    assert frozen.take_norms()[:, 0].isnan().all()


# ---- seeds behind the host


def gradients(population):
    """Return the logits of the main pass, and the gradient of the hosts."""
    network = population.network
    network.train()
    _, ys, x = population.batch(network.members, 12, 0)
    network.train(False)
    with torch.no_grad():
        logits = forward(network, x)
    network.train()
    network.backward(x, torch.stack(ys))
    gradient, network.host.flat.grad = network.host.flat.grad.clone(), None
    return logits, gradient


@each_memory
@pytest.mark.parametrize("incubation", [Incubation.straight_through, Incubation.closed_loop])
@pytest.mark.parametrize("members", [1, 4])
def test_seeds_behind_the_host_learn_and_leave_its_bits_unchanged(grown, layout, samples_last, incubation, members):
    population = grown(members, blends=tuple(Blend), incubation=incubation, layout=layout, samples_last=samples_last)
    population.only(behind=True)
    bare = grown(members, blends=tuple(Blend), incubation=incubation, layout=layout, samples_last=samples_last)
    bare.blueprint[:] = -1
    bare.arrange()
    assert bare.network.active_S == [None, None, None]
    assert bare.network.closed_loop is None
    (logits, gradient), (bare_logits, bare_gradient) = gradients(population), gradients(bare)
    assert logits.equal(bare_logits)
    assert gradient.equal(bare_gradient)
    assert gradient.any(dim=1).all()
    for name, row in bare.network.rows().items():
        if name.startswith("buffer"):
            assert row.equal(population.network.rows()[name]), name
    for member, slot in np.argwhere(population.blueprint >= 0):
        assert population.bank_of(member, slot).fleet.flat.grad[member].any()


@pytest.mark.parametrize("incubation", list(Incubation))
@pytest.mark.parametrize("samples_last", [False, True])
def test_members_are_independent_of_seeds_of_others(grown, samples_last, incubation):
    one, two = (grown(4, blends=tuple(Blend), incubation=incubation, samples_last=samples_last) for _ in range(2))
    two.blueprint[[0, 2]] = -1
    two.arrange()
    (logits, gradient), (other_logits, other_gradient) = gradients(one), gradients(two)
    assert logits[[1, 3]].equal(other_logits[[1, 3]])
    assert gradient[[1, 3]].equal(other_gradient[[1, 3]])
    assert not gradient[[0, 2]].equal(other_gradient[[0, 2]])
    for member, slot in np.argwhere(two.blueprint >= 0):
        grads = [population.bank_of(member, slot).fleet.flat.grad for population in (one, two)]
        assert (grads[0] is None) == (grads[1] is None)
        assert grads[0] is None or grads[0][member].equal(grads[1][member]), (member, slot)


@pytest.mark.parametrize("blend", list(Blend))
def test_layers_before_a_slot_learn_at_alpha_one(grown, blend):
    population, bare = (grown(3, blends=(blend,)) for _ in range(2))
    population.only(alpha=1.0, open=False)
    for bank in population.network.banks.values():
        with torch.no_grad():
            bank.fleet.flat *= 1e-20  # delta is 0, so only the direct path is left
    bare.blueprint[:] = -1
    bare.arrange()
    (_, gradient), (_, bare_gradient) = gradients(population), gradients(bare)
    assert torch.allclose(gradient, bare_gradient, rtol=1e-4, atol=1e-6)
    assert (gradient[:, :33].norm(dim=1) > 1e-3).all()  # the first block: 27 weights, 6 of its norm


def test_without_incubation_a_newborn_seed_is_the_identity_and_learns(grown):
    population, bare = (grown(3, incubation=Incubation.none, blends=tuple(Blend)) for _ in range(2))
    population.only(alpha=1.0)
    for member, slot in np.argwhere(population.blueprint >= 0):
        population.bank_of(member, slot).plant(member, torch.Generator().manual_seed(int(member)))
    bare.blueprint[:] = -1
    bare.arrange()
    (logits, gradient), (bare_logits, bare_gradient) = gradients(population), gradients(bare)
    assert logits.equal(bare_logits)
    assert torch.allclose(gradient, bare_gradient, atol=1e-6)
    for member, slot in np.argwhere(population.blueprint >= 0):
        assert population.bank_of(member, slot).fleet.flat.grad[member].any()


class OutsideHost(nn.Module):
    """A host of layers without stacked forms, one with buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = tuple(SlotSpec(f"r0c{i}", 6, Layout.VECTORS) for i in range(3))
        widths = (5, 6, 6, 6)
        layers = [nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.PReLU()) for a, b in pairwise(widths)]
        self.segments = nn.ModuleList([*layers, nn.Linear(6, 10)])


@each_incubation
@pytest.mark.parametrize("behind", [True, False])
def test_a_host_without_stacked_layers_grows_in_a_fleet_of_one(float64, grown, monkeypatch, incubation, behind):
    monkeypatch.setitem(grown.__init__.__globals__, "make_host", lambda layout, member: OutsideHost())
    population = grown(1, blends=tuple(Blend), incubation=incubation, layout=Layout.VECTORS)
    assert not population.network.host.stacked
    population.only(alpha=0.5, behind=behind and incubation is not Incubation.none)
    assert_trained_alike(population, 3, atol=1e-9)
