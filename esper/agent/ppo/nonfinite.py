"""Where learning broke down: which numbers are not finite, in which parts of the network, and with which step of which host."""

# T steps, N hosts, M rows of a minibatch, B = T * M decisions

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from esper.agent.ppo.network import PolicyNetwork
from esper.agent.ppo.objective import replayed
from esper.agent.ppo.targets import Targets
from esper.buffer.rollout import Rollout


@torch.no_grad()
def first_sick(network: PolicyNetwork, rollout: Rollout, targets: Targets, rows_M: Tensor) -> tuple[int, int] | None:
    """The first step, and its host, at which what the network says or is taught is not finite; None where all of it is."""
    outputs, action_BH = replayed(network, rollout, targets, rows_M)
    told_B = [outputs.distribution.log_prob(action_BH), outputs.distribution.entropy(), outputs.value_B]
    if outputs.contribution_BS is not None:
        told_B.append(outputs.contribution_BS.sum(dim=1))
    taught_B = [tensor_TN[:, rows_M].flatten() for tensor_TN in (targets.advantage_TN, targets.value_TN)]
    sick_TM = ~torch.stack([*told_B, *taught_B]).isfinite().all(dim=0).view(rollout.num_steps, len(rows_M))
    places: list[list[int]] = torch.nonzero(sick_TM).tolist()
    return min((rollout.origin(step, int(rows_M[column])) for step, column in places), default=None)


def sentence(terms: Mapping[str, Tensor], gradients: Mapping[str, float], place: tuple[int, int] | None, times: int) -> str:
    """Why the run ends.

    Args:
        terms: of the objective, by name.
        gradients: norms of the parts of the network, before clipping.
        place: what `first_sick` says.
        times: minibatches in a row.
    """
    sick = [name for name, term in terms.items() if not bool(term.isfinite())]
    sick += [f"gradient of the {part}" for part, norm in gradients.items() if not math.isfinite(norm)]
    where = "" if place is None else f", first at step {place[0]} of host {place[1]}"
    return (
        f"{', '.join(sick)} not finite in {times} minibatches in a row{where}: lower agent.learning_rate, or look at the rewards "
        "and observations"
    )
