"""Blend, gate and isolation: values and gradients against their formulas."""

import copy

import pytest
import torch
from torch import nn

from esper.fusion.fuse import Fleet
from esper.fusion.layout import Layout, join_members, side_by_side, take_members
from esper.growth.blend import blend, isolate
from esper.seeds.gated import Gate, Gated

SHAPES = {Layout.IMAGES: (5, 4, 3, 2), Layout.VECTORS: (5, 4), Layout.SEQUENCES: (5, 6, 4)}
"""Return the features of each member: 5 samples of 4 channels."""
EVERYONE = torch.arange(3)
each_layout = pytest.mark.parametrize("layout", list(Layout))


def bits(tensor):
    """Return bit patterns, so that NaN equals NaN and -0.0 differs from 0.0."""
    return tensor.detach().contiguous().view(torch.int32)


def members_of(layout, count, requires_grad=True):
    return [torch.randn(SHAPES[layout], requires_grad=requires_grad) for _ in range(count)]


def one_by_one(h, delta, alpha, pull, times):
    """Return the slot of one member by autograd: alpha in the value, pull in the seed's gradient."""
    effect = h * torch.tanh(delta) if times else delta
    direct = alpha * h * torch.tanh(delta.detach()) if times else alpha * delta.detach()
    learnt = h.detach() * torch.tanh(delta) if times else effect
    return h + direct + pull * (learnt - learnt.detach())


@each_layout
@pytest.mark.parametrize("times", [None, (False, True), (True, True)], ids=["add", "mixed", "multiply"])
def test_blend_values_and_gradients_match_the_formula(float64, layout, times):
    """Five members; the fourth and the second hold seeds, the former behind its host."""
    alpha, pull, live = torch.tensor([0.0, 0.25]), torch.tensor([1.0, 0.25]), torch.tensor([3, 1])
    hs, deltas, upstream = members_of(layout, 5), members_of(layout, 2), members_of(layout, 5, requires_grad=False)
    h = join_members([part.detach().clone() for part in hs]).requires_grad_()
    delta = join_members([part.detach().clone() for part in deltas]).requires_grad_()
    kept = h.detach().clone()
    y = blend(h, delta, alpha, pull, live, 5, None if times is None else torch.tensor(times))
    y.backward(join_members(upstream))
    wanted = list(hs)
    for place, member in enumerate(live):
        wanted[member] = one_by_one(hs[member], deltas[place], alpha[place], pull[place], bool(times and times[place]))
    torch.autograd.backward(wanted, upstream)
    assert h.equal(kept)
    assert torch.allclose(y, join_members(wanted), rtol=0, atol=1e-14)
    assert torch.allclose(h.grad, join_members([part.grad for part in hs]), rtol=0, atol=1e-14)
    assert torch.allclose(delta.grad, join_members([part.grad for part in deltas]), rtol=0, atol=1e-14)
    for member in (0, 2, 3, 4):  # without a seed, or behind the host
        assert take_members(y, torch.tensor([member]), 5).equal(hs[member])
        assert take_members(h.grad, torch.tensor([member]), 5).equal(upstream[member])


@each_layout
@pytest.mark.parametrize("times", [None, (True, False)])
def test_blend_passes_gradcheck_where_pull_is_alpha(float64, layout, times):
    alpha, live = torch.tensor([0.3, 1.0]), torch.tensor([0, 2])
    inputs = [join_members(members_of(layout, count, False)).requires_grad_() for count in (3, 2)]
    marks = None if times is None else torch.tensor(times)
    assert torch.autograd.gradcheck(lambda h, delta: blend(h, delta, alpha, alpha, live, 3, marks), inputs)


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_blend_takes_either_memory_format(memory):
    h, delta = (torch.randn(2, count, 3, 3).contiguous(memory_format=memory) for count in (8, 4))
    alpha, live, times = torch.tensor([0.5, 0.25]), torch.tensor([3, 1]), torch.tensor([False, True])
    y = blend(h, delta, alpha, alpha, live, 4, times)
    assert y[:, [0, 1, 4, 5]].equal(h[:, [0, 1, 4, 5]])
    assert torch.allclose(y[:, 6:8], h[:, 6:8] + 0.5 * delta[:, 0:2])
    assert torch.allclose(y[:, 2:4], h[:, 2:4] * (1 + 0.25 * torch.tanh(delta[:, 2:4])))


