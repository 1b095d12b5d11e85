"""Advantages, returns and value targets: pure functions of rewards and values."""

# T steps, N hosts

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor

from esper.buffer.rollout import folded
from esper.env.actions import Head, Op


class Baseline(StrEnum):
    """Baseline that is subtracted from returns to get advantages."""

    critic = "critic"
    """The critic: generalised advantage estimation."""
    twins = "twins"
    """The mean return-to-go of the host's twins."""
    blend = "blend"
    """The mean of both advantages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Targets:
    """Training targets of a rollout."""

    advantage_TN: Tensor
    """Advantages, normalised over the steps that were not forced."""
    value_TN: Tensor
    """Lambda returns, or V-trace targets for a window of rollouts, in the critic's scale."""
    mc_return_TN: Tensor
    """Monte-Carlo returns [reward]; the critic is evaluated on them, not trained on them."""
    free: Sequence[tuple[Op, Head]] | None = None
    """Pairs of operation and parameter head with more than one legal value anywhere in the rollout; None if unknown."""

    anchor_TN: Tensor | None = None
    """ln pi_old(a) - ln mu(a) of the policy before the update and the one that acted; None if they are the same."""
    num_current: int | None = None
    """Number of rows collected by the policy before the update, which come first; None for all."""

    def folded(self, chunk: int) -> "Targets":
        """Return the same targets with chunks as rows, as `Rollout.folded` does."""
        names = ("advantage_TN", "value_TN", "mc_return_TN")
        return replace(self, **{name: folded(getattr(self, name), chunk) for name in names})


def gae(
    reward_TN: Tensor, value_TN: Tensor, terminated_TN: Tensor, *, gamma: float, lam: float, weight_TN: Tensor | None = None
) -> Tensor:
    """Compute generalised advantage estimates, Eq. 16 of Schulman et al. 2016 (arXiv:1506.02438).

    delta_t = r_t + gamma * (1 - terminated_t) * V_{t+1} - V_t
    A_t = delta_t + gamma * lam * (1 - terminated_t) * c_{t+1} * A_{t+1},   V_T = A_T = 0

    Args:
        reward_TN: reward of each step.
        value_TN: V of the state before each step [reward].
        terminated_TN: true where the (sub-)episode ended with the step; every row ends with its last step.
        gamma: discount per step, in [0, 1].
        lam: GAE lambda, in [0, 1]: 0 trusts the critic, 1 the returns.
        weight_TN: c, the importance weight of each step; None for 1.

    Returns:
        Advantages `[T, N]` without gradient, accumulated in float64 and returned in the type of the rewards.
    """
    assert reward_TN.shape == value_TN.shape == terminated_TN.shape
    with torch.no_grad():
        continues_TN, value = (~terminated_TN).double(), value_TN.double()
        next_value = torch.cat([value[1:], torch.zeros_like(value[:1])])
        delta_TN = reward_TN.double() + gamma * continues_TN * next_value - value
        advantage_TN = torch.zeros_like(delta_TN)
        following_N = torch.zeros_like(delta_TN[0])
        for t in reversed(range(len(delta_TN))):
            advantage_TN[t] = delta_TN[t] + gamma * lam * continues_TN[t] * following_N
            following_N = advantage_TN[t] if weight_TN is None else weight_TN[t] * advantage_TN[t]
    return advantage_TN.to(reward_TN.dtype)


def returns_to_go(reward_TN: Tensor, terminated_TN: Tensor, *, gamma: float) -> Tensor:
    """Compute discounted Monte-Carlo returns from every step to the end of its (sub-)episode; arguments as in `gae`."""
    return gae(reward_TN, torch.zeros_like(reward_TN), terminated_TN, gamma=gamma, lam=1.0)


def vtrace_advantages(
    reward_TN: Tensor, value_TN: Tensor, terminated_TN: Tensor, log_ratio_TN: Tensor, *, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Compute off-policy advantages and value targets by V-trace (Espeholt et al. 2018, arXiv:1802.01561, Eq. 1).

    The advantages are those of `gae` with c_t = min(1, pi(a_t) / mu(a_t)); the targets are v_t = V_t + c_t * A_t.

    A_t omits the weight of its own step, which the surrogate applies, as in GePPO (Queeney et al. 2021, arXiv:2111.00072). If pi
    equals mu, v_t is the lambda return.

    Args:
        log_ratio_TN: ln pi(a) - ln mu(a), of the current policy and the one that acted. Other arguments as in `gae`.

    Returns:
        Advantages and value targets, both `[T, N]` and without gradient.
    """
    assert value_TN.shape == log_ratio_TN.shape
    with torch.no_grad():
        weight_TN = log_ratio_TN.double().exp().clamp(max=1.0)
        advantage_TN = gae(reward_TN.double(), value_TN, terminated_TN, gamma=gamma, lam=lam, weight_TN=weight_TN)
        target_TN = value_TN.double() + weight_TN * advantage_TN
    return advantage_TN.to(reward_TN.dtype), target_TN.to(reward_TN.dtype)


def leave_one_out(values_TN: Tensor, twins: int) -> Tensor:
    """Subtract from each value the mean of the host's other twins.

    With returns-to-go this is the leave-one-out baseline of Kool et al. 2019 (https://openreview.net/forum?id=r1lgTGL5DE).

    Args:
        values_TN: values of hosts whose twins are adjacent.
        twins: hosts per group of twins, >= 2.
    """
    values = values_TN.unflatten(1, (-1, twins))
    return ((values - values.mean(dim=2, keepdim=True)) * (twins / (twins - 1))).flatten(1)


def apply_baseline(baseline: Baseline, gae_TN: Tensor, mc_return_TN: Tensor, twins: int) -> Tensor:
    """Return the advantages of a baseline, given GAE advantages and Monte-Carlo returns."""
    match baseline:
        case Baseline.critic:
            return gae_TN
        case Baseline.twins:
            return leave_one_out(mc_return_TN, twins)
        case Baseline.blend:
            return (gae_TN + leave_one_out(mc_return_TN, twins)) / 2
