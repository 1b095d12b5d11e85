"""Growth potential, compared with seeds inserted into plain hosts, for every blueprint, host and layout."""

import copy
import warnings

import pytest
import torch
from torch import nn

from esper.fusion.layers import ChannelScale
from esper.fusion.layout import Layout, side_by_side
from esper.growth.network import GrowingNetwork
from esper.hosts.base import SlotSpec
from esper.hosts.cnn import CNNConfig
from esper.hosts.mlp import MLPConfig
from esper.hosts.transformer import TransformerConfig
from esper.measure.potential import NewbornBranch, PotentialSensor, SlotSensor, residual
from esper.optimisers.sgd import SGDConfig
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.blueprints.registry import BLUEPRINTS
from esper.seeds.slot_gradients import GradientHooks, SlotGradients, samples_of

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch.func, attention

MEMBERS, SAMPLES, CLASSES = 3, 6, 5
HOSTS = {
    "images": lambda: CNNConfig(base_channels=3).build((2, 8, 8), CLASSES, [False, True, False]),
    "vectors": lambda: MLPConfig(width=4).build((2 * 64,), CLASSES, [False, True]),
    "sequences": lambda: TransformerConfig(width=8, heads=2, layers=1, context=6).build((8,), CLASSES, [False]),
}


class Twice(BlueprintConfig):
    """A branch that uses its last layer three times."""

    layouts = tuple(Layout)

    def branch(self, slot):
        class Branch(nn.Module):
            def __init__(self):
                super().__init__()
                self.last = ChannelScale(slot.channels)

            def forward(self, x):
                return self.last(x) + self.last(self.last(x) + x.tanh())

        return Branch()


class Bounded(BlueprintConfig):
    """A branch with a function without weights after its last layer."""

    layouts = (Layout.IMAGES,)

    def branch(self, slot):
        return nn.Sequential(zeros(nn.Conv2d(slot.channels, slot.channels, 1)), nn.Hardtanh())


class Wide(BlueprintConfig):
    """A branch whose last layer is a 3x3 convolution."""

    layouts = (Layout.IMAGES,)

    def branch(self, slot):
        last = zeros(nn.Conv2d(slot.channels, slot.channels, 3, padding=1))
        return nn.Sequential(nn.Conv2d(slot.channels, slot.channels, 1), nn.Tanh(), last)


class Dead(BlueprintConfig):
    """A branch without a gradient at birth."""

    layouts = (Layout.IMAGES,)

    def branch(self, slot):
        return nn.Sequential(*(zeros(nn.Conv2d(slot.channels, slot.channels, 1, bias=False)) for _ in range(2)))


UNUSUAL = {"twice": Twice(), "bounded": Bounded(), "wide": Wide()}


def zeros(layer):
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def batch(layout, seed=0):
    """Return samples `[M, n, ...]` and one target per output."""
    generator = torch.Generator().manual_seed(seed)
    if layout == "sequences":
        x = torch.randint(CLASSES, (MEMBERS, SAMPLES, 6), generator=generator)
        return x, torch.randint(CLASSES, (MEMBERS, SAMPLES * 6), generator=generator)
    x = torch.randn(MEMBERS, SAMPLES, 2, 8, 8, generator=generator)
    return x, torch.randint(CLASSES, (MEMBERS, SAMPLES), generator=generator)


def network_of(layout):
    torch.manual_seed(1)
    hosts = [HOSTS[layout]() for _ in range(MEMBERS)]
    return hosts, GrowingNetwork(hosts, (), optimiser=SGDConfig())


def captured(network, x, y, count=None, spots=0):
    """Return the gradients of each slot, captured in a training step."""
    hooks = GradientHooks(MEMBERS, count, spots=spots)
    network.backward(side_by_side(x), y, hooks)
    return hooks.gradients()


def blueprints_of(slot):
    """Return all blueprints that can grow in a slot, and unusual ones, by name."""
    made = {name: kind() for name, kind in BLUEPRINTS.items()} | UNUSUAL
    return {name: one for name, one in made.items() if one.obstacle(slot) is None}


def branch_of(blueprint, slot):
    """Return a trainable branch with the newborn weights of the sensor."""
    branch, newborn = blueprint.branch(slot), NewbornBranch(blueprint, slot, "cpu").branch
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(newborn.parameters()), branch.parameters())
    return branch


