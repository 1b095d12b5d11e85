"""Growth potential: against seeds that were really inserted, for every blueprint, host and layout."""

import copy

import pytest
import torch
from torch import nn

from esper.fusion.layers import ChannelScale
from esper.fusion.layout import side_by_side
from esper.growth.network import GrowingNetwork, member_losses
from esper.hosts.cnn import CNNConfig
from esper.hosts.mlp import MLPConfig
from esper.hosts.transformer import TransformerConfig
from esper.measure.potential import NewbornBranch, layer_gradient, residual
from esper.seeds.bank import SGDConfig
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.blueprints.registry import BLUEPRINTS
from esper.seeds.slot_gradients import GradientHooks, SlotGradients, samples_of

MEMBERS, SAMPLES, CLASSES = 3, 6, 5
HOSTS = {
    "images": lambda: CNNConfig(base_channels=3).build((2, 8, 8), CLASSES, [False, True, False]),
    "vectors": lambda: MLPConfig(width=8).build((2 * 64,), CLASSES, [False, True]),
    "sequences": lambda: TransformerConfig(width=8, heads=2, layers=1, context=6).build((8,), CLASSES, [False]),
}


def batch(layout, seed=0):
    """Samples `[M, n, ...]` and their targets, one for each output."""
    generator = torch.Generator().manual_seed(seed)
    if layout == "sequences":
        x = torch.randint(CLASSES, (MEMBERS, SAMPLES, 6), generator=generator)
        return x, torch.randint(CLASSES, (MEMBERS, SAMPLES * 6), generator=generator)
    x = torch.randn(MEMBERS, SAMPLES, 2, 8, 8, generator=generator)
    return x, torch.randint(CLASSES, (MEMBERS, SAMPLES), generator=generator)


def network_of(layout, blueprints=()):
    torch.manual_seed(1)
    hosts = [HOSTS[layout]() for _ in range(MEMBERS)]
    return hosts, GrowingNetwork(hosts, blueprints, host_optimiser=SGDConfig(), seed_optimiser=SGDConfig())


def blueprints_of(slot):
    made = {name: kind() for name, kind in BLUEPRINTS.items()}
    return {name: one for name, one in made.items() if one.plantable and one.obstacle(slot) is None}


def inserted(host, slot, branch, x, y):
    """Squared norm of the gradient of all the branch's parameters, with the branch in the slot of a plain host."""
    host, branch = copy.deepcopy(host).train(), copy.deepcopy(branch)
    for index, segment in enumerate(host.segments):
        x = segment(x)
        if index == slot:
            x = x + branch(x)
    nn.functional.cross_entropy(x.flatten(0, -2), y.flatten()).backward()
    return sum(parameter.grad.square().sum() for parameter in branch.parameters())


@pytest.mark.parametrize("layout", HOSTS)
def test_is_the_gradient_of_a_seed_that_is_really_inserted(float64, layout):
    hosts, network = network_of(layout)
    x, y = batch(layout)
    network.train()
    hooks = GradientHooks(MEMBERS)
    member_losses(network.forward(side_by_side(x), hooks), y).sum().backward()
    for slot, felt in enumerate(hooks.gradients()):
        spec = network.slots[slot]
        named = blueprints_of(spec)
        assert len(named) >= 5 - (layout == "vectors")
        for name, blueprint in named.items():
            dormant = NewbornBranch(blueprint, spec, "cpu")
            torch.manual_seed(0)
            branch = blueprint.branch(spec)
            nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(dormant.branch.parameters()), branch.parameters())
            wanted = torch.stack([inserted(hosts[m], slot, branch, x[m], y[m]) for m in range(MEMBERS)])
            assert (wanted > 0).all(), name
            torch.testing.assert_close(dormant.potential(felt), wanted, rtol=1e-9, atol=0, msg=name)


def test_is_the_first_fall_of_the_loss_per_unit_of_learning_rate(float64):
    hosts, network = network_of("images")
    x, y = batch("images")
    network.train()
    hooks = GradientHooks(MEMBERS)
    member_losses(network.forward(side_by_side(x), hooks), y).sum().backward()
    dormant = NewbornBranch(BLUEPRINTS["conv_light"](), network.slots[2], "cpu")
    potential = dormant.potential(hooks.gradients()[2])  # no pooling follows, whose ties would be kinks of the loss
    branch = BLUEPRINTS["conv_light"]().branch(network.slots[2])
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(dormant.branch.parameters()), branch.parameters())
    host, rate = hosts[0].train(), 1e-5

    def loss():
        h = host.segments[2](host.segments[1](host.segments[0](x[0])))
        return nn.functional.cross_entropy(host.segments[3](h + branch(h)), y[0])

    before = loss()
    before.backward()
    with torch.no_grad():
        for parameter in branch.parameters():
            parameter -= rate * parameter.grad
        assert (before - loss()).item() / rate == pytest.approx(potential[0].item(), rel=1e-3)


