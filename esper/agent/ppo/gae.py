"""Advantages and returns: pure functions of what was paid and what was expected."""

# T steps, N hosts

from enum import StrEnum

import torch
from torch import Tensor


class Baseline(StrEnum):
    """What advantages are measured against."""

    critic = "critic"
    """The critic: generalised advantage estimation."""
    twins = "twins"
    """The mean return-to-go of the host's twins."""
    blend = "blend"
    """The mean of both advantages."""


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
    """Generalised advantage estimation, Eq. 16 of Schulman et al. 2016 (arXiv:1506.02438), with both kinds of episode end.

    delta_t = r_t + gamma * (1 - terminated_t) * V'_t - V_t
    A_t = delta_t + gamma * lam * (1 - (terminated_t or truncated_t)) * A_{t+1},   A_T = 0

    An end of the task is worth nothing afterwards; an outside cut is worth what its successor was expected to be
    (Pardo et al. 2018, arXiv:1712.00378). Neither lets an advantage pass from one episode to the one before.

    Args:
        reward_TN: paid for step t [reward].
        value_TN: V of the state before step t [reward].
        next_value_TN: V of its true successor, also across cuts; ignored where the step terminated.
        terminated_TN: the episode ended with step t.
        truncated_TN: it was cut from outside after step t.
        gamma: discount per step, in [0, 1].
        lam: weight of longer sums, in [0, 1]: 0 trusts the critic, 1 the returns.

    Returns:
        Advantages `[T, N]`, accumulated in float64 and given in the type of the rewards. No gradient flows into them.
    """
    assert reward_TN.shape == value_TN.shape == next_value_TN.shape == terminated_TN.shape == truncated_TN.shape
    goes_on_TN = (~terminated_TN).double()
    same_TN = (~(terminated_TN | truncated_TN)).double()
    with torch.no_grad():
        delta_TN = reward_TN.double() + gamma * goes_on_TN * next_value_TN.double() - value_TN.double()
        advantage_TN = torch.zeros_like(delta_TN)
        following_N = torch.zeros_like(delta_TN[0])
        for t in reversed(range(len(delta_TN))):
            following_N = delta_TN[t] + gamma * lam * same_TN[t] * following_N
            advantage_TN[t] = following_N
    return advantage_TN.to(reward_TN.dtype)


def leave_one_out(values_TN: Tensor, twins: int) -> Tensor:
    """Each value less the mean of those of the host's twins: leave-one-out, so that a baseline never contains what it is for.

    With returns-to-go it is the leave-one-out baseline of Kool et al. 2019 (https://openreview.net/forum?id=r1lgTGL5DE).

    Args:
        values_TN: of hosts whose twins lie side by side.
        twins: how many there are of each, at least 2.
    """
    values = values_TN.unflatten(1, (-1, twins))
    return ((values - values.mean(dim=2, keepdim=True)) * (twins / (twins - 1))).flatten(1)


def returns_to_go(
    reward_TN: Tensor, next_value_TN: Tensor, terminated_TN: Tensor, truncated_TN: Tensor, *, gamma: float
) -> Tensor:
    """Discounted Monte-Carlo return from every step on, to the end of its episode.

    G_t = r_t + gamma * G_{t+1}, with G_{t+1} = 0 where step t terminated. Where what follows was not lived (a cut, or the end of
    the rollout) the successor's value stands in for it; the values of states that were lived through do not enter.

    Args and shapes as in `gae`.
    """
    assert reward_TN.shape == next_value_TN.shape == terminated_TN.shape == truncated_TN.shape
    with torch.no_grad():
        reward, next_value = reward_TN.double(), next_value_TN.double()
        return_TN = torch.zeros_like(reward)
        following_N = next_value[-1]
        for t in reversed(range(len(reward))):
            following_N = torch.where(truncated_TN[t], next_value[t], following_N)
            following_N = reward[t] + gamma * torch.where(terminated_TN[t], 0.0, following_N)
            return_TN[t] = following_N
    return return_TN.to(reward_TN.dtype)


def against(baseline: Baseline, advantage_TN: Tensor, mc_return_TN: Tensor, twins: int) -> Tensor:
    """Advantages against a baseline, from those against the critic and the returns-to-go."""
    match baseline:
        case Baseline.critic:
            return advantage_TN
        case Baseline.twins:
            return leave_one_out(mc_return_TN, twins)
        case Baseline.blend:
            return (advantage_TN + leave_one_out(mc_return_TN, twins)) / 2
