"""PopArt changes the scale in which the critic learns, and nothing that it says; moments merge, and scale rewards."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from esper.agent.ppo.popart import Moments, PopArt, discounted_sums


def make(step: float = 0.05) -> tuple[PopArt, nn.Linear]:
    torch.manual_seed(0)
    return PopArt(step=step), nn.Linear(8, 1, dtype=torch.float64)


def test_outputs_stay_as_they_are_when_the_scale_moves() -> None:
    popart, layer = make()
    inputs = torch.randn(32, 8, dtype=torch.float64)
    for scale, shift in ((1.0, 0.0), (300.0, -50.0), (0.01, 7.0)):
        before = popart.denormalize(layer(inputs))
        popart.update(shift + scale * torch.randn(64, dtype=torch.float64), layer)
        torch.testing.assert_close(popart.denormalize(layer(inputs)), before, atol=1e-12, rtol=1e-12)


def test_first_statistics_are_those_of_the_first_targets() -> None:
    popart, layer = make()
    assert (popart.mean.item(), popart.deviation.item()) == (0.0, 1.0)
    targets = 5 + 3 * torch.randn(1000)
    popart.update(targets, layer)
    assert popart.mean.item() == pytest.approx(targets.mean().item(), rel=1e-6)
    assert popart.deviation.item() == pytest.approx(targets.std(correction=0).item(), rel=1e-5)
    normal = popart.normalize(targets)
    assert normal.dtype == torch.float32
    assert normal.mean().item() == pytest.approx(0, abs=1e-5)
    torch.testing.assert_close(popart.denormalize(normal), targets, atol=1e-5, rtol=1e-5)


def test_later_targets_move_the_statistics_by_the_step() -> None:
    popart, layer = make(step=0.25)
    popart.update(torch.tensor([0.0, 2.0]), layer)
    popart.update(torch.tensor([10.0, 10.0]), layer)
    # Weights 0.25 * 0.75 and 0.25, divided by their sum: 3/7 and 4/7.
    mean, square = 3 / 7 * 1 + 4 / 7 * 10, 3 / 7 * 2 + 4 / 7 * 100
    assert popart.mean.item() == pytest.approx(mean)
    assert popart.deviation.item() == pytest.approx((square - mean**2) ** 0.5)


def test_a_step_of_nothing_leaves_the_scale_of_rewards() -> None:
    popart, layer = make(step=0.0)
    before = layer.weight.clone()
    popart.update(torch.tensor([50.0, 70.0]), layer)
    assert (popart.mean.item(), popart.deviation.item()) == (0.0, 1.0)
    assert torch.equal(layer.weight, before)
    assert popart.normalize(torch.tensor([70.0])).item() == 70.0


def test_targets_that_do_not_vary_leave_a_finite_scale() -> None:
    popart, layer = make()
    popart.update(torch.full((10,), 3.0), layer)
    assert popart.deviation.item() == popart.min_deviation
    assert torch.isfinite(layer.weight).all()


def test_a_large_offset_costs_no_precision() -> None:
    popart, layer = make()
    popart.update(1e5 + torch.randn(4000, dtype=torch.float64), layer)
    assert popart.deviation.item() == pytest.approx(1, abs=0.05)


def test_statistics_are_saved() -> None:
    popart, layer = make()
    popart.update(torch.randn(10) * 4, layer)
    other = PopArt(step=0.05)
    other.load_state_dict(popart.state_dict())
    assert (other.mean, other.deviation) == (popart.mean, popart.deviation)


# ---- the scale of rewards


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=0, max_size=30),
    cuts=st.tuples(st.integers(0, 30), st.integers(0, 30)),
)
def test_moments_of_parts_merge_into_those_of_the_whole(values, cuts) -> None:
    whole = torch.tensor(values, dtype=torch.float64)
    first, second = sorted(min(cut, len(values)) for cut in cuts)
    one, two, three = (Moments.of(whole[part]) for part in (slice(first), slice(first, second), slice(second, None)))
    for merged in (one.merged(two).merged(three), one.merged(two.merged(three)), three.merged(one).merged(two)):
        assert merged.num == len(values)
        if len(values) > 1:
            assert merged.mean == pytest.approx(np.mean(values), rel=1e-9, abs=1e-6)
            assert merged.deviation() == pytest.approx(max(np.std(values), 1e-2), rel=1e-9, abs=1e-6)


def test_moments_of_float32_are_in_double_precision() -> None:
    values = 1e4 + torch.linspace(-1, 1, 1001)
    halves = Moments.of(values[:400]).merged(Moments.of(values[400:]))
    assert halves.deviation() == pytest.approx(np.std(values.numpy().astype(np.float64)), rel=1e-12)
    assert Moments().deviation() == Moments.of(torch.tensor([5.0])).deviation() == 1.0
    assert Moments.of(torch.tensor([5.0, 5.0])).deviation() == 1e-2


def test_discounted_sums_by_hand_start_anew_where_an_episode_ends() -> None:
    reward = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    ends = torch.tensor([[False, False], [False, True], [True, True]])
    sums = discounted_sums(reward, ends, gamma=0.5)
    assert sums.dtype == torch.float64
    assert sums.tolist() == [[1, 1], [2.5, 2.5], [4.25, 3]]


@pytest.mark.parametrize("step", [0.0, 0.05])
@pytest.mark.parametrize("spread", [20.0, 1e-3], ids=["wide", "narrower than the deviation may be"])
def test_rescaling_multiplies_what_the_critic_says(step: float, spread: float) -> None:
    """Also where there is no scale, and nobody but the layer can say it."""
    popart, layer = make(step)
    popart.update(50 + spread * torch.randn(64, dtype=torch.float64), layer)
    inputs = torch.randn(32, 8, dtype=torch.float64)
    before = popart.denormalize(layer(inputs))
    popart.rescale(0.25, layer)
    torch.testing.assert_close(popart.denormalize(layer(inputs)), before / 4, atol=1e-9, rtol=1e-9)


def test_rescaled_targets_are_learned_as_they_were() -> None:
    popart, layer = make()
    popart.update(50 + 20 * torch.randn(64, dtype=torch.float64), layer)
    scaled, weight = popart.normalize(torch.tensor([60.0], dtype=torch.float64)), layer.weight.clone()
    popart.rescale(0.25, layer)
    torch.testing.assert_close(popart.normalize(torch.tensor([15.0], dtype=torch.float64)), scaled)
    torch.testing.assert_close(layer.weight, weight)
