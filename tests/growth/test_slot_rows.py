"""A slot computed by Esper's own kernels is the same, bit for bit, as one by `isolate` and `blend`."""

import numpy as np
import pytest
import torch

from esper.fusion.batch_last import batch_last, fits_kernels
from esper.fusion.layout import join_members, split_members, take_members
from esper.growth.blend import blend, isolate
from esper.growth.slot_rows import SlotRows, blend_rows, fork_rows

CHANNELS = 3


def seeds(pieces, scales):
    """A seed for each bank, with weights to learn."""
    return [torch.tanh(piece * scale) for piece, scale in zip(pieces, scales, strict=True)]


def gradients(y, leaves):
    slope = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
    return [y.detach(), *torch.autograd.grad(y, leaves, slope, allow_unused=True)]


@pytest.mark.parametrize("seed", range(12))
def test_a_slot_by_own_kernels_is_the_same_bit_for_bit(seed):
    random = np.random.default_rng(seed)
    members = int(random.integers(1, 7))
    count = int(random.integers(1, members + 1))
    active = torch.from_numpy(random.permutation(members)[:count])
    sizes = [size for size in np.diff(np.sort(np.concatenate([[0, count], random.integers(0, count + 1, 2)]))).tolist() if size]
    alpha = torch.from_numpy(random.choice([0.0, 0.3, 1.0], count).astype(np.float32))
    pull = torch.where(alpha == 0, 1.0, alpha)
    opens = None if seed % 3 == 0 else torch.from_numpy(random.integers(0, 2, count).astype(bool))
    dtype = torch.float64 if seed % 4 == 0 else torch.float32
    x = batch_last(torch.from_numpy(random.standard_normal((4, members * CHANNELS, 3, 2))).to(dtype)).requires_grad_()
    shapes = [(4, size * CHANNELS, 3, 2) for size in sizes]  # a weight for each value, since sums would round by the strides
    scales = [torch.from_numpy(random.standard_normal(shape)).to(dtype).requires_grad_() for shape in shapes]

    part = take_members(x, active, members)
    pieces = split_members(part if opens is None else isolate(part, opens), sizes)
    usual = blend(x, join_members(seeds(pieces, scales)), alpha, pull, active, members)

    rows = SlotRows.of(members, sizes, active, alpha, pull, opens)
    h, *pieces = fork_rows(x, rows)
    own = blend_rows(h, seeds(pieces, scales), rows)

    assert fits_kernels(own)
    for ours, theirs in zip(gradients(own, [x, *scales]), gradients(usual, [x, *scales]), strict=True):
        assert ours.equal(theirs)


def test_features_of_closed_seeds_need_no_gradient():
    x = batch_last(torch.randn(4, 2 * CHANNELS, 3, 2)).requires_grad_()
    ones = torch.ones(2)
    rows = SlotRows.of(2, [1, 1], torch.arange(2), ones, ones, torch.tensor([True, False]))
    _, opened, closed = fork_rows(x, rows)
    assert (opened.requires_grad, closed.requires_grad) == (True, False)


def test_without_gradients_of_seeds_that_of_the_host_passes_unchanged():
    x = batch_last(torch.randn(4, 2 * CHANNELS, 3, 2)).requires_grad_()
    rows = SlotRows.of(2, [2], torch.arange(2), torch.ones(2), torch.ones(2), None)
    h, _ = fork_rows(x, rows)
    (gradient,) = torch.autograd.grad(h.square().sum(), x)
    assert gradient.equal(2 * x.detach())


def test_deltas_of_another_shape_are_refused():
    x, ones = batch_last(torch.randn(4, 2 * CHANNELS, 3, 2)), torch.ones(2)
    with pytest.raises(ValueError, match=r"returned \(4, 6, 1, 1\), which is not the shape of its input"):
        blend_rows(x, [torch.zeros(4, 2 * CHANNELS, 1, 1)], SlotRows.of(2, [2], torch.arange(2), ones, ones, None))


def test_it_computes_the_slots_of_images_in_batch_last_memory(grown):
    population = grown(3)
    seeds, x = population.network.active_S[0], torch.randn(4, 3 * CHANNELS, 6, 6, requires_grad=True)
    assert seeds.blended(batch_last(x), 3).grad_fn.name() == "_BlendRowsBackward"
    assert seeds.blended(x.contiguous(memory_format=torch.channels_last), 3).grad_fn.name() == "_BlendBackward"
