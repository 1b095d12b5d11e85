"""The PPO objective: its terms as pure functions, and the replay of rollout rows through the policy that they are computed on."""

# T steps, N hosts, H heads, M rows of a minibatch, B = T * M decisions, C chunks of a row, R units of the core

from enum import StrEnum

import torch
from torch import Tensor

from esper.agent.ppo.advantages import Targets
from esper.agent.ppo.imitation import imitation_loss
from esper.agent.ppo.network import Outputs, PolicyNetwork
from esper.buffer.rollout import Rollout
from esper.buffer.transition import State
from esper.env.actions import RELEVANT, Head

RATIO_TOLERANCE = 1e-4
"""Largest allowed |ln ratio| of a replay to its rollout before the first gradient step; rounding is a hundred times smaller."""


class Reference(StrEnum):
    """Policy that the entropy bonus draws towards."""

    uniform = "uniform"
    """All legal actions with equal probability: each operation in proportion to the number of its slots and parameters."""
    initial = "initial"
    """Operations as in the initial policy, which waits with the logit agent.wait_bias; slots and parameters uniformly."""


class Surrogate(StrEnum):
    """Probability ratio that is clipped."""

    joint = "joint"
    """The ratio of the whole action."""
    per_head = "per_head"
    """The ratio of each head that matters for the action, clipped separately."""


# ---- terms


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean of the marked entries; 0, with a gradient of 0, if none is marked."""
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, mask: Tensor, *, clip: float) -> Tensor:
    """Compute the clipped surrogate loss, Eq. 7 of Schulman et al. 2017 (arXiv:1707.06347).

    -mean over the marked steps of min(ratio * A, clip(ratio, 1 - clip, 1 + clip) * A), with the ratio of whole actions.

    Args:
        log_ratio: ln pi_new(a) - ln pi_old(a).
        advantage: A.
        mask: steps to average over, without forced ones.
        clip: half-width of the interval, in (0, 1).
    """
    assert log_ratio.shape == advantage.shape == mask.shape
    ratio = log_ratio.exp()
    return -masked_mean(torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage), mask)


def centred_surrogate(log_ratio: Tensor, anchor: Tensor, advantage: Tensor, mask: Tensor, *, clip: float) -> Tensor:
    """Compute the surrogate loss clipped around the policy before the update, for actions of earlier policies.

    -mean of min(ratio * A, clip(ratio, centre - clip, centre + clip) * A), with ratio = pi_new(a) / mu(a) and
    centre = pi_old(a) / mu(a): Eq. 9 of Queeney et al. 2021 (GePPO, arXiv:2111.00072). Where mu is pi_old, this is
    `clipped_surrogate`.

    Args:
        log_ratio: ln pi_new(a) - ln mu(a).
        anchor: ln pi_old(a) - ln mu(a).
        advantage: A of pi_old.
        mask: steps to average over, without forced ones.
        clip: half-width of the interval, in (0, 1).
    """
    assert log_ratio.shape == anchor.shape == advantage.shape == mask.shape
    ratio, centre = log_ratio.exp(), anchor.exp()
    clipped = torch.maximum(torch.minimum(ratio, centre + clip), centre - clip)
    return -masked_mean(torch.minimum(ratio * advantage, clipped * advantage), mask)


def per_head_surrogate(log_ratio: Tensor, advantage: Tensor, relevant: Tensor, mask: Tensor, *, clip: float) -> Tensor:
    """Compute the clipped surrogate loss with every head clipped separately.

    -mean over the marked steps of the sum over the relevant heads k of min(ratio_k * A, clip(ratio_k, 1 - clip, 1 + clip) * A)

    At ratio 1 its gradient equals that of `clipped_surrogate`, since the log-probabilities of the heads add up. Elsewhere,
    clipping one head leaves the others free, whereas clipping a joint ratio stops all heads, and opposite changes can cancel in
    it. Each step counts once: a mean over the steps of each head would weight rare operations a hundredfold.

    Args:
        log_ratio: `[..., H]`, ln pi_new(a_k) - ln pi_old(a_k), given the operation and the slot.
        advantage: A `[...]`.
        relevant: `[..., H]`, true where the head matters for the action.
        mask: `[...]`, steps to average over, without forced ones.
        clip: half-width of the interval, in (0, 1).
    """
    assert log_ratio.shape == relevant.shape
    assert log_ratio.shape[:-1] == advantage.shape == mask.shape
    ratio, gain = torch.where(relevant, log_ratio, 0.0).exp(), advantage[..., None]
    clipped = torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain)
    return -masked_mean(torch.where(relevant, clipped, 0.0).sum(dim=-1), mask)


def value_loss(value: Tensor, target: Tensor) -> Tensor:
    """Compute half the mean squared error of the critic."""
    assert value.shape == target.shape
    return 0.5 * (value - target).square().mean()


def kl_estimate(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Estimate KL(old || new) from actions of the old policy: the mean of ratio - 1 - ln ratio [nats].

    Unbiased and never negative (k3 of Schulman 2020, http://joschu.net/blog/kl-approx.html).
    """
    assert log_ratio.shape == mask.shape
    return masked_mean(torch.expm1(log_ratio) - log_ratio, mask)


