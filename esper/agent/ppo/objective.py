"""What a policy is made to minimise: some rows of a rollout, lived again from their start."""

# T steps, N hosts, H heads, S slots, M rows of a minibatch, B = T * M decisions, C chunks of a row, R units of the core

import torch
from torch import Tensor

from esper.agent.base import State
from esper.agent.ppo.losses import Surrogate, clipped_surrogate, contribution_loss, masked_mean, per_head_surrogate, value_loss
from esper.agent.ppo.network import Outputs, PolicyNetwork
from esper.agent.ppo.targets import Targets
from esper.buffer.rollout import Rollout
from esper.env.actions import RELEVANT, Head

RATIO_TOLERANCE = 1e-4
"""How far the replay of a rollout may be from it before the first step, in |ln ratio|: rounding is a hundred times smaller."""


@torch.no_grad()
def chunk_starts(network: PolicyNetwork, rollout: Rollout, chunk: int) -> State:
    """What the network remembers now at the start of every chunk `[C * N, R]`, in the rows of `Rollout.folded`."""
    state = rollout.initial_state or network.start(rollout.num_hosts)
    starts = [state]
    for begin in range(0, rollout.num_steps - chunk, chunk):
        part = slice(begin, begin + chunk)
        state = network.remember(rollout.seen[part], state, rollout.is_init_TN[part])
        starts.append(state)
    return {name: torch.cat([start[name] for start in starts]) for name in state}


def losses(
    network: PolicyNetwork, rollout: Rollout, targets: Targets, rows_M: Tensor, *, clip: float, surrogate: Surrogate
) -> tuple[Tensor, dict[str, Tensor]]:
    """Replays some rows from their start: log-ratios of whole actions `[T, M]`, and the terms of the objective by name."""
    outputs, action_BH = replayed(network, rollout, targets, rows_M)
    shape = (rollout.num_steps, len(rows_M))
    log_ratio_TM = outputs.distribution.log_prob(action_BH).view(shape) - rollout.log_prob_TN[:, rows_M]
    advantage_TM, chosen_TM = targets.advantage_TN[:, rows_M], ~rollout.forced_TN[:, rows_M]
    if surrogate is Surrogate.per_head:
        lived_TMH = rollout.head_log_prob_TNH[:, rows_M]
        by_head_TMH = outputs.distribution.head_log_probs(action_BH).view_as(lived_TMH) - lived_TMH
        relevant_TMH = torch.from_numpy(RELEVANT)[action_BH[:, Head.OP]].view_as(lived_TMH)
        policy_loss = per_head_surrogate(by_head_TMH, advantage_TM, relevant_TMH, chosen_TM, clip=clip)
    else:
        policy_loss = clipped_surrogate(log_ratio_TM, advantage_TM, chosen_TM, clip=clip)
    terms = {
        "policy_loss": policy_loss,
        "value_loss": value_loss(outputs.value_B.view(shape), targets.value_TN[:, rows_M]),
        "entropy": masked_mean(outputs.distribution.entropy().view(shape), chosen_TM),
    }
    if outputs.contribution_BS is not None and targets.contributions is not None:
        found_BS, measured_BS = (tensor_TNS[:, rows_M].flatten(0, 1) for tensor_TNS in targets.contributions)
        terms["contribution_loss"] = contribution_loss(outputs.contribution_BS, found_BS, measured_BS)
    return log_ratio_TM, terms


def replayed(network: PolicyNetwork, rollout: Rollout, targets: Targets, rows_M: Tensor) -> tuple[Outputs, Tensor]:
    """What the network says now of some rows, and the actions `[B, H]` that were taken in them."""
    state = rollout.initial_state or network.start(rollout.num_hosts)
    state = {name: tensor[rows_M] for name, tensor in state.items()}
    outputs, _ = network.unroll(rollout.seen[:, rows_M], state, rollout.is_init_TN[:, rows_M], targets.free)
    return outputs, rollout.action_TNH[:, rows_M].flatten(0, 1)


def check_replay(rollout: Rollout, rows_M: Tensor, log_ratio_TM: Tensor) -> float:
    """Largest |ln ratio|: before the first step, policy and rollout are the same policy, and must say the same.

    Raises:
        RuntimeError: they do not.
    """
    log_ratio_TM = log_ratio_TM.detach()
    worst = float(log_ratio_TM.abs().max())
    if not worst <= RATIO_TOLERANCE:  # nor is it where it is no number
        place, column = divmod(int(log_ratio_TM.abs().argmax()), len(rows_M))
        row = int(rows_M[column])
        lived, now = float(rollout.log_prob_TN[place, row]), float(log_ratio_TM[place, column])
        step, host = rollout.origin(place, row)
        raise RuntimeError(
            f"the policy does not reproduce its rollout: at step {step} of host {host}, action "
            f"{rollout.action_TNH[place, row].tolist()} had log-probability {lived:.6f} and has {lived + now:.6f}; "
            "weights, masks, recurrent state or resets differ from those of the rollout"
        )
    return worst