@each_layout
@pytest.mark.parametrize("times", [None, torch.tensor([True, False, True])], ids=["add", "mixed"])
def test_alpha_zero_keeps_all_bits_and_propagates_nan(layout, times):
    h, delta = (join_members(members_of(layout, 3, False)) for _ in range(2))
    h.requires_grad_()
    zero, one = torch.zeros(3), torch.ones(3)
    y = blend(h, 1e30 * delta, zero, one, EVERYONE, 3, times)
    upstream = torch.randn_like(y)
    y.backward(upstream)
    assert bits(y).equal(bits(h))
    assert bits(h.grad).equal(bits(upstream))
    delta.view(-1)[0] = torch.nan
    assert blend(h, delta, zero, one, EVERYONE, 3, times).isnan().sum() == 1


@each_layout
def test_isolate_is_the_identity_and_stops_some_gradients(layout):
    x = join_members(members_of(layout, 3, False)).requires_grad_()
    upstream = members_of(layout, 3, False)
    upstream[1].view(-1)[0] = torch.nan  # for the closed member
    y = isolate(x, torch.tensor([True, False, True]))
    assert bits(y).equal(bits(x))
    y.backward(join_members(upstream))
    parts = [take_members(x.grad, torch.tensor([member]), 3) for member in range(3)]
    assert parts[0].equal(upstream[0])
    assert parts[2].equal(upstream[2])
    assert not parts[1].any()


# ---- the gate


@pytest.mark.parametrize("channels", [1, 3, 4, 33, 64])
def test_number_of_gate_parameters(channels):
    gate = Gate(channels)
    assert sum(parameter.numel() for parameter in gate.parameters()) == max(8, channels // 4) * (channels + 2) + 1


def by_hand(gate, x):
    """Return g of one member's samples `[B]`, or of all positions `[B, T]`."""
    if x.dim() == 3:  # each position as the end of a sequence
        means = [x[:, : end + 1].mean(1) for end in range(x.shape[1])]
        return torch.stack([by_hand(gate, mean) for mean in means], 1)
    mean = x.mean((2, 3)) if x.dim() == 4 else x
    first, _, last, _ = gate.net
    hidden = torch.clamp(mean @ first.weight.T + first.bias, min=0)
    return 1 / (1 + torch.exp(-(hidden @ last.weight.T + last.bias))).squeeze(1)


@each_layout
@pytest.mark.parametrize("members", [1, 3])
def test_a_gate_weighs_each_sample_of_each_member(float64, layout, members):
    torch.manual_seed(0)
    branch = {Layout.IMAGES: lambda: nn.Conv2d(4, 4, 3, padding=1)}.get(layout, lambda: nn.Linear(4, 4))
    seeds = [Gated(branch(), 4) for _ in range(members)]
    xs = members_of(layout, members)
    fleet = Fleet([copy.deepcopy(seed) for seed in seeds])
    x = side_by_side(torch.stack([part.detach() for part in xs])).requires_grad_()
    y = fleet.bind()(x)
    wanted = []
    for seed, part in zip(seeds, xs, strict=True):
        g = by_hand(seed.gate, part)
        assert (g > 0.2).all()
        assert (g < 0.8).all()
        wanted.append(seed.branch(part) * g.view(*g.shape, *[1] * (part.dim() - g.dim())))
    assert torch.allclose(y, join_members(wanted), rtol=0, atol=1e-12)
    pull = [torch.randn_like(part) for part in xs]
    y.backward(join_members(pull))
    torch.autograd.backward(wanted, pull)
    assert torch.allclose(x.grad, join_members([part.grad for part in xs]), rtol=0, atol=1e-12)
    for member, seed in enumerate(seeds):
        gradient = torch.cat([parameter.grad.flatten() for parameter in seed.parameters()])
        assert torch.allclose(fleet.flat.grad[member], gradient, rtol=0, atol=1e-12)


def test_gates_of_samples_are_independent():
    seed, x = Gated(nn.Conv2d(4, 4, 1), 4), torch.randn(5, 4, 3, 3)
    assert torch.allclose(seed(x)[1:2], seed(x[1:2]), atol=1e-6)
    assert len(seed.gate(x).unique()) == 5
