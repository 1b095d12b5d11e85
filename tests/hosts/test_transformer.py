"""The transformer host: slots, lesions, initial loss, and fusion."""

import math

import pytest
import torch
import torch.nn.functional as F

from esper.fusion.fuse import Fleet, flatten_parameters
from esper.fusion.layout import Layout, by_member, side_by_side
from esper.growth.objective import CLASSIFICATION
from esper.hosts.base import slot_specs
from esper.hosts.transformer import TransformerConfig

SMALL = TransformerConfig(width=12, heads=3, context=9)


@pytest.mark.parametrize(
    ("layers", "surfaces", "names"),
    [
        ([], ["attention", "mlp"], ["r0c0", "r1c0", "r0c1", "r1c1", "r0c2", "r1c2"]),
        ([2, 0], ["mlp"], ["r1c0", "r1c2"]),
        ([1], ["mlp", "attention"], ["r0c1", "r1c1"]),
        ([], ["attention"], ["r0c0", "r0c1", "r0c2"]),
    ],
)
def test_slots_follow_the_config_and_leave_the_outputs_unchanged(layers, surfaces, names):
    tokens = torch.randint(17, (2, 9))
    outs = []
    for chosen in ({"slot_layers": layers, "surfaces": surfaces}, {}):
        torch.manual_seed(5)
        host = TransformerConfig(layers=3, width=12, heads=3, context=9, **chosen).build((8,), 17, [False] * 3)
        outs.append(host(tokens))
        if chosen:
            assert [(spec.name, spec.channels, spec.layout) for spec in slot_specs(host)] == [
                (name, 12, Layout.SEQUENCES) for name in names
            ]
    assert outs[0].shape == (2, 9, 17)
    assert outs[0].equal(outs[1])


def test_slot_names_match_the_layers_before_them():
    """Attention mixes positions; the layers before it and the MLP do not."""
    host = TransformerConfig(layers=2, width=12, heads=3, context=9).build((8,), 17, [True, False])
    tokens = torch.randint(17, (1, 9))
    other = tokens.clone()
    other[0, 3] = (tokens[0, 3] + 1) % 17
    x, y, changed = tokens, other, []
    with torch.no_grad():
        for segment in list(host.segments)[:-1]:
            x, y = segment(x), segment(y)
            changed.append((x - y).abs().sum(2)[0].gt(1e-7).nonzero()[:, 0].tolist())
    assert changed == [[3], [3], [3, 4, 5, 6, 7, 8], [3, 4, 5, 6, 7, 8]]  # r0c0, r1c0 lesioned; r0c1, r1c1 healthy


@pytest.mark.parametrize("layers", [1, 2, 6])
@pytest.mark.parametrize(("vocab", "width"), [(17, 12), (256, 32), (256, 96)])
@pytest.mark.parametrize("tied", [False, True])
def test_the_initial_loss_is_log_vocab(layers, vocab, width, tied):
    torch.manual_seed(layers)
    heads = 3 if width == 12 else 4
    host = TransformerConfig(layers=layers, width=width, heads=heads, tied=tied, context=64).build((8,), vocab, [False] * layers)
    tokens = torch.randint(vocab, (8, 65))
    with torch.no_grad():
        loss = F.cross_entropy(host(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert abs(loss.item() - math.log(vocab)) < 0.05


@pytest.mark.parametrize("layers", [1, 4, 16])
def test_the_residual_stream_has_constant_scale(layers):
    """Without scaling by depth, the standard deviation would grow from 0.08 to 0.32."""
    torch.manual_seed(layers)
    host = TransformerConfig(layers=layers, width=256, heads=4, context=64).build((8,), 64, [False] * layers)
    with torch.no_grad():
        x = start = host.segments[0][:2](torch.randint(64, (4, 64)))
        for segment in [host.segments[0][2:], *list(host.segments)[1:-1]]:
            x = segment(x)
        written = (x - start).square().mean().sqrt()
    assert 0.07 < written < 0.1


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("members", [1, 3, 8])
def test_a_fused_host_matches_losses_and_gradients(float64, members, tied):
    config = TransformerConfig(width=12, heads=3, context=9, tied=tied)
    hosts = [config.build((8,), 17, [m % 2 == 0, m % 3 == 1]) for m in range(members)]
    with torch.no_grad():
        for host in hosts:
            for parameter in host.parameters():
                parameter.normal_(std=0.3)
    fleet, tokens = Fleet(hosts), torch.randint(17, (members, 4, 10))
    assert fleet.stacked
    assert fleet.flat.shape[1] == sum(parameter.numel() for parameter in hosts[0].parameters())
    assert flatten_parameters(fleet.member(members - 1)).equal(flatten_parameters(hosts[-1]))
    x, y = tokens[:, :, :-1], tokens[:, :, 1:].flatten(1)
    losses = CLASSIFICATION.mean_losses(by_member(fleet.bind()(side_by_side(x)), members), y)
    wanted = torch.stack([F.cross_entropy(host(a).flatten(0, 1), b) for host, a, b in zip(hosts, x, y, strict=True)])
    assert losses.shape == (members,)
    assert torch.allclose(losses, wanted, atol=1e-12)
    assert CLASSIFICATION.mean_losses(by_member(fleet.bind()(side_by_side(x)), members), y.unflatten(1, (4, 9))).equal(losses)
    losses.sum().backward()
    wanted.sum().backward()
    for row, host in zip(fleet.flat.grad, hosts, strict=True):
        assert torch.allclose(row, torch.cat([parameter.grad.flatten() for parameter in host.parameters()]), atol=1e-11)


def test_a_tied_host_has_the_published_number_of_parameters():
    config = TransformerConfig(layers=6, width=384, heads=6, context=256, tied=True)
    with torch.device("meta"):
        host = config.build((8,), 50257, [False] * 6)
    assert sum(parameter.numel() for parameter in host.parameters()) == 30_044_544


def test_a_lesion_persists_in_training():
    host = SMALL.build((8,), 17, [True, True])
    optimiser = torch.optim.SGD(host.parameters(), 0.5, weight_decay=0.01)
    for _ in range(5):
        tokens = torch.randint(17, (8, 10))
        loss = F.cross_entropy(host(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    one, other = torch.randint(17, (2, 1, 9))
    other[0, 5:] = one[0, 5:]
    with torch.no_grad():
        assert (host(one) - host(other))[0, 5:].abs().max() == 0


def test_a_sequence_beyond_the_context_is_refused():
    for module in (SMALL.build((8,), 17, [False] * 2), Fleet([SMALL.build((8,), 17, [False] * 2)] * 2).bind()):
        with pytest.raises(ValueError, match=r"10 positions exceeds host\.context=9"):
            module(torch.zeros(2, 10, dtype=torch.long))


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        *[({name: 0}, rf"host\.{name} must be in \[1, 1\w+\], got 0") for name in ("layers", "width", "heads", "context")],
        ({"width": 30, "heads": 4}, r"host\.width=30 must be a multiple of host\.heads=4: use 32"),
        ({"slot_layers": [2]}, r"host\.slot_layers must name layers from 0 to 1, each once, got \[2\]"),
        ({"slot_layers": [0, 0]}, r"host\.slot_layers must name layers"),
        ({"surfaces": ["pre"]}, r"host\.surfaces must name one or both of attention, mlp, each once, got \[pre\]"),
        ({"surfaces": []}, r"host\.surfaces must name"),
    ],
)
def test_invalid_config_is_refused(fields, rule):
    with pytest.raises(ValueError, match=rule):
        TransformerConfig(**fields)
