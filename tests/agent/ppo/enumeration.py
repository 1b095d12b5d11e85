"""All legal actions of one decision."""

# O operations, S slots, H heads, C actions

from itertools import product

import torch
from torch import Tensor

from esper.agent.ppo.distribution import MASKED, ActionDistribution
from esper.env.actions import RELEVANT, Head, Op


def enumerated(distribution: ActionDistribution, row: int) -> tuple[Tensor, Tensor]:
    """Return all legal actions of one decision `[C, H]` and their log-probabilities `[C]`."""
    legal_OS = distribution.slot_BOS[row] > MASKED / 2
    legal_O = distribution.op_BO[row] > MASKED / 2
    actions: list[tuple[int, ...]] = []
    for op in Op:
        if not legal_O[op]:
            continue
        slots = torch.nonzero(legal_OS[op])[:, 0].tolist() if RELEVANT[op, Head.SLOT] else [0]
        values = [
            torch.nonzero(distribution.legal_values_BV[row, place])[:, 0].tolist() if RELEVANT[op, head] else [0]
            for head, place in distribution.places.items()
        ]
        actions += product([int(op)], slots, *values)
    action_CH = torch.tensor(actions)
    return action_CH, row_of(distribution, row, len(action_CH)).log_prob(action_CH)


def row_of(distribution: ActionDistribution, row: int, times: int) -> ActionDistribution:
    """Return the distribution of one decision, repeated."""
    copy = object.__new__(ActionDistribution)
    copy.places = distribution.places
    copy.legal_values_BV = distribution.legal_values_BV[row].expand(times, -1)
    copy.op_BO, copy.slot_BOS = distribution.op_BO[row].expand(times, -1), distribution.slot_BOS[row].expand(times, -1, -1)
    copy.parameters = {key: tensor[row].expand(times, -1, -1) for key, tensor in distribution.parameters.items()}
    return copy
