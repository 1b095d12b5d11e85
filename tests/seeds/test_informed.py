"""Informed initial weights: identity at birth, and the largest possible first gradient of a linear branch."""

import copy

import pytest
import torch
from torch import nn

from esper.fusion.layout import Layout, side_by_side
from esper.hosts.base import SlotSpec
from esper.lifecycle.roles import Blend
from esper.optimisers.sgd import SGDConfig
from esper.seeds.bank import SeedBank, informed, newborn
from esper.seeds.blueprints.attention import AttentionConfig
from esper.seeds.blueprints.base import Init, MapConfig, is_informed
from esper.seeds.blueprints.dense import LoraConfig
from esper.seeds.blueprints.plain import NormConfig
from esper.seeds.blueprints.registry import BLUEPRINTS
from esper.seeds.informed import feeding_map, inform
from esper.seeds.slot_gradients import SlotGradients
from tests.measure.test_potential import HOSTS, MEMBERS, batch, network_of

MAPS = {name: kind for name, kind in BLUEPRINTS.items() if issubclass(kind, MapConfig)}


def felt_by(layout):
    _, network = network_of(layout)
    x, y = batch(layout)
    return network, network.capture(side_by_side(x), y)


def first_gradient(branch, at_slot):
    """Squared norm of the gradient of all parameters, over the samples of one member."""
    branch.zero_grad()
    branch(at_slot.features.flatten(0, 1)).backward(at_slot.grad.flatten(0, 1))
    return sum(parameter.grad.square().sum() for parameter in branch.parameters() if parameter.grad is not None)


def branch_with(blueprint, slot, row):
    branch = blueprint.branch(slot)
    nn.utils.vector_to_parameters(row.clone(), branch.parameters())
    return branch


def both(blueprint, slot, at_slot, seed=0):
    """The branch with its default draw, and informed."""
    row = newborn(blueprint, slot, torch.Generator().manual_seed(seed))
    return branch_with(blueprint, slot, row), branch_with(blueprint, slot, informed(blueprint, slot, row, at_slot))


def cases(layout):
    network, at_slot = felt_by(layout)
    for slot, spec in enumerate(network.slots):
        for name, kind in MAPS.items():
            blueprint = kind(init=Init.informed)
            if blueprint.obstacle(spec) is None:
                for member in range(MEMBERS):
                    yield f"{name} in {spec.name}", blueprint, spec, at_slot[slot].of_member(member)


@pytest.mark.parametrize("layout", HOSTS)
def test_an_informed_seed_is_the_identity_and_changes_one_map(layout):
    seen = set()
    for name, blueprint, slot, at_slot in cases(layout):
        default, made = both(blueprint, slot, at_slot)
        assert not made(10 * at_slot.features.flatten(0, 1)).any(), name
        feeding = feeding_map(made).weight
        for old, new in zip(default.parameters(), made.parameters(), strict=True):
            assert old.equal(new) != (new is feeding), name
        assert feeding.norm().item() == pytest.approx(feeding_map(default).weight.norm().item(), rel=1e-5)
        seen.add(name.split()[0])
    assert len(seen) >= 4


@pytest.mark.parametrize("layout", HOSTS)
def test_the_first_gradient_is_larger_on_average(float64, layout):
    """But where there are more filters than directions: then all of them are shown anyhow, and there is little to choose."""
    ratio: dict[str, list[float]] = {}
    for _, blueprint, slot, at_slot in cases(layout):
        for seed in range(4):
            default, made = both(blueprint, slot, at_slot, seed)
            logs = ratio.setdefault("few" if len(feeding_map(made).weight) <= slot.channels else "many", [])
            logs.append((first_gradient(made, at_slot) / first_gradient(default, at_slot)).log().item())
    mean = {name: sum(logs) / len(logs) for name, logs in ratio.items()}
    assert mean.get("few", 1.0) > 0.3
    assert mean.get("many", 1.0) > -0.05