def inserted(host, slot, branch, x, y):
    """Return the squared norm of the gradient of a branch in the slot of a plain host."""
    host, branch = copy.deepcopy(host).train(), copy.deepcopy(branch)
    for index, segment in enumerate(host.segments):
        x = segment(x)
        if index == slot:
            x = x + branch(x)
    nn.functional.cross_entropy(x.flatten(0, -2), y.flatten()).backward()
    return sum(parameter.grad.square().sum() for parameter in branch.parameters() if parameter.grad is not None)


# ---- one branch


@pytest.mark.parametrize("layout", HOSTS)
def test_potential_is_the_squared_gradient_of_an_inserted_seed(float64, layout):
    hosts, network = network_of(layout)
    x, y = batch(layout)
    network.train()
    for slot, gradients in enumerate(captured(network, x, y)):
        spec = network.slots[slot]
        named = blueprints_of(spec)
        assert len(named) >= 5
        for name, blueprint in named.items():
            branch = branch_of(blueprint, spec)
            expected = torch.stack([inserted(hosts[m], slot, branch, x[m], y[m]) for m in range(MEMBERS)])
            assert (expected > 0).all(), name
            found = NewbornBranch(blueprint, spec, "cpu").potential(gradients)
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=0, msg=name)


def test_potential_is_the_first_fall_of_the_loss_per_unit_of_learning_rate(float64):
    hosts, network = network_of("images")
    x, y = batch("images")
    network.train()
    blueprint, spec = BLUEPRINTS["conv_light"](), network.slots[2]  # no pooling follows, whose ties would be kinks of the loss
    potential = NewbornBranch(blueprint, spec, "cpu").potential(captured(network, x, y)[2])
    branch, host, rate = branch_of(blueprint, spec), hosts[0].train(), 1e-5

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
def test_residual_is_orthogonal_to_the_features_and_a_constant(float64, layout):
    _, network = network_of(layout)
    x, y = (torch.cat([batch(layout, seed)[part] for seed in range(5)], 1) for part in (0, 1))
    for gradients in network.capture(side_by_side(x), y):
        left = residual(gradients)
        for member in range(MEMBERS):
            h, grad, rest = (
                (one[member].movedim(1, -1) if one.dim() == 5 else one[member]).flatten(0, -2)
                for one in (gradients.features, gradients.grad, left.grad)
            )
            wide = torch.cat([h, torch.ones(len(h), 1)], 1)
            expected = grad - wide @ torch.linalg.lstsq(wide, grad, driver="gelsd").solution
            torch.testing.assert_close(rest, expected, rtol=0, atol=2e-2 * grad.abs().max().item())
            assert (wide.T @ rest).norm() < 1e-3 * (wide.T @ grad).norm()
            assert rest.norm() > 0.1 * grad.norm()
        assert left.features is gradients.features


# ---- all blueprints and slots


