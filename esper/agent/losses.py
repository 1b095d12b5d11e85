"""The terms of the PPO objective and what is said about them: pure functions on any shape."""

import torch
from torch import Tensor


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


def value_loss(value: Tensor, target: Tensor) -> Tensor:
    """Half the mean squared error of the critic."""
    assert value.shape == target.shape
    return 0.5 * (value - target).square().mean()


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