@pytest.mark.parametrize("layout", HOSTS)
def test_fewer_samples_are_a_mean_over_those(float64, layout):
    """Statistics of the batch aside (a host in eval mode), the first samples alone have the same gradients."""
    _, network = network_of(layout)
    network.train(False)

    def felt(x, y, count=None):
        hooks = GradientHooks(MEMBERS, count)
        member_losses(network.forward(side_by_side(x), hooks), y).sum().backward()
        return hooks.gradients()

    x, y = batch(layout)
    first = felt(x[:, :2], y.view(MEMBERS, SAMPLES, -1)[:, :2].flatten(1))
    for cut, whole in zip(felt(x, y, 2), first, strict=True):
        torch.testing.assert_close(cut.features, whole.features)
        torch.testing.assert_close(cut.grad, whole.grad)


@pytest.mark.parametrize("layout", HOSTS)
def test_parts_of_a_population_are_joined_member_by_member(layout):
    _, network = network_of(layout)
    for whole in network.capture(side_by_side(batch(layout)[0]), batch(layout)[1]):
        parts = [whole.of_member(member).arrays() for member in range(MEMBERS)]
        joined = SlotGradients.joined(parts, torch.device("cpu"))
        assert joined.features.equal(whole.features)
        assert joined.grad.equal(whole.grad)


def test_capturing_changes_nothing():
    _, network = network_of("images")
    before = {name: row.clone() for name, row in network.rows().items()}
    x, y = batch("images")
    assert all(felt.grad.any() for felt in network.capture(side_by_side(x), y))
    assert network.host.flat.grad is None
    assert all(row.equal(before[name]) for name, row in network.rows().items())


def test_a_member_s_potential_depends_on_no_other_and_comes_again():
    _, network = network_of("images")
    felt = network.capture(side_by_side(batch("images")[0]), batch("images")[1])[2]
    for blueprint in blueprints_of(network.slots[2]).values():
        together = NewbornBranch(blueprint, network.slots[2], "cpu").potential(felt)
        alone = [NewbornBranch(blueprint, network.slots[2], "cpu").potential(felt.of_member(m)) for m in range(MEMBERS)]
        torch.testing.assert_close(torch.cat(alone), together)


