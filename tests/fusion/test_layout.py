"""Layout of members: every function against plain indexing, for images, vectors, sequences and tokens."""

import pytest
import torch

from esper.fusion import layout as L
from esper.fusion.batch_last import is_batch_last

M, B = 4, 6
KINDS = {
    "images": lambda: torch.randn(M, B, 3, 5, 2),
    "images_of_one_channel": lambda: torch.randn(M, B, 1, 2, 2),
    "vectors": lambda: torch.randn(M, B, 3),
    "sequences": lambda: torch.randn(M, B, 5, 3),
    "tokens": lambda: torch.randint(9, (M, B, 5)),
}
each_kind = pytest.mark.parametrize("kind", KINDS)
CHOSEN = torch.tensor([3, 0])


def laid(x_MB):
    """Stack members by the documented layout, without the functions under test."""
    if x_MB.dim() == 4 or not x_MB.is_floating_point():
        return torch.cat(list(x_MB), 0)
    return torch.cat(list(x_MB), 1)


@each_kind
def test_samples_follow_the_documented_layout(kind):
    x = KINDS[kind]()
    assert L.side_by_side(x).equal(laid(x))
    assert L.repeated(x[0], 3).equal(laid(torch.stack([x[0]] * 3)))
    assert L.members_first(L.side_by_side(x)) == (kind in ("sequences", "tokens"))
    if x.dim() == 5:
        assert L.side_by_side(x).is_contiguous(memory_format=torch.channels_last)
        assert L.repeated(x[0], 3).is_contiguous(memory_format=torch.channels_last)
    if not L.members_first(L.side_by_side(x)):
        last = L.side_by_side(x, samples_last=True)
        assert last.equal(laid(x))
        assert is_batch_last(last)
        assert L.repeated(x[0], 3, samples_last=True).equal(L.repeated(x[0], 3))
        assert is_batch_last(L.repeated(x[0], 3, samples_last=True))


@each_kind
def test_per_member_values_reach_their_features(kind):
    x, value = KINDS[kind](), torch.tensor([2, 3, 5, 7])
    wanted = laid(x * value.view(-1, *[1] * (x.dim() - 1)))
    assert torch.equal(L.side_by_side(x) * L.per_member(value, L.side_by_side(x)), wanted)


@pytest.mark.parametrize("samples_last", [False, True])
@each_kind
def test_take_add_split_and_join_members(kind, samples_last):
    x = KINDS[kind]()
    given = L.side_by_side(x, samples_last=True) if samples_last else laid(x)
    part = L.take_members(given, CHOSEN, M)
    assert part.equal(laid(x[CHOSEN]))
    wanted = x.clone()
    wanted[CHOSEN] += x[CHOSEN]
    whole = L.side_by_side(x, samples_last=samples_last).clone()
    assert L.add_members(whole, CHOSEN, part, M).equal(laid(wanted))
    assert whole.equal(laid(wanted)), "in place"
    one, three = L.split_members(given, [1, 3])
    assert one.equal(laid(x[:1]))
    assert three.equal(laid(x[1:]))
    joined = L.join_members([one, three])
    assert joined.equal(laid(x))
    assert L.split_members(given, [M])[0].equal(laid(x))
    if samples_last and not L.members_first(given):
        assert all(map(is_batch_last, (part, whole, one, three, joined)))


@pytest.mark.parametrize("kind", ["vectors", "sequences"])
def test_outputs_by_member(kind):
    x = KINDS[kind]()
    assert L.by_member(laid(x), M).equal(x.reshape(M, -1, 3))


@pytest.mark.parametrize("shape", [(5,), (256,), (2, 8, 24), (3, 16, 16), (1, 13, 29)])
def test_samples_lie_next_to_each_other_whatever_their_size(shape):
    """Also those that are transposed block by block."""
    x_MB = torch.randn(3, 70, *shape)
    x = L.side_by_side(x_MB, samples_last=True)
    assert is_batch_last(x)
    assert x.equal(laid(x_MB))
