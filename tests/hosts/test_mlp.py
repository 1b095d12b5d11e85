"""The MLP host: slots, lesions, and fusion."""

import pytest
import torch

from esper.fusion.fuse import Fleet
from esper.fusion.layers import spread_mask
from esper.fusion.layout import Layout, by_member, side_by_side
from esper.hosts.base import slot_specs
from esper.hosts.mlp import MLPConfig


@pytest.mark.parametrize("layers", [1, 3])
def test_a_slot_lies_after_each_hidden_layer(layers):
    host = MLPConfig(layers=layers, width=5).build((12,), 7, [False] * layers)
    assert slot_specs(host) == host.slots
    assert [(s.name, s.channels, s.layout) for s in host.slots] == [(f"r0c{i}", 5, Layout.VECTORS) for i in range(layers)]
    images = torch.randn(4, 3, 2, 2)
    assert host(images).shape == (4, 7)
    assert host(images).equal(host(images.flatten(1)))


def test_a_lesioned_layer_sees_a_fixed_part_of_its_inputs():
    config = MLPConfig(width=8, lesion_keeps=0.4)
    host = config.build((20,), 3, [True, False])
    optimiser = torch.optim.SGD(host.parameters(), 0.5, weight_decay=0.1)
    for _ in range(5):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(host(torch.randn(16, 20)), torch.randint(3, (16,))).backward()
        optimiser.step()
    x = torch.randn(4, 20, requires_grad=True)
    host(x).square().sum().backward()
    assert x.grad.abs().sum(0).gt(0).equal(spread_mask(20, 0.4).bool())
    assert config.build((20,), 3, [True, False]).segments[0][1].mask.equal(spread_mask(20, 0.4))
    whole = config.build((20,), 3, [False, True])
    assert whole.segments[0][1].mask.all()
    assert whole.segments[1][0].mask.equal(spread_mask(8, 0.4))


@pytest.mark.parametrize(("features", "share"), [(64, 0.25), (16, 0.25), (100, 0.5), (3, 0.1)])
def test_spread_mask_has_its_share_of_ones(features, share):
    mask = spread_mask(features, share)
    assert set(mask.tolist()) <= {0.0, 1.0}
    assert mask.any()
    assert abs(mask.mean().item() - share) <= 1.5 / features + 0.001 or mask.sum() == 1


@pytest.mark.parametrize("members", [1, 3, 8])
def test_a_fused_host_matches_its_hosts(float64, members):
    hosts = [MLPConfig(layers=3, width=5).build((12,), 4, [m % 2 == 0, m % 3 == 0, False]) for m in range(members)]
    fleet, x = Fleet(hosts), torch.randn(members, 6, 3, 2, 2)
    logits = by_member(fleet.bind()(side_by_side(x)), members)
    wanted = torch.stack([host(part) for host, part in zip(hosts, x, strict=True)])
    assert torch.allclose(logits, wanted, atol=1e-12)
    logits.square().sum().backward()
    wanted.square().sum().backward()
    for row, host in zip(fleet.flat.grad, hosts, strict=True):
        assert torch.allclose(row, torch.cat([parameter.grad.flatten() for parameter in host.parameters()]), atol=1e-11)


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"layers": 0}, r"host\.layers must be in \[1, 1000\], got 0"),
        ({"width": 0}, r"host\.width must be in \[1, 1e6\], got 0"),
        ({"lesion_keeps": 0.0}, r"host\.lesion_keeps must be in \(0, 1\)"),
        ({"lesion_keeps": 1.0}, r"host\.lesion_keeps must be in \(0, 1\)"),
    ],
)
def test_invalid_config_is_refused(fields, rule):
    with pytest.raises(ValueError, match=rule):
        MLPConfig(**fields)
