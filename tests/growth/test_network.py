"""Counterfactual forwards, banks, and measurements in training."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from esper.fusion.layout import Layout, take_members
from esper.growth.objective import CLASSIFICATION
from esper.hosts.base import segments_of
from esper.lifecycle.roles import Blend, Incubation
from esper.seeds.slot_gradients import GradientHooks
from tests.reference_host import forward, optimiser_step, variants


def one_batch(grown, seed=0):
    _, ys, x = grown.batch(grown.network.members, 12, seed)
    return x, torch.stack(ys)


def test_banks_are_created_on_first_use_and_compute_live_rows_only(grown):
    population = grown(3, blends=tuple(Blend))
    network = population.network
    where = np.argwhere(population.blueprint >= 0)
    assert set(network.banks) == {(s, population.blueprint[m, s], population.blend[m, s] == Blend.GATE) for m, s in where}
    widths = []
    for group in network.active_S[0].groups:
        group.bank.fleet.module.register_forward_pre_hook(lambda _, args: widths.append(args[0].shape[1]))
    x, _ = one_batch(population)
    network.train(False)
    forward(network, x)
    assert widths == [3 * max(2, len(group.rows_L)) for group in network.active_S[0].groups]


@pytest.mark.parametrize("incubation", list(Incubation))
def test_closed_loop_seeds_are_computed_in_the_second_pass_only(grown, incubation):
    """The second pass holds only members with such seeds, each from its first one on."""
    population = grown(8, incubation=incubation)
    network = population.network
    population.behind[:] = population.behind & (np.arange(8) > 1)[:, None]  # members 5 and 6, in slots 0 and 2
    assert [population.behind[:, slot].nonzero()[0].tolist() for slot in range(3)] == [[5], [], [6]]
    population.arrange()
    segments = segments_of(network.host.module)
    seen = {slot: [] for slot in range(4)}
    for slot, segment in enumerate(segments):
        segment.register_forward_pre_hook(lambda _, args, slot=slot: seen[slot].append(args[0].shape[1]))
    network.train()
    network.backward(*one_batch(population))
    closed = incubation is Incubation.closed_loop
    main, shadow = [1 * 8, 3 * 8, 6 * 8, 12 * 8], {1: 3 * 2, 2: 6 * 2, 3: 12 * 3}  # one member alone is computed twice
    assert seen == {slot: [main[slot], shadow[slot]] if closed and slot in shadow else [main[slot]] for slot in range(4)}
    assert network.host.module.training
    assert network.host.module is network.host.bind()  # and the layers hold all members again
    assert forward(network, one_batch(population)[0]).shape == (8, 12, 10)


# ---- counterfactuals


def settings(population, count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.choice([0.0, 0.3, 1.0], size=(count, *population.alpha.shape)).astype(np.float32)


def leave_one_out(population):
    alpha = np.repeat(population.alpha[None], 4, axis=0)
    for slot in range(3):
        alpha[slot + 1, :, slot] = 0.0
    return alpha


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("members", [1, 3, 8])
@pytest.mark.parametrize("kind", ["random", "leave_one_out"])
def test_variants_equal_one_forward_per_setting(grown, members, kind, layout):
    """To 1e-4, since other batch sizes may take other kernels; a single setting is bit-equal to `forward`."""
    population = grown(members, blends=tuple(Blend), layout=layout)
    population.alpha[:] = np.where(population.blueprint >= 0, 0.5, 0.0)
    alpha = settings(population, 12) if kind == "random" else leave_one_out(population)
    network = population.network
    population.arrange()
    network.train(False)
    x, _ = one_batch(population)
    together = variants(network, x, alpha)
    assert together.shape == (len(alpha), members, 12 * (6 if layout is Layout.SEQUENCES else 1), 10)
    for index, setting in enumerate(alpha):
        alone = variants(network, x, setting[None])[0]
        population.arrange(setting)
        with torch.no_grad():
            brute = forward(network, x)
        assert alone.equal(brute)
        assert torch.allclose(together[index], brute, atol=1e-4, rtol=1e-4)
        population.arrange()


@pytest.mark.parametrize("layout", list(Layout))
def test_variants_equal_plain_pytorch(float64, grown, layout):
    population = grown(4, blends=tuple(Blend), layout=layout)
    alpha = settings(population, 6, seed=1)
    population.network.train(False)
    xs, _, x = population.batch(4, 12, 0)
    together = variants(population.network, x, alpha)
    for index, setting in enumerate(alpha):
        for member, reference in enumerate(population.references):
            reference.host.eval()
            for slot, seed in reference.seeds.items():
                seed.alpha, seed.behind = float(setting[member, slot]), False
            assert torch.allclose(together[index, member], reference.forward(xs[member]), atol=1e-7)  # alphas are single


def taken(x, members):
    """The sequences of these members of five."""
    return take_members(x, members, 5)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("incubation", list(Incubation))
def test_the_parts_of_a_batch_add_up_to_its_gradients(float64, grown, incubation, frozen):
    """With padding, which is spread unevenly; the seeds of one host learn, so a frozen fleet computes that host alone."""
    whole, parts = (
        grown(5, blends=tuple(Blend), layout=Layout.SEQUENCES, incubation=incubation, frozen=frozen) for _ in range(2)
    )
    _, ys, x = whole.batch(5, 12, 0)
    y = torch.stack(ys)
    y[1:3, :7, 2:] = -100
    y[4, :4] = -100
    y, total, features, losses = y.flatten(1), (y >= 0).flatten(1).sum(1), [], []
    for population in (whole, parts):
        population.learns[1:] = False
        population.arrange()
        population.network.train()
    hooks = [None if frozen else GradientHooks(5, count=3) for _ in range(2)]
    cuts = [(0, 4), (4, 9), (9, 12)]
    learning = whole.network.learning_L
    chosen = torch.arange(5) if learning is None else learning  # the first host, twice
    losses.append(
        whole.network.backward(x, y, hooks[0]) if hooks[0] else whole.network.backward_learning(taken(x, chosen), y[chosen])
    )
    for place, (start, stop) in enumerate(cuts):
        part = x.view(5, 12, 6)[:, start:stop].flatten(0, 1), y[:, 6 * start : 6 * stop]
        hook = hooks[1] if place == 0 else None
        few = taken(part[0], chosen), part[1][chosen], total[chosen]
        features.append(parts.network.backward(*part, hook, total) if hooks[1] else parts.network.backward_learning(*few))
    assert torch.allclose(sum(features), losses[0], atol=1e-12)
    pairs = [(whole.network.host, parts.network.host)] if not frozen else []
    pairs += [(bank.fleet, parts.network.banks[key].fleet) for key, bank in whole.network.banks.items()]
    assert any(one.flat.grad is not None and one.flat.grad.any() for one, _ in pairs)
    for one, other in pairs:
        assert (one.flat.grad is None) == (other.flat.grad is None)
        assert one.flat.grad is None or torch.allclose(one.flat.grad, other.flat.grad, atol=1e-12)
    if hooks[0]:  # of the mean loss over the samples that are captured, the same in both
        for one, other in zip(*(hook.gradients() for hook in hooks), strict=True):
            assert torch.allclose(one.features, other.features, atol=1e-12)
            assert torch.allclose(one.grad, other.grad, atol=1e-10)


def count_rows(network, act):
    """Return the rows that each segment and bank computed while `act` ran."""
    rows = dict.fromkeys([*range(len(network.slots) + 1), *network.banks], 0)
    hooks = []
    for name, module in [
        *enumerate(segments_of(network.host.module)),
        *((k, b.fleet.module) for k, b in network.banks.items()),
    ]:

        def count(_, args, name=name):
            rows[name] += args[0].shape[0]

        hooks.append(module.register_forward_pre_hook(count))
    act()
    for hook in hooks:
        hook.remove()
    return rows


def test_settings_share_computation_up_to_their_fork(grown):
    population = grown(1)
    population.blueprint[:] = [[0, 1, 2]]
    for slot in range(3):
        population.network.bank(slot, slot)
    population.alpha[:] = 1.0
    population.arrange()
    network = population.network
    network.train(False)
    x, _ = one_batch(population)
    rows = count_rows(network, lambda: variants(network, x, leave_one_out(population)))
    assert [rows[segment] // 12 for segment in range(4)] == [1, 2, 3, 4]
    assert [rows[slot, slot, False] // 12 for slot in range(3)] == [1, 2, 3]
    brute = count_rows(network, lambda: [variants(network, x, alpha[None]) for alpha in leave_one_out(population)])
    assert [brute[segment] // 12 for segment in range(4)] == [4, 4, 4, 4]
    same = count_rows(network, lambda: variants(network, x, np.repeat(population.alpha[None], 5, axis=0)))
    assert [same[segment] // 12 for segment in range(4)] == [1, 1, 1, 1]
    population.blueprint[:] = -1
    population.arrange()
    bare = count_rows(network, lambda: variants(network, x, settings(population, 5)))
    assert [bare[segment] // 12 for segment in range(4)] == [1, 1, 1, 1]  # slots without a seed are ignored


def test_variants_have_no_side_effects(grown):
    population = grown(3)
    population.network.train(False)
    before = {name: row.clone() for name, row in population.network.rows().items()}
    plan = copy.copy(population.network.active_S)
    x, _ = one_batch(population)
    variants(population.network, x, settings(population, 5))
    assert all(row.equal(before[name]) for name, row in population.network.rows().items())
    assert population.network.active_S == plan
    assert population.network.host.flat.grad is None


# ---- measurements in training


def test_member_losses_are_mean_cross_entropies():
    logits, targets = torch.randn(3, 8, 10), torch.randint(10, (3, 8))
    wanted = [nn.functional.cross_entropy(*pair) for pair in zip(logits, targets, strict=True)]
    assert torch.allclose(CLASSIFICATION.mean_losses(logits, targets), torch.stack(wanted))
    assert CLASSIFICATION.mean_losses(logits, torch.full_like(targets, -100)).tolist() == [0.0] * len(logits)


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("incubation", list(Incubation))
def test_norms_match_the_gradients_of_each_member(float64, grown, layout, incubation):
    population = grown(5, blends=tuple(Blend), incubation=incubation, layout=layout)
    population.network.train()
    wanted = []
    for step in range(2):
        xs, ys, x = population.batch(5, 12, step)
        population.network.backward(x, torch.stack(ys))
        optimiser_step(population.network)
        norms = np.full((5, 4), np.nan)
        for member, reference in enumerate(population.references):
            statistics = {name: buffer.clone() for name, buffer in reference.host.named_buffers()}
            reference.gradients(xs[member], ys[member])
            for name, buffer in reference.host.named_buffers():
                buffer.copy_(statistics[name])
            norms[member, 0] = norm_of(reference.host)
            for slot, seed in reference.seeds.items():
                if seed.learns:
                    norms[member, 1 + slot] = norm_of(seed.module)
            reference.train_batch(xs[member], ys[member])
        wanted.append(norms)
    np.testing.assert_allclose(population.network.take_norms(), np.mean(wanted, axis=0), rtol=1e-7)
    assert np.isnan(wanted[0]).any()
    assert (np.nan_to_num(wanted[0], nan=1.0) > 0).all()
    assert population.network.take_norms().isnan().all()


def norm_of(module):
    return torch.cat([parameter.grad.flatten() for parameter in module.parameters()]).norm().item()
