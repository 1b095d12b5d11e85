"""Hosts and seeds in half precision: rounding, overflows of single members, and what stays in single precision."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from esper.fusion.layout import Layout
from esper.fusion.precision import HALF, Precision, computed_in
from esper.growth.network import GrowingNetwork
from esper.lifecycle.roles import Blend, Incubation
from esper.optimisers.adamw import AdamWConfig
from esper.optimisers.loss_scale import FIRST
from esper.seeds.slot_gradients import GradientHooks
from tests.reference_host import forward, optimiser_step, variants

CPU = torch.device("cpu")
FAULTY, MEMBERS = 1, 5
each_layout = pytest.mark.parametrize("layout", list(Layout))
each_half = pytest.mark.parametrize("precision", [Precision.bf16, Precision.fp16])


def bits(tensor):
    """The bit patterns, so that NaN equals NaN."""
    return tensor.detach().contiguous().view(torch.int32)


def flat_grads(modules):
    return [torch.cat([p.grad.flatten() for p in module.parameters()]).clone() for module in modules]


def gradients(reference, x, y, precision):
    """Return the gradients of a plain host and its seeds, by torch.autocast and one loss scale."""
    modules, scale = [reference.host, *(seed.module for seed in reference.seeds.values())], FIRST
    reference.host.train()
    for module in modules:
        module.zero_grad()
    with computed_in(precision, CPU):
        logits = reference.forward(x)
    (scale * nn.functional.cross_entropy(logits.float(), y.flatten())).backward()
    return [grad / scale for grad in flat_grads(modules)]


def passed(population, members=MEMBERS, hooks=None):
    """Compute the gradients of a batch, and return the losses and the batch."""
    xs, ys, x = population.batch(members, 12, 0)
    population.network.train()
    return population.network.backward(x, torch.stack(ys).flatten(1), hooks), xs, ys


def unscaled(network, member, fleet):
    scale = 1.0 if network.loss_scale is None else network.loss_scale.of()[member]
    return fleet.flat.grad[member] / scale


@each_half
@each_layout
def test_gradients_are_rounded_no_more_than_those_of_plain_hosts_under_autocast(grown, layout, precision):
    """The rounding of convolutional hosts is large: it moves kinks of ReLUs and maxima of pools, in plain hosts as well."""
    population = grown(MEMBERS, blends=tuple(Blend), layout=layout, precision=precision)
    loss_M, xs, ys = passed(population)
    network, mine, plain = population.network, 0.0, 0.0
    assert loss_M.dtype is torch.float32
    for member, reference in enumerate(population.references):
        exact, rounded = (gradients(reference, xs[member], ys[member], one) for one in (Precision.fp32, precision))
        for slot, right, other in zip([None, *reference.seeds], exact, rounded, strict=True):
            if slot is None or population.learns[member, slot]:
                fleet = network.host if slot is None else population.bank_of(member, slot).fleet
                mine += ((unscaled(network, member, fleet) - right).norm() / right.norm()).item()
                plain += ((other - right).norm() / right.norm()).item()
    assert 0 < mine < 1.2 * plain


@each_half
@pytest.mark.parametrize("incubation", list(Incubation))
def test_slot_gradients_and_norms_are_unscaled_and_in_single_precision(grown, incubation, precision):
    found = []
    for one in (Precision.fp32, precision):
        population, hooks = grown(MEMBERS, layout=Layout.VECTORS, incubation=incubation, precision=one), GradientHooks(MEMBERS)
        loss_M, *_ = passed(population, hooks=hooks)
        captured = population.network.capture(*[population.batch(MEMBERS, 12, 1)[2], torch.stack(population.batch(5, 12, 1)[1])])
        slots = [part for each in (*hooks.gradients(), *captured) for part in (each.features, each.grad)]
        optimiser_step(population.network)
        found.append([loss_M, *slots, population.network.take_norms().nan_to_num()])
    for exact, rounded in zip(*found, strict=True):
        assert rounded.dtype is torch.float32
        assert (rounded - exact).norm() <= 4 * torch.finfo(HALF[precision]).eps * exact.norm()


@each_half
@each_layout
@pytest.mark.parametrize("blends", [(Blend.ADD,), tuple(Blend)], ids=["add", "all"])
def test_a_setting_alone_has_the_bits_of_a_forward(grown, layout, precision, blends):
    population = grown(3, blends=blends, layout=layout, precision=precision)
    population.alpha[:] = np.where(population.blueprint >= 0, 0.3, 0.0)
    population.arrange()
    network, x = population.network, population.batch(3, 12, 0)[2]
    network.train(False)
    alone = variants(network, x, population.alpha[None])[0]
    with torch.no_grad():
        assert alone.equal(forward(network, x))
    assert alone.dtype is torch.float32


def test_only_fp16_has_loss_scales_and_weights_are_in_single_precision(grown):
    for precision in Precision:
        network = grown(2, precision=precision).network
        assert (network.loss_scale is not None) == (precision is Precision.fp16)
        assert all(rows.dtype is not HALF.get(precision) for rows in network.rows().values())


def trained(network, population, steps):
    network.train()
    for step in range(steps):
        _, ys, x = population.batch(MEMBERS, 12, step)
        network.backward(x, torch.stack(ys).flatten(1))
        optimiser_step(network)


@each_layout
@pytest.mark.parametrize("incubation", [Incubation.closed_loop, Incubation.straight_through])
def test_an_overflow_skips_the_steps_of_its_member_alone(grown, layout, incubation):
    """Member 1 starts at a scale at which everything overflows; its batch statistics follow, and the others keep their bits."""
    networks = []
    for disturbed in (False, True):
        population = grown(
            MEMBERS,
            blends=tuple(Blend),
            layout=layout,
            incubation=incubation,
            precision=Precision.fp16,
            optimiser=AdamWConfig(),
        )
        network = population.network
        born = {name: rows.clone() for name, rows in network.rows().items()}
        if disturbed:
            network.loss_scale.state["scale"][FAULTY] = 2.0**90
        trained(network, population, 2)
        networks.append(network)
    calm, faulty = (network.rows() for network in networks)
    blends = ("/gated" if blend == Blend.GATE else "" for blend in population.blend[FAULTY])
    own = {f"{slot}/{kind}{gate}" for slot, (kind, gate) in enumerate(zip(population.blueprint[FAULTY], blends, strict=True))}
    others = [member for member in range(MEMBERS) if member != FAULTY]
    for name, rows in faulty.items():
        assert bits(rows[others]).equal(bits(calm[name][others])), name
        if "running" in name:
            assert rows[FAULTY].isfinite().all(), name
            assert not rows[FAULTY].equal(born[name][FAULTY]), name
        elif name.startswith("host") or name.partition("/")[2] in own:
            assert bits(rows[FAULTY]).equal(bits(born[name][FAULTY])), name
    assert not calm["host"][FAULTY].equal(faulty["host"][FAULTY])
    assert any(name.partition("/")[2] in own for name in faulty)
    assert faulty["loss_scale/scale"][:, 0].tolist() == [2.0**88 if member == FAULTY else FIRST for member in range(MEMBERS)]
    norms = [network.take_norms() for network in networks]
    assert norms[1][FAULTY].isnan().all()
    assert bits(norms[0][others]).equal(bits(norms[1][others]))
    assert [faults[:, 1].tolist() for faults in (network.take_faults() for network in networks)] == [[0.0] * 5, [0, 2.0, 0, 0, 0]]


def test_a_host_takes_its_step_although_its_seed_skips_one(grown):
    """As with two optimisers and one GradScaler; the scale that they share is halved."""
    population = grown(MEMBERS, precision=Precision.fp16)
    passed(population)
    network, slot = population.network, int(np.flatnonzero(population.learns[FAULTY])[0])
    bank = population.bank_of(FAULTY, slot)
    bank.fleet.flat.grad[FAULTY, 0] = math.inf
    host, seeds = network.host.flat.detach().clone(), bank.fleet.flat.detach().clone()
    optimiser_step(network)
    assert (network.host.flat != host).any(1).all()
    assert bank.fleet.flat[FAULTY].equal(seeds[FAULTY])
    assert network.loss_scale.of().tolist() == [FIRST / 2 if member == FAULTY else FIRST for member in range(MEMBERS)]


def test_a_rollback_restores_the_loss_scale(grown):
    population = grown(3, layout=Layout.VECTORS, precision=Precision.fp16)
    network = population.network
    scales = network.loss_scale.state["scale"]
    network.save_snapshots(np.ones(3, np.bool_))
    scales[:] = 4.0
    network.restore(np.array([True, False, False]))
    assert scales[:, 0].tolist() == [FIRST, 4.0, 4.0]


def test_the_parts_of_a_batch_share_a_scale(grown):
    """Micro-batches add scaled gradients, which are unscaled once."""
    whole, parts = (grown(3, layout=Layout.VECTORS, precision=Precision.fp16).network for _ in range(2))
    population = grown(3, layout=Layout.VECTORS)
    _, ys, x = population.batch(3, 12, 0)
    y, total = torch.stack(ys), torch.full((3,), 12)
    whole.backward(x, y)
    for rows in (slice(0, 5), slice(5, 12)):
        parts.backward(x[rows], y[:, rows], targets_M=total)
    for network in (whole, parts):
        optimiser_step(network)
    assert torch.allclose(whole.host.flat, parts.host.flat, atol=1e-4)
    assert isinstance(whole, GrowingNetwork)
    assert not any(network.take_faults()[:, 1].any() for network in (whole, parts))