def linear_cases():
    """Branches without activation: a layer and a map of zeros, and their inputs and gradients, for one member."""
    generator = torch.Generator().manual_seed(3)

    def zeros(layer):
        nn.init.zeros_(layer.weight)
        return layer

    def at_slot(*shape):
        return SlotGradients(
            features=torch.randn(1, *shape, generator=generator), grad=torch.randn(1, *shape, generator=generator)
        )

    torch.manual_seed(0)
    images = SlotSpec("here", 4, Layout.IMAGES)
    return {
        "lora": (LoraConfig(rank=3).branch(SlotSpec("here", 5, Layout.VECTORS)), at_slot(20, 5), 1),
        "lora on sequences": (LoraConfig(rank=3).branch(SlotSpec("here", 5, Layout.SEQUENCES)), at_slot(4, 6, 5), 1),
        "3x3": (
            nn.Sequential(nn.Conv2d(4, 3, 3, padding=1, bias=False), zeros(nn.Conv2d(3, 4, 1))),
            at_slot(6, 4, 5, 5),
            1,
        ),
        "grouped": (
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False), zeros(nn.Conv2d(4, images.channels, 1))),
            at_slot(6, 4, 5, 5),
            2,
        ),
        "depthwise": (
            nn.Sequential(nn.Conv2d(4, 4, 5, padding=2, groups=4, bias=False), zeros(nn.Conv2d(4, 4, 1, bias=False))),
            at_slot(6, 4, 5, 5),
            4,
        ),
    }


def gradient_by_hand(layer, at_slot):
    """G `[O, inputs of all groups and offsets]` from its definition, offset by offset."""
    h, grad = at_slot.features[0], at_slot.grad[0]
    if isinstance(layer, nn.Linear):
        return torch.einsum("...o,...i->oi", grad, h)[:, :, None]
    reach = layer.kernel_size[0] // 2
    padded = nn.functional.pad(h, (reach,) * 4)
    size = h.shape[-1]
    offsets = [(y, x) for y in range(2 * reach + 1) for x in range(2 * reach + 1)]
    return torch.stack([torch.einsum("nohw,nihw->oi", grad, padded[:, :, y : y + size, x : x + size]) for y, x in offsets], -1)


