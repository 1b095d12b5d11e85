"""The convolutional host."""

import pytest
import torch

from esper.hosts.base import Host, SlotSpec, slot_specs
from esper.hosts.cnn import CNNConfig
from esper.task.digits import DigitsConfig
from esper.task.instances import Instances


@pytest.mark.parametrize(("blocks", "pools"), [(1, 0), (1, 1), (3, 0), (3, 2), (3, 3), (4, 1)])
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_slots_lie_after_each_block_and_before_its_pooling(blocks, pools, kernel):
    host = CNNConfig(blocks=blocks, pools=pools, kernel=kernel, base_channels=3).build((2, 8, 8), 7, [False] * blocks)
    assert [(spec.name, spec.channels) for spec in slot_specs(host)] == [(f"r0c{b}", 3 * 2**b) for b in range(blocks)]
    x = torch.randn(4, 2, 16, 16)
    assert host(x).shape == (4, 7)
    side = 16
    for block, segment in enumerate(list(host.segments)[:-1]):
        x = segment(x)
        assert x.shape == (4, 3 * 2**block, side, side)
        side = side // 2 if block < pools else side
    assert len(host.segments) == blocks + 1


def walk(host, x):
    """Return the features at each slot, and the logits."""
    seen = []
    for segment in list(host.segments)[:-1]:
        x = segment(x)
        seen.append(x)
    return seen, host.segments[-1](x)


@pytest.mark.parametrize(("blocks", "pools"), [(1, 1), (3, 0), (3, 2), (3, 3), (5, 5)])
def test_slots_of_both_surfaces_lie_in_forward_order(blocks, pools):
    config = CNNConfig(blocks=blocks, pools=pools, base_channels=3, surfaces=["post", "pre"])
    host = config.build((2, 8, 8), 7, [False] * blocks).eval()
    places = [(row, b) for b in range(blocks) for row in range(2 if b < pools else 1)]
    wanted = [(f"r{row}c{b}", 3 * 2**b, 32 // 2 ** (min(b, pools) + row)) for row, b in places]
    seen, logits = walk(host, torch.randn(2, 2, 32, 32))
    assert [(spec.name, spec.channels) for spec in slot_specs(host)] == [(name, channels) for name, channels, _ in wanted]
    assert [tuple(x.shape) for x in seen] == [(2, channels, side, side) for _, channels, side in wanted]
    assert logits.shape == (2, 7)


def test_surfaces_leave_the_outputs_unchanged():
    outs = []
    for surfaces in (["pre"], ["post"], ["pre", "post"]):
        torch.manual_seed(3)
        host = CNNConfig(base_channels=3, surfaces=surfaces).build((1, 8, 8), 10, [False, True, False]).eval()
        outs.append(host(torch.ones(2, 1, 8, 8)))
    assert outs[0].equal(outs[1])
    assert outs[0].equal(outs[2])
    assert [spec.name for spec in CNNConfig(surfaces=["post"]).build((1, 8, 8), 10, [False] * 3).slots] == ["r1c0", "r1c1"]


@pytest.mark.parametrize(
    ("fields", "params"),
    [
        ({"base_channels": 8, "pools": 3}, 6418),
        ({"base_channels": 16, "pools": 3}, 24346),
        ({"base_channels": 8, "blocks": 5, "pools": 5}, 99922),
        ({"base_channels": 1, "pools": 3, "kernel": 1}, 77),
        ({"base_channels": 2, "pools": 0, "kernel": 1}, 164),
        ({"base_channels": 2, "blocks": 5, "pools": 5, "kernel": 1}, 1140),
    ],
    ids=["baseline", "postpool", "scale", "impaired", "minimal", "deep_impaired"],
)
def test_presets_have_the_published_number_of_parameters(fields, params):
    config = CNNConfig(surfaces=["pre", "post"], **fields)
    host = config.build((3, 8, 8), 10, [False] * config.blocks)
    assert sum(parameter.numel() for parameter in host.parameters()) == params


def reach(segment, channels):
    """Return the positions that one pixel influences."""
    segment.eval()
    x = torch.zeros(1, channels, 7, 7)
    y = x.clone()
    y[0, :, 3, 3] = 1.0
    with torch.no_grad():
        conv = segment[-3]
        return (conv(y) - conv(x)).abs().sum((0, 1)) > 0


@pytest.mark.parametrize("kind", ["ooo", "xoo", "oxo", "xox", "xxx"])
def test_lesioned_blocks_have_no_spatial_context(kind):
    host = CNNConfig().build((1, 8, 8), 10, [letter == "x" for letter in kind])
    for block, letter in enumerate(kind):
        seen = reach(host.segments[block], [1, 2, 4][block])
        assert seen[3, 3]
        assert seen.sum() == (1 if letter == "x" else 9)


def test_a_lesion_persists_in_training():
    host = CNNConfig(blocks=1, pools=0).build((1, 8, 8), 10, [True])
    optimiser = torch.optim.SGD(host.parameters(), 0.5, weight_decay=0.1)
    for _ in range(5):
        host.train()
        loss = torch.nn.functional.cross_entropy(host(torch.randn(16, 1, 7, 7)), torch.randint(10, (16,)))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert reach(host.segments[0], 1).sum() == 1


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"blocks": 0, "pools": 0}, r"host\.blocks must be in \[1, 30\], got 0"),
        ({"base_channels": 0}, r"host\.base_channels must be in \[1, 1e6\], got 0"),
        ({"pools": 4}, r"host\.pools must be from 0 to host\.blocks=3, got 4"),
        ({"pools": -1}, r"host\.pools must be from 0"),
        ({"kernel": 2}, r"host\.kernel must be odd and at least 1, got 2"),
        ({"kernel": -1}, r"host\.kernel must be in \[1, 999\], got -1"),
        ({"surfaces": []}, r"host\.surfaces must name one or both of pre, post, each once, got \[\]"),
        ({"surfaces": ["pre", "pre"]}, r"host\.surfaces must name"),
        ({"surfaces": ["post"], "pools": 0}, r"host\.surfaces=\[post\] needs pooled blocks, and host\.pools=0"),
        ({"surfaces": ["top"]}, r"host\.surfaces must name one or both of pre, post, each once, got \[top\]"),
    ],
)
def test_invalid_config_is_refused(fields, rule):
    with pytest.raises(ValueError, match=rule):
        CNNConfig(**fields)


def test_a_module_that_is_not_a_host_is_refused():
    with pytest.raises(ValueError, match="Linear is not a host"):
        slot_specs(torch.nn.Linear(1, 1))
    twice = Host([torch.nn.Identity()] * 3, [SlotSpec("r0c0", 4), SlotSpec("r0c0", 8)])
    with pytest.raises(ValueError, match="Host has two slots named r0c0: give each SlotSpec a name of its own"):
        slot_specs(twice)
    with pytest.raises(ValueError, match="Host has 1 segment and 1 slot: it needs"):
        slot_specs(Host([torch.nn.ReLU()], [SlotSpec("r0c0", 3)]))


def test_kernels_without_context_cannot_be_lesioned():
    with pytest.raises(
        ValueError, match=r"^task.instances=lesioned reduces .* of host.kernel=1 have no more: set task.instances=h"
    ):
        DigitsConfig().check_host(CNNConfig(kernel=1))
    DigitsConfig(instances=Instances.healthy).check_host(CNNConfig(kernel=1))
