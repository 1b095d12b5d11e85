"""The terms of the objective, on numbers that can be followed by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.agent.ppo.losses import (
    clip_fraction,
    clipped_surrogate,
    contribution_loss,
    explained_variance,
    kl_estimate,
    masked_mean,
    per_head_surrogate,
    r_squared,
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


def told_by_hand(log_ratio: list[list[float]], advantage: list[float], relevant: list[list[bool]], clip: float) -> float:
    """Sum over heads in plain numbers, mean over steps."""
    total = 0.0
    for heads, gain, counts in zip(log_ratio, advantage, relevant, strict=True):
        for number, matters in zip(heads, counts, strict=True):
            if matters:
                ratio = math.exp(number)
                total += min(ratio * gain, min(max(ratio, 1 - clip), 1 + clip) * gain)
    return -total / len(advantage)


@given(st.integers(0, 10_000))
@settings(max_examples=50, deadline=None)
def test_per_head_surrogate_is_told_by_hand_in_value_and_gradient(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    log_ratio = (0.4 * torch.randn(6, 3, generator=generator, dtype=torch.float64)).requires_grad_()
    advantage = torch.randn(6, generator=generator, dtype=torch.float64)
    relevant = torch.rand(6, 3, generator=generator) < 0.6
    mask = torch.ones(6, dtype=torch.bool)
    mask[4:] = False
    loss = per_head_surrogate(log_ratio, advantage, relevant, mask, clip=0.2)
    loss.backward()
    rest = (advantage[:4].tolist(), relevant[:4].tolist(), 0.2)
    plain = log_ratio.detach()[:4].tolist()
    assert loss.item() == pytest.approx(told_by_hand(plain, *rest), abs=1e-12)
    assert not log_ratio.grad[4:].any()
    step = 1e-6
    for t in range(4):
        for head in range(3):
            around = []
            for sign in (1, -1):
                moved = [list(row) for row in plain]
                moved[t][head] += sign * step
                around.append(told_by_hand(moved, *rest))
            assert log_ratio.grad[t, head].item() == pytest.approx((around[0] - around[1]) / (2 * step), abs=1e-8)


def test_one_head_that_went_far_enough_leaves_the_others_free_as_a_joint_ratio_does_not() -> None:
    log_ratio = torch.tensor([[0.5, 0.0]], dtype=torch.float64, requires_grad=True)
    gain, yes = torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.bool)
    per_head_surrogate(log_ratio, gain, torch.ones(1, 2, dtype=torch.bool), yes, clip=0.2).backward()
    assert log_ratio.grad.tolist() == [[0.0, -1.0]]
    joint = torch.tensor([[0.5, 0.0]], dtype=torch.float64, requires_grad=True)
    clipped_surrogate(joint.sum(dim=1), gain, yes, clip=0.2).backward()
    assert joint.grad.tolist() == [[0.0, 0.0]]


def test_at_ratio_one_both_surrogates_have_one_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    advantage = torch.randn(5, generator=generator)
    relevant = torch.rand(5, 3, generator=generator) < 0.5
    by_head, joint = torch.zeros(5, 3, requires_grad=True), torch.zeros(5, 3, requires_grad=True)
    per_head_surrogate(by_head, advantage, relevant, ALL, clip=0.2).backward()
    clipped_surrogate(torch.where(relevant, joint, 0.0).sum(dim=1), advantage, ALL, clip=0.2).backward()
    torch.testing.assert_close(by_head.grad, joint.grad)


def test_an_irrelevant_head_that_is_not_finite_reaches_nothing() -> None:
    log_ratio = torch.tensor([[0.1, float("inf")], [0.1, float("nan")]], requires_grad=True)
    relevant = torch.tensor([[True, False], [True, False]])
    loss = per_head_surrogate(log_ratio, torch.ones(2), relevant, torch.ones(2, dtype=torch.bool), clip=0.2)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(log_ratio.grad).all()


def test_contribution_loss_is_over_what_was_measured() -> None:
    prediction, measured = torch.tensor([[1.0, 5.0]], requires_grad=True), torch.tensor([[3.0, float("nan")]])
    mask = torch.tensor([[True, False]])
    loss = contribution_loss(prediction, measured, mask)
    loss.backward()
    assert loss.item() == 0.5 * 4
    assert prediction.grad.tolist() == [[-2.0, 0.0]]
    assert contribution_loss(prediction, measured, torch.zeros_like(mask)).item() == 0.0


def test_r_squared_by_hand() -> None:
    target, all_four = torch.tensor([1.0, 2.0, 3.0, 6.0]), torch.ones(4, dtype=torch.bool)
    assert r_squared(target, target, all_four) == 1.0
    assert r_squared(torch.full((4,), 3.0), target, all_four) == 0.0
    assert r_squared(target + 1, target, all_four) == pytest.approx(1 - 4 / 14)
    assert r_squared(torch.zeros(4), target, torch.tensor([True, True, False, False])) == pytest.approx(1 - 5 / 0.5)
    for unknown in (torch.zeros(4, dtype=torch.bool), torch.tensor([True, False, False, False])):
        assert math.isnan(r_squared(target, target, unknown))