@pytest.mark.parametrize("layout", HOSTS)
def test_sensor_measures_what_each_branch_measures_alone(float64, layout):
    _, network = network_of(layout)
    x, y = batch(layout)
    gradients = network.capture(side_by_side(x), y)
    for slot, one in zip(network.slots, gradients, strict=True):
        named = blueprints_of(slot)
        sensor = SlotSensor(list(named.values()), slot, "cpu")
        usual = {name for k, name in enumerate(named) if k in sensor.trunks}
        assert usual >= named.keys() - UNUSUAL.keys() - {"attention"}
        assert not usual & UNUSUAL.keys()
        alone = [NewbornBranch(blueprint, slot, "cpu").potential(residual(one)) for blueprint in named.values()]
        torch.testing.assert_close(sensor.measure(one), torch.stack(alone, 1), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("layout", HOSTS)
def test_many_members_are_measured_in_groups(float64, monkeypatch, layout):
    _, network = network_of(layout)
    one = network.capture(side_by_side(batch(layout)[0]), batch(layout)[1])[0]
    sensor = SlotSensor(list(blueprints_of(network.slots[0]).values()), network.slots[0], "cpu")
    whole, groups = sensor.measure(one), list[int]()
    monkeypatch.setattr("esper.measure.potential.FEWEST", 2)
    monkeypatch.setattr("esper.measure.potential.CPU_FEATURES", 1)
    measure = sensor._measure
    monkeypatch.setattr(sensor, "_measure", lambda part: groups.append(len(part.grad)) or measure(part))
    torch.testing.assert_close(sensor.measure(one), whole, rtol=1e-9, atol=1e-14)
    assert groups == [2, 1]


@pytest.mark.parametrize("count", [4, 5, 6])
def test_the_potential_is_unknown_where_a_fit_explains_any_gradient(count):
    """5 vectors of 4 features can be fitted exactly, and what is left would be rounding."""
    slot = SlotSpec("r0c0", 4, Layout.VECTORS)
    h, grad = torch.randn(2, MEMBERS, count, 4, generator=torch.Generator().manual_seed(0))
    sensor = SlotSensor([BLUEPRINTS["norm"](), BLUEPRINTS["mlp_small"]()], slot, "cpu")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = [sensor.measure(SlotGradients(features=h, grad=grad)) for _ in range(2)]
    assert all(bool(one.isnan().all()) == (count < 6) == bool(one.isnan().any()) for one in found)
    assert [str(one.message).partition(":")[0] for one in heard] == ["growth potential is unknown in slot r0c0"] * (count < 6)


def test_each_slot_has_its_sensor_and_blueprints_that_cannot_grow_are_nan(float64):
    _, network = network_of("images")
    chosen = [BLUEPRINTS[name]() for name in ("norm", "lora", "conv_light")] + [Dead()]
    gradients = network.capture(side_by_side(batch("images")[0]), batch("images")[1])
    potential = PotentialSensor(chosen, network.slots, "cpu").measure(gradients)
    assert potential.shape == (MEMBERS, 3, 4)
    assert potential[..., 1].isnan().all()
    assert (potential[..., [0, 2]] > 0).all()
    assert (potential[..., 3] == 0).all()
    for index, slot in enumerate(network.slots):
        alone = SlotSensor(chosen, slot, "cpu").measure(gradients[index])
        torch.testing.assert_close(potential[:, index], alone, equal_nan=True)


def test_potential_of_a_member_does_not_depend_on_others():
    _, network = network_of("images")
    one = network.capture(side_by_side(batch("images")[0]), batch("images")[1])[2]
    sensor = SlotSensor(list(blueprints_of(network.slots[2]).values()), network.slots[2], "cpu")
    healthy = sensor.measure(one)
    alone = [sensor.measure(one.of_member(member)) for member in range(MEMBERS)]
    torch.testing.assert_close(torch.cat(alone), healthy, rtol=1e-4, atol=1e-9)
    broken = SlotGradients(features=one.features.clone(), grad=one.grad.clone())
    broken.features[0], broken.grad[1] = float("nan"), 0.0
    potential = sensor.measure(broken)
    assert potential[0].isnan().all()
    assert (potential[1] == 0).all()
    torch.testing.assert_close(potential[2], healthy[2], rtol=1e-4, atol=1e-9)


# ---- captured gradients


@pytest.mark.parametrize("layout", HOSTS)
def test_captured_samples_have_the_gradients_of_a_smaller_batch(float64, layout):
    """In evaluation mode, since batch statistics depend on all samples."""
    _, network = network_of(layout)
    network.train(False)
    x, y = batch(layout)
    if layout == "sequences":
        y.view(MEMBERS, SAMPLES, -1)[:2, 2:, 1:] = -100  # padding in samples that are not captured
    small = captured(network, x[:, :2], y.view(MEMBERS, SAMPLES, -1)[:, :2].flatten(1))
    for part, whole in zip(captured(network, x, y, 2), small, strict=True):
        torch.testing.assert_close(part.features, whole.features)
        torch.testing.assert_close(part.grad, whole.grad)


def test_slots_with_few_places_capture_more_samples():
    _, network = network_of("images")
    found = captured(network, *batch("images"), 1, spots=1)
    assert [one.features.shape[1] for one in found] == [1, 1, 4]  # 3, 6 and 12 channels on 64, 16 and 4 places


@pytest.mark.parametrize("layout", HOSTS)
def test_parts_are_joined_by_member(layout):
    _, network = network_of(layout)
    for whole in network.capture(side_by_side(batch(layout)[0]), batch(layout)[1]):
        parts = [whole.of_member(member) for member in range(MEMBERS)]
        joined = SlotGradients.joined(parts)
        assert joined.features.equal(whole.features)
        assert joined.grad.equal(whole.grad)


@pytest.mark.parametrize("layout", HOSTS)
def test_samples_by_member_undo_side_by_side(layout):
    x = torch.randn(MEMBERS, 4, *{"images": (2, 3, 3), "vectors": (5,), "sequences": (7, 5)}[layout])
    assert samples_of(side_by_side(x), MEMBERS).equal(x)
    assert samples_of(side_by_side(x), MEMBERS, 2).equal(x[:, :2])


def test_capturing_changes_nothing():
    _, network = network_of("images")
    before = {name: row.clone() for name, row in network.rows().items()}
    x, y = batch("images")
    assert all(one.grad.any() for one in network.capture(side_by_side(x), y))
    assert network.host.flat.grad is None
    assert all(row.equal(before[name]) for name, row in network.rows().items())
