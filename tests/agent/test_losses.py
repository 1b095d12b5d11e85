"""The terms of the objective, on numbers that can be followed by hand."""

import pytest
import torch

from esper.agent.losses import (
    clip_fraction,
    clipped_surrogate,
    explained_variance,
    kl_estimate,
    masked_mean,
    value_loss,
)

RATIO = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1])
ADVANTAGE = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
ALL = torch.ones(5, dtype=torch.bool)


def test_clipped_surrogate_by_hand() -> None:
    # min(1.5, 1.2) = 1.2;  min(-1.5, -1.2) = -1.5;  min(0.5, 0.8) = 0.5;  min(-0.5, -0.8) = -0.8;  2.2
    loss = clipped_surrogate(RATIO.log(), ADVANTAGE, ALL, clip=0.2)
    assert loss.item() == pytest.approx(-(1.2 - 1.5 + 0.5 - 0.8 + 2.2) / 5)


def test_clipping_stops_the_gradient_only_where_the_policy_has_gained_enough() -> None:
    log_ratio = RATIO.log().requires_grad_()
    clipped_surrogate(log_ratio, ADVANTAGE, ALL, clip=0.2).backward()
    expected = -(RATIO * ADVANTAGE) / 5  # d ratio / d ln ratio = ratio
    expected[[0, 3]] = 0.0
    torch.testing.assert_close(log_ratio.grad, expected)


def test_at_ratio_one_the_gradient_is_that_of_reinforce() -> None:
    log_ratio = torch.zeros(5, requires_grad=True)
    clipped_surrogate(log_ratio, ADVANTAGE, ALL, clip=0.2).backward()
    torch.testing.assert_close(log_ratio.grad, -ADVANTAGE / 5)


def test_unmarked_steps_enter_neither_sum_nor_count() -> None:
    mask = torch.tensor([True, False, False, False, True])
    assert clipped_surrogate(RATIO.log(), ADVANTAGE, mask, clip=0.2).item() == pytest.approx(-(1.2 + 2.2) / 2)
    assert masked_mean(RATIO, torch.zeros(5, dtype=torch.bool)).item() == 0.0


def test_an_unmarked_infinity_does_not_reach_the_mean() -> None:
    values = torch.tensor([1.0, float("inf")])
    assert masked_mean(values, torch.tensor([True, False])).item() == 1.0


def test_value_loss_is_half_the_squared_error() -> None:
    assert value_loss(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.0])).item() == pytest.approx(0.5 * (4 + 0) / 2)


def test_kl_estimate_by_hand() -> None:
    expected = sum(ratio - 1 - torch.tensor(ratio).log().item() for ratio in RATIO.tolist()) / 5
    assert kl_estimate(RATIO.log(), ALL).item() == pytest.approx(expected, rel=1e-5)
    assert kl_estimate(torch.zeros(5), ALL).item() == 0.0


def test_clip_fraction_counts_both_sides() -> None:
    assert clip_fraction(RATIO.log(), ALL, clip=0.2).item() == pytest.approx(0.8)
    assert clip_fraction(RATIO.log(), torch.tensor([True, False, False, False, True]), clip=0.2).item() == pytest.approx(0.5)


def test_explained_variance_by_hand() -> None:
    target = torch.tensor([1.0, 2.0, 3.0, 6.0])
    assert explained_variance(target, target) == 1.0
    assert explained_variance(target + 10, target) == 1.0  # a constant error explains as well
    assert explained_variance(torch.zeros(4), target) == 0.0
    value = torch.tensor([1.0, 3.0, 2.0, 5.0])  # errors 0, -1, 1, 1: variance 0.6875; target variance 3.5
    assert explained_variance(value, target) == pytest.approx(1 - 0.6875 / 3.5)


def test_explained_variance_of_a_constant_is_unknown() -> None:
    assert explained_variance(torch.arange(3.0), torch.ones(3)) != explained_variance(torch.arange(3.0), torch.ones(3))
