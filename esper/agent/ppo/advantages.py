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
    """What is subtracted from returns to get advantages."""

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
    """Lambda returns in the critic's scale."""
    mc_return_TN: Tensor
    """Monte-Carlo returns [reward]; the critic is judged by them, not trained on them."""
    free: Sequence[tuple[Op, Head]] | None = None
    """Pairs of operation and parameter head with more than one legal value anywhere in the rollout; None where unknown."""

    anchor_TN: Tensor | None = None
    """ln pi_old(a) - ln mu(a) of the policy before the update and the one that acted; None where they are the same."""
    num_current: int | None = None
    """Rows collected by the policy before the update, which come first; None for all."""

    def folded(self, chunk: int) -> "Targets":
        """Return the same targets with chunks as rows, as `Rollout.folded` does."""
        names = ("advantage_TN", "value_TN", "mc_return_TN")
        return replace(self, **{name: folded(getattr(self, name), chunk) for name in names})


def gae(
    reward_TN: Tensor,
    value_TN: Tensor,
    next_value_TN: Tensor,
    terminated_TN: Tensor,
    truncated_TN: Tensor,
    *,
    gamma: float,
    lam: float,
) -> Tensor:
    """Compute generalised advantage estimates, Eq. 16 of Schulman et al. 2016 (arXiv:1506.02438).

    delta_t = r_t + gamma * (1 - terminated_t) * V'_t - V_t
    A_t = delta_t + gamma * lam * (1 - (terminated_t or truncated_t)) * A_{t+1},   A_T = 0

    The state after a termination is worth 0; the state after a truncation is worth its value (Pardo et al. 2018,
    arXiv:1712.00378). No advantage passes from one episode to the one before.

    Args:
        reward_TN: reward of each step.
        value_TN: V of the state before each step [reward].
        next_value_TN: V of the true successor, across truncations too; ignored where the step terminated [reward].
        terminated_TN: true where the episode ended with the step.
        truncated_TN: true where the episode was cut from outside after the step.
        gamma: discount per step, in [0, 1].
        lam: GAE lambda, in [0, 1]: 0 trusts the critic, 1 the returns.

    Returns:
        Advantages `[T, N]` without gradient, accumulated in float64 and returned in the type of the rewards.
    """
    assert reward_TN.shape == value_TN.shape == next_value_TN.shape == terminated_TN.shape == truncated_TN.shape
    not_terminated_TN = (~terminated_TN).double()
    continues_TN = (~(terminated_TN | truncated_TN)).double()
    with torch.no_grad():
        delta_TN = reward_TN.double() + gamma * not_terminated_TN * next_value_TN.double() - value_TN.double()
        advantage_TN = torch.zeros_like(delta_TN)
        following_N = torch.zeros_like(delta_TN[0])
        for t in reversed(range(len(delta_TN))):
            following_N = delta_TN[t] + gamma * lam * continues_TN[t] * following_N
            advantage_TN[t] = following_N
    return advantage_TN.to(reward_TN.dtype)


def returns_to_go(
    reward_TN: Tensor, next_value_TN: Tensor, terminated_TN: Tensor, truncated_TN: Tensor, *, gamma: float
) -> Tensor:
    """Compute discounted Monte-Carlo returns from every step to the end of its episode; arguments as in `gae`.

    G_t = r_t + gamma * G_{t+1}, with G_{t+1} = 0 where step t terminated. After a truncation, and at the end of the rollout,
    the successor's value replaces G_{t+1}. No other value enters.
    """
    assert reward_TN.shape == next_value_TN.shape == terminated_TN.shape == truncated_TN.shape
    with torch.no_grad():
        reward, next_value = reward_TN.double(), next_value_TN.double()
        mc_return_TN = torch.zeros_like(reward)
        following_N = next_value[-1]
        for t in reversed(range(len(reward))):
            following_N = torch.where(truncated_TN[t], next_value[t], following_N)
            following_N = reward[t] + gamma * torch.where(terminated_TN[t], 0.0, following_N)
            mc_return_TN[t] = following_N
    return mc_return_TN.to(reward_TN.dtype)


def vtrace_advantages(
    reward_TN: Tensor,
    value_TN: Tensor,
    next_value_TN: Tensor,
    terminated_TN: Tensor,
    truncated_TN: Tensor,
    log_ratio_TN: Tensor,
    *,
    gamma: float,
    lam: float,
) -> tuple[Tensor, Tensor]:
    """Compute off-policy advantages and value targets by V-trace (Espeholt et al. 2018, arXiv:1802.01561, Eq. 1).

    With c_t = min(1, pi(a_t) / mu(a_t)) and delta_t as in `gae`:

    A_t = delta_t + gamma * lam * (1 - (terminated_t or truncated_t)) * c_{t+1} * A_{t+1}
    v_t = V_t + c_t * A_t

    A_t leaves the weight of its own step to the surrogate, as in GePPO (Queeney et al. 2021, arXiv:2111.00072). Where pi is
    mu, A_t is that of `gae` and v_t the lambda return.

    Args:
        log_ratio_TN: ln pi(a) - ln mu(a), of the current policy and the one that acted. The others as in `gae`.

    Returns:
        Advantages and value targets, both `[T, N]` and without gradient.
    """
    assert reward_TN.shape == value_TN.shape == log_ratio_TN.shape
    not_terminated_TN = (~terminated_TN).double()
    continues_TN = (~(terminated_TN | truncated_TN)).double()
    with torch.no_grad():
        weight_TN = log_ratio_TN.double().exp().clamp(max=1.0)
        delta_TN = reward_TN.double() + gamma * not_terminated_TN * next_value_TN.double() - value_TN.double()
        advantage_TN = torch.zeros_like(delta_TN)
        following_N = torch.zeros_like(delta_TN[0])
        for t in reversed(range(len(delta_TN))):
            advantage_TN[t] = delta_TN[t] + gamma * lam * continues_TN[t] * following_N
            following_N = weight_TN[t] * advantage_TN[t]
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
