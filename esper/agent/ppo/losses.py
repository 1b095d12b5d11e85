"""The terms of the PPO objective and what is said about them: pure functions on any shape."""

from enum import StrEnum

import torch
from torch import Tensor


class Surrogate(StrEnum):
    """Whose probability ratio is clipped."""

    joint = "joint"
    """That of the whole action."""
    per_head = "per_head"
    """That of each head which mattered for the action, one by one."""


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the marked entries; 0, with a gradient of 0, where none is marked."""
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, mask: Tensor, *, clip: float) -> Tensor:
    """Clipped surrogate loss, Eq. 7 of Schulman et al. 2017 (arXiv:1707.06347), to be minimised.

    -mean over the marked steps of min(ratio * A, clip(ratio, 1 - clip, 1 + clip) * A), with the ratio of whole actions.

    Args:
        log_ratio: ln pi_new(a) - ln pi_old(a).
        advantage: A.
        mask: steps that enter the mean: those at which there was a choice.
        clip: half-width of the interval, in (0, 1).
    """
    assert log_ratio.shape == advantage.shape == mask.shape
    ratio = log_ratio.exp()
    return -masked_mean(torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage), mask)


def per_head_surrogate(log_ratio: Tensor, advantage: Tensor, relevant: Tensor, mask: Tensor, *, clip: float) -> Tensor:
    """Clipped surrogate loss in which every head is clipped for itself, to be minimised.

    -mean over the marked steps of the sum over the relevant heads k of min(ratio_k * A, clip(ratio_k, 1 - clip, 1 + clip) * A)

    At ratio 1 its gradient is that of `clipped_surrogate`, since the logarithms of the heads add up. Further on, a head that has
    gone far enough stops and leaves the others free, while a joint ratio stops all of them, or lets two opposite moves cancel.
    Each step counts once: with a mean over the steps of each head, those of rare operations would weigh a hundredfold.

    Args:
        log_ratio: `[..., H]`, ln pi_new(a_k) - ln pi_old(a_k), given the operation and the slot.
        advantage: A `[...]`.
        relevant: `[..., H]`, did the head matter for the action?
        mask: `[...]`, steps that enter the mean: those at which there was a choice.
        clip: half-width of the interval, in (0, 1).
    """
    assert log_ratio.shape == relevant.shape
    assert log_ratio.shape[:-1] == advantage.shape == mask.shape
    ratio, gain = torch.where(relevant, log_ratio, 0.0).exp(), advantage[..., None]
    clipped = torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain)
    return -masked_mean(torch.where(relevant, clipped, 0.0).sum(dim=-1), mask)


def value_loss(value: Tensor, target: Tensor) -> Tensor:
    """Half the mean squared error of the critic."""
    assert value.shape == target.shape
    return 0.5 * (value - target).square().mean()


def contribution_loss(prediction: Tensor, measured: Tensor, mask: Tensor) -> Tensor:
    """Half the squared error of predicted contributions, mean over the marked ones; 0 where there is none."""
    assert prediction.shape == measured.shape == mask.shape
    error = torch.where(mask, prediction - measured, 0.0)  # before the square, whose gradient an unmarked NaN would reach
    return 0.5 * masked_mean(error.square(), mask)


def kl_estimate(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Estimate of KL(old || new) from actions of the old policy: mean of ratio - 1 - ln ratio [nats].

    Unbiased, and never negative (Schulman 2020, http://joschu.net/blog/kl-approx.html, k3).
    """
    assert log_ratio.shape == mask.shape
    return masked_mean(torch.expm1(log_ratio) - log_ratio, mask)


def clip_fraction(log_ratio: Tensor, mask: Tensor, *, clip: float) -> Tensor:
    """Share of the marked steps whose ratio is outside [1 - clip, 1 + clip]."""
    return masked_mean(((log_ratio.exp() - 1).abs() > clip).float(), mask)


def explained_variance(value: Tensor, target: Tensor) -> float:
    """1 - Var(target - value) / Var(target), with variances of the population; NaN where the target does not vary.

    1 is a perfect critic, 0 one that predicts a constant.
    """
    assert value.shape == target.shape
    target = target.double()
    spread = target.var(correction=0)
    return float(1 - (target - value.double()).var(correction=0) / spread) if spread > 0 else float("nan")


def r_squared(prediction: Tensor, target: Tensor, mask: Tensor) -> float:
    """1 - sum of (target - prediction)^2 / sum of (target - its mean)^2, over the marked entries.

    1 is a perfect prediction, 0 one that is no better than the mean; NaN where the target does not vary. A constant error counts
    here, and does not in `explained_variance`.
    """
    assert prediction.shape == target.shape == mask.shape
    prediction, target = prediction[mask].double(), target[mask].double()
    spread = (target - target.mean()).square().sum() if len(target) else target.sum()
    return float(1 - (target - prediction).square().sum() / spread) if spread > 0 else float("nan")
