"""Isolation, blending, per-member optimisers, snapshots, and counterfactual forwards."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from esper.population.alpha import blend, isolate
from esper.population.bank import MemberSGD, SeedBank, SGDConfig, newborn
from esper.population.blueprints import BlueprintConfig, ConvLightConfig, NormConfig
from esper.population.fusion import FusionError, flatten_parameters
from esper.population.hosts import SlotSpec
from esper.population.network import member_losses


def bits(tensor):
    """The bit patterns, so that NaN equals NaN and -0.0 differs from 0.0."""
    return tensor.detach().contiguous().view(torch.int32)


# ---- blend and isolate


SLOT = SlotSpec("r0c0", 3)
EVERYONE = torch.arange(3)


@pytest.mark.parametrize("shape", [(2, 6, 3, 4), (2, 6)], ids=["images", "vectors"])
def test_blend_adds_alpha_delta_and_passes_the_gradient_by_one_and_pull(float64, shape):
    alpha, pull = torch.tensor([0.0, 0.25, 1.0]), torch.tensor([1.0, 0.25, 0.5])
    h, delta = torch.randn(shape, requires_grad=True), torch.randn(shape, requires_grad=True)
    y = blend(h, delta, alpha, pull, EVERYONE, 3)
    upstream = torch.randn(shape)
    y.backward(upstream)
    per_channel = [1, -1] + [1] * (len(shape) - 2)
    wanted = h + torch.tensor([0, 0, 0.25, 0.25, 1, 1]).view(per_channel) * delta
    assert torch.allclose(y, wanted, rtol=0, atol=1e-15)
    assert h.grad.equal(upstream)
    assert delta.grad.equal(upstream * torch.tensor([1, 1, 0.25, 0.25, 0.5, 0.5]).view(per_channel))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_blend_leaves_members_without_a_seed_as_they_are_and_finds_its_members_in_any_order(float64, layout):
    h = torch.randn(2, 8, 3, 3).contiguous(memory_format=layout).requires_grad_()
    delta = torch.randn(2, 4, 3, 3).contiguous(memory_format=layout).requires_grad_()
    alpha, live = torch.tensor([0.5, 0.25]), torch.tensor([3, 1])
    kept = h.detach().clone()
    y = blend(h, delta, alpha, alpha, live, 4)
    assert h.equal(kept)
    assert y[:, [0, 1, 4, 5]].equal(h[:, [0, 1, 4, 5]])
    assert torch.allclose(y[:, 6:8], h[:, 6:8] + 0.5 * delta[:, 0:2], atol=1e-15)
    assert torch.allclose(y[:, 2:4], h[:, 2:4] + 0.25 * delta[:, 2:4], atol=1e-15)
    upstream = torch.randn_like(y)
    y.backward(upstream)
    assert h.grad.equal(upstream)
    assert delta.grad.equal(torch.cat([0.5 * upstream[:, 6:8], 0.25 * upstream[:, 2:4]], 1))


def test_blend_has_the_gradient_of_its_formula_where_pull_is_alpha(float64):
    alpha, live = torch.tensor([0.3, 1.0]), torch.tensor([0, 2])
    inputs = (torch.randn(2, 6, 2, 2, requires_grad=True), torch.randn(2, 4, 2, 2, requires_grad=True))
    assert torch.autograd.gradcheck(lambda h, delta: blend(h, delta, alpha, alpha, live, 3), inputs)


def test_alpha_zero_keeps_every_bit_and_does_not_hide_a_sick_seed():
    h, delta = torch.randn(2, 6, 3, 3), 1e30 * torch.randn(2, 6, 3, 3)
    zero, one = torch.zeros(3), torch.ones(3)
    assert blend(h, delta, zero, one, EVERYONE, 3).equal(h)
    delta[0, 0, 0, 0] = torch.nan
    assert blend(h, delta, zero, one, EVERYONE, 3).isnan().sum() == 1


def test_isolate_is_the_identity_and_closes_the_gradient_of_some():
    x = torch.randn(2, 6, 3, 3, requires_grad=True)
    y = isolate(x, torch.tensor([True, False, True]))
    assert bits(y).equal(bits(x))
    upstream = torch.randn_like(x)
    upstream[0, 2, 0, 0] = torch.nan  # of the closed member
    y.backward(upstream)
    assert x.grad[:, [0, 1, 4, 5]].equal(upstream[:, [0, 1, 4, 5]])
    assert not x.grad[:, 2:4].any()


# ---- isolation in a network


def one_batch(grown, seed=0):
    _, ys, x = grown.batch(grown.network.members, 12, seed)
    return x, torch.stack(ys)


def live_banks(population):
    """Every bank that takes part, with its members."""
    return [pair for seeds in population.network.plan if seeds is not None for pair in seeds.banks]


def host_gradient(population):
    population.network.train()
    x, y = one_batch(population)
    logits = population.network.forward(x)
    member_losses(logits, y).sum().backward()
    gradient, population.network.host.flat.grad = population.network.host.flat.grad.clone(), None
    return logits.detach(), gradient


def test_seeds_that_train_behind_the_host_leave_it_bit_for_bit_alone(grown):
    population, bare = grown(3), grown(3)
    population.behind[:], population.alpha[:] = True, 0.0
    population.arrange()
    bare.blueprint[:] = -1
    bare.arrange()
    assert bare.network.plan == [None, None, None]
    (logits, gradient), (bare_logits, bare_gradient) = host_gradient(population), host_gradient(bare)
    assert logits.equal(bare_logits)
    assert gradient.equal(bare_gradient)
    assert gradient.any(dim=1).all()
    for bank, members in live_banks(population):  # and yet every one of them learns
        assert bank.fleet.flat.grad[members].any(dim=1).all()


def test_hosts_without_seeds_do_not_feel_the_seeds_of_others(grown):
    population, bare = grown(4), grown(4)
    population.blueprint[[0, 2]] = -1
    population.arrange()
    bare.blueprint[:] = -1
    bare.arrange()
    (logits, gradient), (bare_logits, bare_gradient) = host_gradient(population), host_gradient(bare)
    assert logits[[0, 2]].equal(bare_logits[[0, 2]])
    assert gradient[[0, 2]].equal(bare_gradient[[0, 2]])
    assert not gradient[[1, 3]].equal(bare_gradient[[1, 3]])


def test_what_lies_before_a_slot_still_learns_at_alpha_one(grown):
    population = grown(3)
    population.behind[:] = False
    population.alpha[:] = np.where(population.blueprint >= 0, 1.0, 0.0)
    population.arrange()
    for bank, _ in live_banks(population):
        with torch.no_grad():
            bank.fleet.flat *= 1e-20  # delta is nothing: all that is left is the direct path
    bare = grown(3)
    bare.blueprint[:] = -1
    bare.arrange()
    (_, gradient), (_, bare_gradient) = host_gradient(population), host_gradient(bare)
    assert torch.allclose(gradient, bare_gradient, rtol=1e-4, atol=1e-6)
    assert (gradient[:, :33].norm(dim=1) > 1e-3).all()  # the first block: 27 weights, 6 of its norm


def test_a_bank_is_made_when_first_needed_and_only_live_rows_are_computed(grown):
    population = grown(3)
    network = population.network
    assert set(network.banks) == {(s, int(population.blueprint[m, s])) for m in range(3) for s in range(3)} - {
        (0, -1),
        (1, -1),
        (2, -1),
    }
    widths = []
    for bank, _ in network.plan[0].banks:
        bank.fleet.module.register_forward_pre_hook(lambda _, args: widths.append(args[0].shape[1]))
    x, _ = one_batch(population)
    network.train(False)
    network.forward(x)
    assert widths == [3 * max(2, len(members)) for _, members in network.plan[0].banks]


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


def test_the_active_rows_step_as_they_would_if_all_were_active(float64):
    one, two = (torch.ones(2, 3).requires_grad_() for _ in range(2))
    all_of, some = MemberSGD(one, SGDConfig(weight_decay=0.1)), MemberSGD(two, SGDConfig(weight_decay=0.1))
    for turn in range(3):
        for flat in (one, two):
            flat.grad = torch.full((2, 3), 0.1 * (turn + 1))
        all_of.step()
        some.step(torch.tensor([[True], [False]]))
    assert torch.allclose(one[0], two[0], atol=1e-14)


def test_a_huge_host_gradient_leaves_the_steps_of_seeds_as_they_are(grown):
    calm, loud = grown(3), grown(3)
    for population in (calm, loud):
        population.network.train()
        x, y = one_batch(population)
        member_losses(population.network.forward(x), y).sum().backward()
    loud.network.host.flat.grad *= 1e12
    for population in (calm, loud):
        population.network.step()
    for key, bank in calm.network.banks.items():
        assert bank.fleet.flat.equal(loud.network.banks[key].fleet.flat)
    moved = (loud.network.host.flat - grown(3).network.host.flat).norm(dim=1)
    assert (moved <= 0.05 * 1.2).all()  # one step of the learning rate times the largest norm, and some decay


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("learning_rate", 0.0, "above 0"),
        ("learning_rate", float("nan"), "above 0"),
        ("momentum", 1.0, r"in \[0, 1\)"),
        ("momentum", -0.1, r"in \[0, 1\)"),
        ("weight_decay", -1e-4, "at least 0"),
        ("max_norm", 0.0, "use inf"),
        ("max_norm", -1.0, "above 0"),
    ],
)
def test_each_rule_of_the_optimiser_s_config_fires(field, value, rule):
    with pytest.raises(ValueError, match=rf"task\.host_optimiser\.{field} must be .*{rule}"):
        SGDConfig(**{field: value}).check("task.host_optimiser")
    SGDConfig(max_norm=float("inf"), momentum=0.0).check("x")


@pytest.mark.parametrize(
    "weight_decay",
    [
        0.0,
        0.01,
    ],
)
@pytest.mark.parametrize("rest", ["all_learn", "some_learn"])
def test_a_seed_that_takes_no_part_keeps_its_bits(grown, weight_decay, rest):
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
        x, y = one_batch(population)
        member_losses(network.forward(x), y).sum().backward()
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


def test_planting_writes_one_row_from_its_generator_alone():
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


def test_clearing_empties_parameters_and_momentum_of_these_rows():
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


# ---- snapshots


def test_the_sick_are_brought_back_exactly_and_the_others_keep_their_bits(grown):
    population = grown(3)
    network = population.network

    def train(steps):
        network.train()
        for step in range(steps):
            x, y = one_batch(population, step)
            member_losses(network.forward(x), y).sum().backward()
            network.step()

    train(2)
    everyone = torch.ones(3, dtype=torch.bool)
    network.remember(everyone)
    first = {name: row.clone() for name, row in network.rows().items()}
    train(1)
    network.remember(torch.tensor([True, True, False]))  # member 2 is sick: its snapshot stays
    second = {name: row.clone() for name, row in network.rows().items()}
    train(1)
    late = next(iter({(s, b) for s in range(3) for b in range(4)} - set(network.banks)), None)
    assert late is not None
    network.bank(*late).plant(2, torch.Generator())  # a bank that came after the snapshot
    third = {name: row.clone() for name, row in network.rows().items()}
    network.restore(torch.tensor([False, True, True]))
    for name, row in network.rows().items():
        assert bits(row[0].float()).equal(bits(third[name][0].float())), name
        if name in first:
            assert row[1].equal(second[name][1]), name
            assert row[2].equal(first[name][2]), name
        else:
            assert not row[1:].any(), name
    assert any(not first[name][1].equal(third[name][1]) for name in first)


def test_rows_hold_all_that_a_member_is(grown):
    """Copying the rows of one network into another makes it the same network."""
    one, two = grown(3), grown(3)
    for step in range(3):
        one.network.train()
        x, y = one_batch(one, step)
        member_losses(one.network.forward(x), y).sum().backward()
        one.network.step()
    with torch.no_grad():
        for name, row in two.network.rows().items():
            row.copy_(one.network.rows()[name])
    x, y = one_batch(one, 9)
    for population in (one, two):
        population.network.train()
        member_losses(population.network.forward(x), y).sum().backward()
        population.network.step()
        population.network.train(False)
    assert one.network.forward(x).equal(two.network.forward(x))


# ---- counterfactuals


def settings(population, count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.choice([0.0, 0.3, 1.0], size=(count, *population.alpha.shape)).astype(np.float32)


def leave_one_out(population):
    alpha = np.repeat(population.alpha[None], 4, axis=0)
    for slot in range(3):
        alpha[slot + 1, :, slot] = 0.0
    return alpha


@pytest.mark.parametrize("members", [1, 3, 8])
@pytest.mark.parametrize("kind", ["random", "leave_one_out"])
def test_variants_equal_one_forward_for_each_setting(grown, members, kind):
    """To 1e-4: blocks of other heights may take other kernels. One setting alone is bit-equal to `forward`."""
    population = grown(members)
    population.alpha[:] = np.where(population.blueprint >= 0, 0.5, 0.0)
    alpha = settings(population, 12) if kind == "random" else leave_one_out(population)
    network = population.network
    population.arrange()
    network.train(False)
    x, _ = one_batch(population)
    together = network.variants(x, alpha)
    assert together.shape == (len(alpha), members, 12, 10)
    for index, setting in enumerate(alpha):
        alone = network.variants(x, setting[None])[0]
        population.arrange(setting)
        with torch.no_grad():
            brute = network.forward(x)
        assert alone.equal(brute)
        assert torch.allclose(together[index], brute, atol=1e-4, rtol=1e-4)
        population.arrange()


def test_variants_equal_plain_pytorch(float64, grown):
    population = grown(4)
    alpha = settings(population, 6, seed=1)
    population.network.train(False)
    xs, _, x = population.batch(4, 12, 0)
    together = population.network.variants(x, alpha)
    for index, setting in enumerate(alpha):
        for member, reference in enumerate(population.references):
            reference.host.eval()
            seeds = reference.seeds.items()
            reference.seeds = {slot: (seed[0], float(setting[member, slot]), False, False) for slot, seed in seeds}
            assert torch.allclose(together[index, member], reference.forward(xs[member]), atol=1e-7)  # alphas are single


def count_rows(network, act):
    """Rows that each segment and each bank computed while `act` ran."""
    rows = dict.fromkeys([*range(len(network.slots) + 1), *network.banks], 0)
    hooks = []
    for name, module in [
        *enumerate(network._segments(network.host.module)),
        *((k, b.fleet.module) for k, b in network.banks.items()),
    ]:

        def count(_, args, name=name):
            rows[name] += args[0].shape[0]

        hooks.append(module.register_forward_pre_hook(count))
    act()
    for hook in hooks:
        hook.remove()
    return rows


def test_settings_share_all_that_lies_before_they_part(grown):
    population = grown(1)
    population.blueprint[:] = [[0, 1, 2]]
    for slot in range(3):
        population.network.bank(slot, slot)
    population.alpha[:] = 1.0
    population.arrange()
    network = population.network
    network.train(False)
    x, _ = one_batch(population)
    rows = count_rows(network, lambda: network.variants(x, leave_one_out(population)))
    assert [rows[segment] // 12 for segment in range(4)] == [1, 2, 3, 4]
    assert [rows[slot, slot] // 12 for slot in range(3)] == [1, 2, 3]
    brute = count_rows(network, lambda: [network.variants(x, alpha[None]) for alpha in leave_one_out(population)])
    assert [brute[segment] // 12 for segment in range(4)] == [4, 4, 4, 4]
    same = count_rows(network, lambda: network.variants(x, np.repeat(population.alpha[None], 5, axis=0)))
    assert [same[segment] // 12 for segment in range(4)] == [1, 1, 1, 1]
    population.blueprint[:] = -1
    population.arrange()
    bare = count_rows(network, lambda: network.variants(x, settings(population, 5)))
    assert [bare[segment] // 12 for segment in range(4)] == [1, 1, 1, 1]  # slots without a seed are ignored


def test_measuring_changes_nothing(grown):
    population = grown(3)
    population.network.train(False)
    before = {name: row.clone() for name, row in population.network.rows().items()}
    plan = copy.copy(population.network.plan)
    x, _ = one_batch(population)
    population.network.variants(x, settings(population, 5))
    assert all(row.equal(before[name]) for name, row in population.network.rows().items())
    assert population.network.plan == plan
    assert population.network.host.flat.grad is None


# ---- what is measured in training


def test_the_loss_of_a_member_is_its_mean_cross_entropy():
    logits, targets = torch.randn(3, 8, 10), torch.randint(10, (3, 8))
    wanted = [nn.functional.cross_entropy(*pair) for pair in zip(logits, targets, strict=True)]
    assert torch.allclose(member_losses(logits, targets), torch.stack(wanted))
