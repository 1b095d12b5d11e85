"""The distribution of actions: one factor a head, masked, and conditional on the operation and the slot.

    pi(a | s) = pi(o | s) * pi(slot | s, o) * product of pi_k(a_k | s, o, slot) over the parameter heads k that matter for o

Heads that do not matter for the operation are not drawn: they are stored as 0 and add nothing to log-probabilities and entropies.
A head with one legal value adds exactly 0 as well, so nothing has to be computed for it: such heads have no logits here.
"""

# B decisions, O operations, S slots, H heads, V values of all parameter heads end to end, W values of one head, C actions

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from esper.agent.base import BoolArray
from esper.env.actions import PARAMETER_HEADS, RELEVANT, Head, Op

MASKED = -1e9
"""Logit of what is illegal: its probability underflows to exactly 0, and unlike -inf it makes no NaN of 0 * logit."""
_RELEVANT_OH = torch.from_numpy(RELEVANT)
assert RELEVANT[:, Head.SLOT][RELEVANT[:, Head.BLUEPRINT :].any(axis=1)].all(), "parameters are conditioned on a slot"


def segments(head_sizes: tuple[int, ...]) -> dict[Head, slice]:
    """Where the values of each parameter head lie on the axis V."""
    places: dict[Head, slice] = {}
    start = 0
    for head in PARAMETER_HEADS:
        places[head] = slice(start, start + head_sizes[head])
        start += head_sizes[head]
    return places


def free_parameters(legal_slots_BOS: Tensor, legal_values_BV: Tensor, head_sizes: tuple[int, ...]) -> list[tuple[Op, Head]]:
    """The pairs of operation and parameter head between whose values there is a choice, in at least one of B decisions."""
    # In NumPy: of arrays this small, a sum in torch costs several times as much.
    legal_values: BoolArray = legal_values_BV.numpy()
    legal_O: BoolArray = np.any(legal_slots_BOS.numpy(), axis=(0, 2))
    free = [head for head, place in segments(head_sizes).items() if (legal_values[:, place].sum(axis=1) > 1).any()]
    return [(op, head) for op in Op if legal_O[op] for head in free if RELEVANT[op, head]]


def masked_log_softmax(logits: Tensor, legal: Tensor) -> Tensor:
    """Log-probabilities over the last axis, in float32 or better. Where nothing is legal they are finite and without meaning."""
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    return torch.log_softmax(logits.masked_fill(~legal, MASKED), dim=-1)


def entropy_of(log_prob: Tensor) -> Tensor:
    """Entropy of a categorical distribution over the last axis [nats]."""
    return -(log_prob.exp() * log_prob).sum(dim=-1)