@pytest.mark.parametrize("name", ["lora", "lora on sequences", "3x3", "grouped", "depthwise"])
def test_without_an_activation_informed_filters_have_the_largest_gradient(float64, name):
    branch, at_slot, groups = linear_cases()[name]
    last = list(branch.modules())[-1]

    def gradient():
        first_gradient(branch, at_slot)
        return last.weight.grad.square().sum().item()

    norm = branch[0].weight.norm().item()
    inform(branch, at_slot)
    filters = len(branch[0].weight)
    whole = gradient_by_hand(branch[0], at_slot)
    best = sum(
        torch.linalg.svdvals(part.flatten(1))[: filters // groups].square().sum().item() for part in whole.chunk(groups, 1)
    )
    reached = gradient()
    assert branch[0].weight.norm().item() == pytest.approx(norm)
    if groups == 1:
        assert reached == pytest.approx(norm**2 / filters * best)
    else:  # each group keeps the norm of its own draw
        norms = [part.square().sum().item() for part in copy.deepcopy(linear_cases()[name][0])[0].weight.detach().chunk(groups)]
        parts = [torch.linalg.svdvals(part.flatten(1))[: filters // groups].square().sum() for part in whole.chunk(groups, 1)]
        assert reached == pytest.approx(sum(n / (filters // groups) * s.item() for n, s in zip(norms, parts, strict=True)))
    for _ in range(30):
        rows = torch.linalg.qr(torch.randn(groups, branch[0].weight[0].numel(), filters // groups))[0].mT
        scale = branch[0].weight.view(groups, -1, rows.shape[-1]).norm(dim=2, keepdim=True)
        with torch.no_grad():
            branch[0].weight.copy_((rows * scale).reshape(branch[0].weight.shape))
        assert gradient() < reached


def test_filters_beyond_the_directions_repeat_them_with_the_other_sign_and_then_stay(float64):
    """Two channels give two directions: of five filters, two lie along them, two against them, one is as it was drawn."""
    slot, at_slot = (
        SlotSpec("here", 2, Layout.VECTORS),
        SlotGradients(features=torch.randn(1, 9, 2), grad=torch.randn(1, 9, 2)),
    )
    default, made = both(LoraConfig(rank=5), slot, at_slot)
    old, new = feeding_map(default).weight, feeding_map(made).weight
    torch.testing.assert_close(new[2:4], -new[:2])
    assert (new[0] @ new[1]).item() == pytest.approx(0, abs=1e-12)
    assert new[4].equal(old[4])
    assert new.norm().item() == pytest.approx(old.norm().item())


@pytest.mark.parametrize("sick", [0.0, float("nan"), float("inf")])
def test_a_zero_or_non_finite_gradient_keeps_the_default_draw(sick):
    for name, blueprint, slot, at_slot in cases("images"):
        default, made = both(blueprint, slot, SlotGradients(features=at_slot.features, grad=torch.full_like(at_slot.grad, sick)))
        assert feeding_map(made).weight.equal(feeding_map(default).weight), name


def test_informing_a_member_uses_its_own_gradients_and_no_random_numbers():
    network, at_slot = felt_by("images")
    blueprint, slot = MAPS["conv_light"](init=Init.informed), network.slots[1]
    bank = SeedBank(blueprint, slot, MEMBERS, SGDConfig(), "cpu")
    state = torch.get_rng_state()
    bank.plant(1, torch.Generator().manual_seed(0), at_slot[1].of_member(1))
    assert torch.get_rng_state().equal(state)
    alone = informed(blueprint, slot, newborn(blueprint, slot, torch.Generator().manual_seed(0)), at_slot[1].of_member(1))
    assert bank.fleet.flat[1].equal(alone)
    assert not bank.fleet.flat[[0, 2]].any()
    bank.plant(2, torch.Generator().manual_seed(0), at_slot[1].of_member(2))
    assert not bank.fleet.flat[2].equal(bank.fleet.flat[1])


def test_a_multiplicative_seed_is_informed_by_its_own_gradient():
    network, at_slot = felt_by("images")
    network.blueprints = (MAPS["conv_light"](init=Init.informed),)
    with pytest.raises(ValueError, match="init=informed needs slot gradients"):
        network.plant(0, 0, 0, torch.Generator().manual_seed(0))
    rows = []
    for blend in Blend:
        network.plant(0, 0, 0, torch.Generator().manual_seed(0), blend, at_slot)
        rows.append(network.bank(0, 0, blend is Blend.GATE).fleet.flat[0].clone())
    size = rows[0].numel()
    assert rows[2][:size].equal(rows[0])  # the gate's own parameters come behind
    network.clear(0, 0, 0)
    times_h = SlotGradients(features=at_slot[0].features, grad=at_slot[0].features * at_slot[0].grad)
    network.plant(0, 0, 0, torch.Generator().manual_seed(0), Blend.ADD, [times_h])
    assert network.bank(0, 0).fleet.flat[0].equal(rows[1])
    assert not rows[1].equal(rows[0])


def test_only_blueprints_with_a_feeding_map_have_the_option_init():
    for kind in (NormConfig, AttentionConfig):
        with pytest.raises(TypeError, match="init"):
            kind(init=Init.informed)
        assert not is_informed(kind())
    with pytest.raises(ValueError, match="no map before its last one"):
        feeding_map(NormConfig().branch(SlotSpec("here", 4)))
    with pytest.raises(ValueError, match="shift positions"):
        feeding_map(nn.Sequential(nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 1)))