def clip_fraction(log_ratio: Tensor, mask: Tensor, *, clip: float) -> Tensor:
    """Compute the share of the marked steps whose ratio is outside [1 - clip, 1 + clip]."""
    return masked_mean(((log_ratio.exp() - 1).abs() > clip).float(), mask)


# ---- replay


def replay(network: PolicyNetwork, rollout: Rollout, targets: Targets, rows_M: Tensor) -> tuple[Outputs, Tensor]:
    """Unroll the network over some rows from their start; return its outputs and the actions taken there `[B, H]`."""
    state = rollout.initial_state or network.start(rollout.num_hosts)
    state = {name: tensor[rows_M] for name, tensor in state.items()}
    outputs, _ = network.unroll(rollout.seen[:, rows_M], state, rollout.is_init_TN[:, rows_M], targets.free)
    return outputs, rollout.action_TNH[:, rows_M].flatten(0, 1)


def compute_losses(
    network: PolicyNetwork,
    rollout: Rollout,
    targets: Targets,
    rows_M: Tensor,
    *,
    clip: float,
    surrogate: Surrogate,
    reference_O: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Replay some rows; return log-ratios to the policy before the update `[T, M]` and the terms of the objective by name.

    If `reference_O` is given, one term is the divergence from the reference policy with these operation logits.
    """
    outputs, action_BH = replay(network, rollout, targets, rows_M)
    shape = (rollout.num_steps, len(rows_M))
    log_ratio_TM = outputs.distribution.log_prob(action_BH).view(shape) - rollout.log_prob_TN[:, rows_M]
    advantage_TM, unforced_TM = targets.advantage_TN[:, rows_M], ~rollout.forced_TN[:, rows_M]
    if targets.anchor_TN is not None:
        anchor_TM = targets.anchor_TN[:, rows_M]
        policy_loss = centred_surrogate(log_ratio_TM, anchor_TM, advantage_TM, unforced_TM, clip=clip)
        log_ratio_TM = log_ratio_TM - anchor_TM
    elif surrogate is Surrogate.per_head:
        old_TMH = rollout.head_log_prob_TNH[:, rows_M]
        head_log_ratio_TMH = outputs.distribution.head_log_probs(action_BH).view_as(old_TMH) - old_TMH
        relevant_TMH = torch.from_numpy(RELEVANT)[action_BH[:, Head.OP]].view_as(old_TMH)
        policy_loss = per_head_surrogate(head_log_ratio_TMH, advantage_TM, relevant_TMH, unforced_TM, clip=clip)
    else:
        policy_loss = clipped_surrogate(log_ratio_TM, advantage_TM, unforced_TM, clip=clip)
    terms = {
        "policy_loss": policy_loss,
        "value_loss": value_loss(outputs.value_B.view(shape), targets.value_TN[:, rows_M]),
        "entropy": masked_mean(outputs.distribution.entropy().view(shape), unforced_TM),
    }
    if rollout.taught_TNH is not None:
        taught_BH = rollout.taught_TNH[:, rows_M].flatten(0, 1)
        terms["imitation_loss"] = masked_mean(imitation_loss(outputs.distribution, taught_BH).view(shape), unforced_TM)
    if reference_O is not None:
        terms["divergence"] = masked_mean(outputs.distribution.divergence(reference_O).view(shape), unforced_TM)
    return log_ratio_TM, terms


@torch.no_grad()
def chunk_starts(network: PolicyNetwork, rollout: Rollout, chunk: int) -> State:
    """Compute the current network's state at the start of every chunk `[C * N, R]`, in the row order of `Rollout.folded`."""
    state = rollout.initial_state or network.start(rollout.num_hosts)
    starts = [state]
    for begin in range(0, rollout.num_steps - chunk, chunk):
        part = slice(begin, begin + chunk)
        state = network.state_after(rollout.seen[part], state, rollout.is_init_TN[part])
        starts.append(state)
    return {name: torch.cat([start[name] for start in starts]) for name in state}


def check_replay(rollout: Rollout, rows_M: Tensor, log_ratio_TM: Tensor) -> float:
    """Check that a replay before the first gradient step reproduces the rollout; return the largest |ln ratio|.

    Raises:
        RuntimeError: a log-probability differs by more than `RATIO_TOLERANCE`, or is not finite.
    """
    log_ratio_TM = log_ratio_TM.detach()
    worst = float(log_ratio_TM.abs().max())
    if not worst <= RATIO_TOLERANCE:  # also true for NaN
        place, column = divmod(int(log_ratio_TM.abs().argmax()), len(rows_M))
        row = int(rows_M[column])
        old, difference = float(rollout.log_prob_TN[place, row]), float(log_ratio_TM[place, column])
        step, host = rollout.origin(place, row)
        raise RuntimeError(
            f"the policy does not reproduce its rollout: at step {step} of host {host}, action "
            f"{rollout.action_TNH[place, row].tolist()} had log-probability {old:.6f} and now has {old + difference:.6f}; "
            "weights, masks, recurrent state or resets differ from those of the rollout"
        )
    return worst