LAYERS = {
    "pointwise": (nn.Conv2d(3, 4, 1), (3, 5, 5)),
    "convolution": (nn.Conv2d(3, 4, 3, padding=1, stride=2), (3, 5, 5)),
    "grouped": (nn.Conv2d(4, 4, 1, groups=2, bias=False), (4, 2, 2)),
    "linear": (nn.Linear(3, 2), (3,)),
    "linear on sequences": (nn.Linear(3, 2, bias=False), (7, 3)),
    "norm": (nn.GroupNorm(1, 4), (4, 3, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_s_gradient_by_group_is_that_of_each_group_alone(float64, name):
    layer, shape = LAYERS[name]
    layer = copy.deepcopy(layer).double()
    x = torch.randn(6, *shape)
    dy = torch.randn_like(layer(x))
    grads = layer_gradient(layer, x, dy, 3)
    for group in range(3):
        part = slice(2 * group, 2 * group + 2)
        wanted = torch.autograd.grad(layer(x[part]), list(layer.parameters()), dy[part])
        for grad, one in zip(grads, wanted, strict=True):
            torch.testing.assert_close(grad[group].reshape(one.shape), one)


@pytest.mark.parametrize("layout", HOSTS)
def test_samples_by_member_undo_side_by_side(layout):
    x = torch.randn(MEMBERS, 4, *{"images": (2, 3, 3), "vectors": (5,), "sequences": (7, 5)}[layout])
    assert samples_of(side_by_side(x), MEMBERS).equal(x)
    assert samples_of(side_by_side(x), MEMBERS, 2).equal(x[:, :2])


def test_a_blueprint_of_somebody_else_is_measured_too(float64):
    """A last map that is no plain matrix: the gradient is had layer by layer, group by group."""

    class Odd(BlueprintConfig):
        layouts = BLUEPRINTS["conv_light"].layouts

        def branch(self, slot):
            last = nn.Conv2d(slot.channels, slot.channels, 3, padding=1)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
            return nn.Sequential(nn.Conv2d(slot.channels, slot.channels, 1), nn.Tanh(), last)

    hosts, network = network_of("images")
    x, y = batch("images")
    network.train()
    hooks = GradientHooks(MEMBERS)
    member_losses(network.forward(side_by_side(x), hooks), y).sum().backward()
    dormant = NewbornBranch(Odd(), network.slots[0], "cpu")
    branch = Odd().branch(network.slots[0])
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(dormant.branch.parameters()), branch.parameters())
    wanted = torch.stack([inserted(hosts[m], 0, branch, x[m], y[m]) for m in range(MEMBERS)])
    torch.testing.assert_close(dormant.potential(hooks.gradients()[0]), wanted, rtol=1e-9, atol=0)


@pytest.mark.parametrize("layout", HOSTS)
def test_what_a_linear_map_of_the_same_place_could_do_does_not_count(float64, layout):
    """The gradient that is left has no product with any feature of its place, nor a mean; the rest of it is untouched."""
    _, network = network_of(layout)
    x, y = (torch.cat([batch(layout, seed)[part] for seed in range(5)], 1) for part in (0, 1))
    for felt in network.capture(side_by_side(x), y):
        left = residual(felt)
        for member in range(MEMBERS):
            h, grad, rest = (
                (one[member].movedim(1, -1) if one.dim() == 5 else one[member]).flatten(0, -2)
                for one in (felt.features, felt.grad, left.grad)
            )
            wide = torch.cat([h, torch.ones(len(h), 1)], 1)
            wanted = grad - wide @ torch.linalg.lstsq(wide, grad, driver="gelsd").solution
            scale = grad.abs().max().item()
            torch.testing.assert_close(rest, wanted, rtol=0, atol=2e-2 * scale)
            assert (wide.T @ rest).norm() < 1e-3 * (wide.T @ grad).norm()
            assert rest.norm() > 0.1 * grad.norm()
        assert left.features is felt.features


def test_slots_of_few_places_keep_more_samples():
    _, network = network_of("images")
    x, y = batch("images")
    hooks = GradientHooks(MEMBERS, 1, spots=1)
    member_losses(network.forward(side_by_side(x), hooks), y).sum().backward()
    kept = [one.features.shape[1] for one in hooks.gradients()]
    assert kept == [1, 1, 4]  # 3, 6 and 12 channels on 64, 16 and 4 places


def test_a_sick_host_does_not_stop_the_others():
    _, network = network_of("images")
    felt = network.capture(side_by_side(batch("images")[0]), batch("images")[1])[0]
    dormant = NewbornBranch(BLUEPRINTS["conv_light"](), network.slots[0], "cpu")
    healthy = dormant.potential(residual(felt))
    sick = SlotGradients(features=felt.features.clone(), grad=felt.grad.clone())
    sick.features[0], sick.grad[1] = float("nan"), 0.0
    potential = dormant.potential(residual(sick))
    assert not potential[0].isfinite()
    assert potential[1] == 0
    assert potential[2] == pytest.approx(healthy[2].item(), rel=1e-5)


def test_a_layer_that_is_used_twice_has_the_sum_of_both_gradients(float64):
    class Twice(BlueprintConfig):
        layouts = BLUEPRINTS["norm"].layouts

        def branch(self, slot):
            class Branch(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.last = ChannelScale(slot.channels)

                def forward(self, x):
                    return self.last(x) + self.last(self.last(x) + x.tanh())

            return Branch()

    hosts, network = network_of("images")
    x, y = batch("images")
    network.train()
    hooks = GradientHooks(MEMBERS)
    member_losses(network.forward(side_by_side(x), hooks), y).sum().backward()
    dormant = NewbornBranch(Twice(), network.slots[1], "cpu")
    wanted = torch.stack([inserted(hosts[m], 1, Twice().branch(network.slots[1]), x[m], y[m]) for m in range(MEMBERS)])
    for _ in range(2):
        torch.testing.assert_close(dormant.potential(hooks.gradients()[1]), wanted, rtol=1e-9, atol=0)
