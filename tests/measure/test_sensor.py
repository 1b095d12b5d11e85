"""The sensor: against each dormant branch by itself, for every blueprint, host and layout."""

import numpy as np
import pytest
import torch
from torch import nn

from esper.fusion.layers import ChannelScale
from esper.fusion.layout import Layout, side_by_side
from esper.measure.potential import NewbornBranch, PotentialSensor, SlotSensor, residual
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.blueprints.registry import BLUEPRINTS
from esper.seeds.slot_gradients import SlotGradients
from tests.measure.test_potential import HOSTS, MEMBERS, batch, blueprints_of, network_of


class Twice(BlueprintConfig):
    """Its last map is used for two things, so that its gradient is no single product."""

    layouts = tuple(Layout)

    def branch(self, slot):
        class Branch(nn.Module):
            def __init__(self):
                super().__init__()
                self.last = ChannelScale(slot.channels)

            def forward(self, x):
                return self.last(x) + self.last(x.tanh())

        return Branch()


class Through(BlueprintConfig):
    """Something without weights follows the last map."""

    layouts = (Layout.IMAGES,)

    def branch(self, slot):
        last = nn.Conv2d(slot.channels, slot.channels, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        return nn.Sequential(last, nn.Hardtanh())


def felt_by(layout):
    _, network = network_of(layout)
    x, y = batch(layout)
    return network, network.capture(side_by_side(x), y)


@pytest.mark.parametrize("layout", HOSTS)
def test_all_blueprints_at_once_are_each_by_itself(float64, layout):
    network, felt = felt_by(layout)
    for slot, one in zip(network.slots, felt, strict=True):
        named = blueprints_of(slot)
        sensor = SlotSensor(list(named.values()), slot, "cpu")
        assert sensor.trunks, "no blueprint is simple"
        left = residual(one)
        wanted = torch.stack([NewbornBranch(blueprint, slot, "cpu").potential(left) for blueprint in named.values()], 1)
        torch.testing.assert_close(sensor.measure(one), wanted, rtol=1e-9, atol=1e-14)
        assert (wanted > 0).all()


@pytest.mark.parametrize("odd", [Twice, Through])
def test_a_branch_that_does_not_end_in_its_last_map_is_measured_by_itself(float64, odd):
    network, felt = felt_by("images")
    chosen = [BLUEPRINTS["conv_light"](), odd(), BLUEPRINTS["norm"]()]
    sensor = SlotSensor(chosen, network.slots[1], "cpu")
    assert [rank for rank, _ in sensor.others] == [1]
    left = residual(felt[1])
    wanted = torch.stack([NewbornBranch(blueprint, network.slots[1], "cpu").potential(left) for blueprint in chosen], 1)
    torch.testing.assert_close(sensor.measure(felt[1]), wanted)


def test_every_slot_is_measured_by_its_own_sensor(float64):
    network, felt = felt_by("images")
    chosen = [BLUEPRINTS["conv_light"](), BLUEPRINTS["norm"]()]
    potential = PotentialSensor(chosen, network.slots, "cpu").measure(felt)
    assert potential.shape == (MEMBERS, 3, 2)
    for index, slot in enumerate(network.slots):
        torch.testing.assert_close(potential[:, index], SlotSensor(chosen, slot, "cpu").measure(felt[index]))


def test_what_cannot_be_planted_is_not_known():
    network, felt = felt_by("images")
    sensor = PotentialSensor([BLUEPRINTS[name]() for name in ("noop", "norm", "lora")], network.slots, "cpu")
    known = sensor.measure(felt).isfinite().numpy()
    assert known.tolist() == np.broadcast_to([False, True, False], (MEMBERS, 3, 3)).tolist()


def test_a_sick_host_does_not_spoil_the_others():
    network, felt = felt_by("images")
    sensor = SlotSensor([BLUEPRINTS["conv_light"](), BLUEPRINTS["attention"]()], network.slots[0], "cpu")
    sick = SlotGradients(features=felt[0].features.clone(), grad=felt[0].grad.clone())
    sick.features[0] = float("nan")
    potential = sensor.measure(sick)
    assert potential[0].isnan().all()
    torch.testing.assert_close(potential[1:], sensor.measure(felt[0])[1:], rtol=1e-4, atol=0)
