"""PopArt changes the scale in which the critic learns, and none of its predictions."""

import pytest
import torch
from torch import nn

from esper.agent.ppo.popart import MIN_DEVIATION, PopArt


def make(step: float = 0.05) -> tuple[PopArt, nn.Linear]:
    torch.manual_seed(0)
    return PopArt(step=step), nn.Linear(8, 1, dtype=torch.float64)


def test_outputs_do_not_change_with_the_scale() -> None:
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


def test_step_zero_leaves_targets_unscaled() -> None:
    popart, layer = make(step=0.0)
    before = layer.weight.clone()
    popart.update(torch.tensor([50.0, 70.0]), layer)
    assert (popart.mean.item(), popart.deviation.item()) == (0.0, 1.0)
    assert torch.equal(layer.weight, before)
    assert popart.normalize(torch.tensor([70.0])).item() == 70.0


def test_targets_that_do_not_vary_leave_a_finite_scale() -> None:
    popart, layer = make()
    popart.update(torch.full((10,), 3.0), layer)
    assert popart.deviation.item() == MIN_DEVIATION
    assert torch.isfinite(layer.weight).all()


def test_a_large_offset_costs_no_precision() -> None:
    popart, layer = make()
    popart.update(1e5 + torch.randn(4000, dtype=torch.float64), layer)
    assert popart.deviation.item() == pytest.approx(1, abs=0.05)


def test_statistics_are_part_of_the_state() -> None:
    popart, layer = make()
    popart.update(torch.randn(10) * 4, layer)
    other = PopArt(step=0.05)
    other.load_state_dict(popart.state_dict())
    assert (other.mean, other.deviation) == (popart.mean, popart.deviation)