def inverse_cdf(log_prob_BW: Tensor, uniform_B: Tensor) -> Tensor:
    """Draws by inversion: the first value whose cumulative probability exceeds the uniform number, never one of probability 0."""
    cdf_BW = log_prob_BW.double().exp().cumsum(dim=-1)
    # Divided by its end, the last legal value reaches exactly 1, which no number of [0, 1) does.
    return (cdf_BW / cdf_BW[:, -1:] <= uniform_B[:, None]).sum(dim=-1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Logits:
    """Scores before masks."""

    op_BO: Tensor
    slot_BOS: Tensor
    parameters: dict[tuple[Op, Head], Tensor]
    """`[B, S, W]` for each pair that `free_parameters` names."""


class ActionDistribution:
    """The distribution of B actions."""

    def __init__(
        self,
        logits: Logits,
        legal_slots_BOS: Tensor,
        legal_values_BV: Tensor,
        head_sizes: tuple[int, ...],
        free: Sequence[tuple[Op, Head]] | None = None,
    ) -> None:
        """
        Args:
            free: what `free_parameters` says of these decisions, or of more; None asks it.
        """
        self.legal_values_BV, self.places = legal_values_BV, segments(head_sizes)
        self.op_BO = masked_log_softmax(logits.op_BO, legal_slots_BOS.any(dim=2))
        self.slot_BOS = masked_log_softmax(logits.slot_BOS, legal_slots_BOS)
        self.parameters = {
            (op, head): masked_log_softmax(scores_BSW, legal_values_BV[:, None, self.places[head]])
            for (op, head), scores_BSW in logits.parameters.items()
        }
        if free is None:
            free = free_parameters(legal_slots_BOS, legal_values_BV, head_sizes)
        missing = set(free) - set(self.parameters)
        assert not missing, f"there is a choice, but there are no logits, for {missing}"

    def sample(self, uniform_BH: Tensor) -> Tensor:
        """Actions `[B, H]` drawn by inversion, one uniform number of [0, 1) a head."""
        return self._choose(lambda log_prob_BW, head: inverse_cdf(log_prob_BW, uniform_BH[:, head]))

    def mode(self) -> Tensor:
        """Actions `[B, H]`: the most probable operation, then its most probable slot, then their most probable parameters."""
        return self._choose(lambda log_prob_BW, head: log_prob_BW.argmax(dim=-1))

    def _choose(self, pick: Callable[[Tensor, Head], Tensor]) -> Tensor:
        row_B = torch.arange(len(self.op_BO))
        op_B = pick(self.op_BO, Head.OP)
        slot_B = pick(self.slot_BOS[row_B, op_B], Head.SLOT)
        columns = [op_B, slot_B]
        for head, place in self.places.items():
            value_B = self.legal_values_BV[:, place].int().argmax(dim=1)  # the only legal one, unless it is chosen below
            for (op, chosen), log_prob_BSW in self.parameters.items():
                if chosen == head:
                    value_B = torch.where(op_B == op, pick(log_prob_BSW[row_B, slot_B], head), value_B)
            columns.append(value_B)
        return torch.stack(columns, dim=1) * _RELEVANT_OH[op_B]

    def log_prob(self, action_BH: Tensor) -> Tensor:
        """Return the log-probability of whole actions `[B]`, below -1e8 where a value that was drawn is illegal.

        The values of heads that are not drawn are ignored: those that do not matter for the operation, and held ones.
        """
        row_B, op_B, slot_B = torch.arange(len(action_BH)), action_BH[:, Head.OP], action_BH[:, Head.SLOT]
        total_B = self.op_BO[row_B, op_B] + self.slot_BOS[row_B, op_B, slot_B] * _RELEVANT_OH[op_B, Head.SLOT]
        for (op, head), log_prob_BSW in self.parameters.items():
            chosen_B = log_prob_BSW[row_B, slot_B, action_BH[:, head]]
            total_B = total_B + torch.where(op_B == op, chosen_B, 0.0)
        return total_B

    def head_log_probs(self, action_BH: Tensor) -> Tensor:
        """Log-probability of each head's value, given the operation and the slot `[B, H]`. Their sum is `log_prob`.

        Exactly 0 for heads that do not matter for the operation, and for those with one legal value.
        """
        row_B, op_B, slot_B = torch.arange(len(action_BH)), action_BH[:, Head.OP], action_BH[:, Head.SLOT]
        log_prob_BH = self.op_BO.new_zeros(len(action_BH), len(Head))
        log_prob_BH[:, Head.OP] = self.op_BO[row_B, op_B]
        log_prob_BH[:, Head.SLOT] = self.slot_BOS[row_B, op_B, slot_B] * _RELEVANT_OH[op_B, Head.SLOT]
        for (op, head), log_prob_BSW in self.parameters.items():
            log_prob_BH[:, head] += torch.where(op_B == op, log_prob_BSW[row_B, slot_B, action_BH[:, head]], 0.0)
        return log_prob_BH

    def head_entropies(self, action_BH: Tensor) -> Tensor:
        """Entropy of each head where the action drew it: given its operation and its slot `[B, H]` [nats]; 0 elsewhere."""
        row_B, op_B, slot_B = torch.arange(len(action_BH)), action_BH[:, Head.OP], action_BH[:, Head.SLOT]
        entropy_BH = self.op_BO.new_zeros(len(action_BH), len(Head))
        entropy_BH[:, Head.OP] = entropy_of(self.op_BO)
        entropy_BH[:, Head.SLOT] = entropy_of(self.slot_BOS[row_B, op_B]) * _RELEVANT_OH[op_B, Head.SLOT]
        for (op, head), log_prob_BSW in self.parameters.items():
            entropy_BH[:, head] += torch.where(op_B == op, entropy_of(log_prob_BSW[row_B, slot_B]), 0.0)
        return entropy_BH

    def head_choices(self, action_BH: Tensor) -> Tensor:
        """Number of legal values that each head of an action was drawn from `[B, H]`; 0 for heads that do not matter for it."""
        row_B, op_B = torch.arange(len(action_BH)), action_BH[:, Head.OP]
        legal_BH = [
            (self.op_BO > MASKED / 2).sum(dim=1),
            (self.slot_BOS[row_B, op_B] > MASKED / 2).sum(dim=1),
            *(self.legal_values_BV[:, place].sum(dim=1) for place in self.places.values()),
        ]
        return torch.stack(legal_BH, dim=1) * _RELEVANT_OH[op_B]

    def entropy(self) -> Tensor:
        """Entropy of whole actions `[B]` [nats], exact by the chain rule.

        H(a) = H(o) + sum over o of pi(o) * [H(slot | o) + sum over slots of pi(slot | o) * sum over k of H_k(. | o, slot)]

        So every head is weighted by the mass of the operations that use it (Cover, Thomas: Elements of Information Theory, 2.5).
        """
        inner_BO = entropy_of(self.slot_BOS) * _RELEVANT_OH[:, Head.SLOT]
        for (op, _), log_prob_BSW in self.parameters.items():
            expected_B = (self.slot_BOS[:, op].exp() * entropy_of(log_prob_BSW)).sum(dim=1)
            inner_BO = inner_BO + expected_B[:, None] * torch.nn.functional.one_hot(torch.tensor(int(op)), len(Op))
        return entropy_of(self.op_BO) + (self.op_BO.exp() * inner_BO).sum(dim=1)

    def enumerate(self, row: int) -> tuple[Tensor, Tensor]:
        """Every action that one decision may end in `[C, H]`, legal ones only, and their log-probabilities `[C]`.

        For tests and reports: C grows with the product of the head sizes.
        """
        legal_OS = self.slot_BOS[row] > MASKED / 2
        legal_O = self.op_BO[row] > MASKED / 2
        actions: list[tuple[int, ...]] = []
        for op in Op:
            if not legal_O[op]:
                continue
            slots = torch.nonzero(legal_OS[op])[:, 0].tolist() if RELEVANT[op, Head.SLOT] else [0]
            values: list[list[int]] = [
                torch.nonzero(self.legal_values_BV[row, place])[:, 0].tolist() if RELEVANT[op, head] else [0]
                for head, place in self.places.items()
            ]
            actions += product([int(op)], slots, *values)
        action_CH = torch.tensor(actions)
        return action_CH, self._row(row, len(action_CH)).log_prob(action_CH)

    def _row(self, row: int, times: int) -> "ActionDistribution":
        """One decision, repeated."""
        copy = object.__new__(ActionDistribution)
        copy.places = self.places
        copy.legal_values_BV = self.legal_values_BV[row].expand(times, -1)
        copy.op_BO, copy.slot_BOS = self.op_BO[row].expand(times, -1), self.slot_BOS[row].expand(times, -1, -1)
        copy.parameters = {key: tensor[row].expand(times, -1, -1) for key, tensor in self.parameters.items()}
        return copy
