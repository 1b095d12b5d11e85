"""The masked, factored action distribution: one factor per head, conditional on the operation and the slot.

    pi(a | s) = pi(o | s) * pi(slot | s, o) * product of pi_k(a_k | s, o, slot) over the parameter heads k that matter for o

Heads that do not matter for the operation are not sampled: they are stored as 0 and add 0 to log-probabilities and entropies.
A *held* head, with one legal value, adds exactly 0 too; a head held in all B decisions needs no logits.
"""

# B decisions, O operations, S slots, H heads, V values of all parameter heads, concatenated, W values of one head

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from esper.env.actions import RELEVANT, Head, Op, segments
from esper.lifecycle.stages import BoolArray

MASKED = -1e9
"""Logit of illegal values: their probability underflows to exactly 0, and unlike -inf, 0 * logit is not NaN."""
_RELEVANT_OH = torch.from_numpy(RELEVANT)
assert RELEVANT[:, Head.SLOT][RELEVANT[:, Head.BLUEPRINT :].any(axis=1)].all(), "parameters are conditioned on a slot"


def free_parameters(legal_slots_BOS: Tensor, legal_values_BV: Tensor, head_sizes: tuple[int, ...]) -> list[tuple[Op, Head]]:
    """Return the pairs of operation and parameter head with several legal values in at least one of B decisions."""
    # NumPy, since reductions of small arrays are several times faster than in torch.
    legal_values: BoolArray = legal_values_BV.numpy()
    legal_O: BoolArray = np.any(legal_slots_BOS.numpy(), axis=(0, 2))
    free = [head for head, place in segments(head_sizes).items() if (legal_values[:, place].sum(axis=1) > 1).any()]
    return [(op, head) for op in Op if legal_O[op] for head in free if RELEVANT[op, head]]


def masked_log_softmax(logits: Tensor, legal: Tensor) -> Tensor:
    """Compute log-probabilities over the last axis, in float32 or better; finite but meaningless if nothing is legal."""
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    return torch.log_softmax(logits.masked_fill(~legal, MASKED), dim=-1)


def entropy_of(log_prob: Tensor) -> Tensor:
    """Compute the entropy of a categorical distribution over the last axis [nats]."""
    return -(log_prob.exp() * log_prob).sum(dim=-1)


def _mean_of_legal(log_prob: Tensor) -> Tensor:
    """Return the mean over the legal values in the last axis; 0 if none is legal."""
    legal = log_prob > MASKED / 2
    return torch.where(legal, log_prob, 0.0).sum(dim=-1) / legal.sum(dim=-1).clamp(min=1)


def inverse_cdf(log_prob_BW: Tensor, uniform_B: Tensor) -> Tensor:
    """Sample by inversion: the first value with a cumulative probability above the uniform number, never one of probability 0."""
    cdf_BW = log_prob_BW.double().exp().cumsum(dim=-1)
    # Dividing by the last entry makes the last legal value reach exactly 1, above every number in [0, 1).
    return (cdf_BW / cdf_BW[:, -1:] <= uniform_B[:, None]).sum(dim=-1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Logits:
    """Logits before masking."""

    op_BO: Tensor
    slot_BOS: Tensor
    parameters: dict[tuple[Op, Head], Tensor]
    """`[B, S, W]` for each pair in `free_parameters`."""


class ActionDistribution:
    """A distribution over the actions of B decisions."""

    def __init__(self, logits: Logits, legal_slots_BOS: Tensor, legal_values_BV: Tensor, head_sizes: tuple[int, ...]) -> None:
        """
        Args:
            logits: logits before masking; of `free_parameters` of these decisions or of a superset.
            legal_slots_BOS: legality of each operation on each slot.
            legal_values_BV: legality of the values of the parameter heads.
            head_sizes: number of values of each head.
        """
        self.legal_values_BV, self.places = legal_values_BV, segments(head_sizes)
        self.op_BO = masked_log_softmax(logits.op_BO, legal_slots_BOS.any(dim=2))
        self.slot_BOS = masked_log_softmax(logits.slot_BOS, legal_slots_BOS)
        self.parameters = {
            (op, head): masked_log_softmax(scores_BSW, legal_values_BV[:, None, self.places[head]])
            for (op, head), scores_BSW in logits.parameters.items()
        }

    def sample(self, uniform_BH: Tensor) -> Tensor:
        """Sample actions `[B, H]` by inversion from uniform numbers in [0, 1), one per head."""
        return self._choose(lambda log_prob_BW, head: inverse_cdf(log_prob_BW, uniform_BH[:, head]))

    def mode(self) -> Tensor:
        """Return the most probable operation, then its most probable slot, then their most probable parameters `[B, H]`."""
        return self._choose(lambda log_prob_BW, head: log_prob_BW.argmax(dim=-1))

    def _choose(self, pick: Callable[[Tensor, Head], Tensor]) -> Tensor:
        row_B = torch.arange(self.op_BO.shape[0])  # not len, which torch.export would take for a constant
        op_B = pick(self.op_BO, Head.OP)
        slot_B = pick(self.slot_BOS[row_B, op_B], Head.SLOT)
        columns = [op_B, slot_B]
        for head, place in self.places.items():
            value_B = self.legal_values_BV[:, place].int().argmax(dim=1)  # the only legal value, unless replaced below
            for (op, chosen), log_prob_BSW in self.parameters.items():
                if chosen == head:
                    value_B = torch.where(op_B == op, pick(log_prob_BSW[row_B, slot_B], head), value_B)
            columns.append(value_B)
        return torch.stack(columns, dim=1) * _RELEVANT_OH[op_B]

    def log_prob(self, action_BH: Tensor) -> Tensor:
        """Compute the log-probability of whole actions `[B]`.

        It is below -1e8 for an illegal operation or slot, or an illegal value of a head that has logits. A head without logits is
        held and adds 0 whatever its value, so an illegal value is not noticed there.
        """
        row_B, op_B, slot_B = torch.arange(len(action_BH)), action_BH[:, Head.OP], action_BH[:, Head.SLOT]
        total_B = self.op_BO[row_B, op_B] + self.slot_BOS[row_B, op_B, slot_B] * _RELEVANT_OH[op_B, Head.SLOT]
        for (op, head), log_prob_BSW in self.parameters.items():
            chosen_B = log_prob_BSW[row_B, slot_B, action_BH[:, head]]
            total_B = total_B + torch.where(op_B == op, chosen_B, 0.0)
        return total_B

    def uniform_log_prob(self, action_BH: Tensor) -> Tensor:
        """Compute the mean log-probability of all legal values of each head that matters for an action, given its operation and
        slot, and return the sum over heads `[B]`."""
        row_B, op_B, slot_B = torch.arange(len(action_BH)), action_BH[:, Head.OP], action_BH[:, Head.SLOT]
        total_B = _mean_of_legal(self.op_BO) + _mean_of_legal(self.slot_BOS[row_B, op_B]) * _RELEVANT_OH[op_B, Head.SLOT]
        for (op, _), log_prob_BSW in self.parameters.items():
            total_B = total_B + torch.where(op_B == op, _mean_of_legal(log_prob_BSW[row_B, slot_B]), 0.0)
        return total_B

    def head_log_probs(self, action_BH: Tensor) -> Tensor:
        """Compute the log-probability of each head's value, given the operation and the slot `[B, H]`. The sum is `log_prob`.

        It is exactly 0 for heads that do not matter for the operation, and for legal values of held heads.
        """
        row_B, op_B, slot_B = torch.arange(len(action_BH)), action_BH[:, Head.OP], action_BH[:, Head.SLOT]
        log_prob_BH = self.op_BO.new_zeros(len(action_BH), len(Head))
        log_prob_BH[:, Head.OP] = self.op_BO[row_B, op_B]
        log_prob_BH[:, Head.SLOT] = self.slot_BOS[row_B, op_B, slot_B] * _RELEVANT_OH[op_B, Head.SLOT]
        for (op, head), log_prob_BSW in self.parameters.items():
            log_prob_BH[:, head] += torch.where(op_B == op, log_prob_BSW[row_B, slot_B, action_BH[:, head]], 0.0)
        return log_prob_BH

    def head_entropies(self, action_BH: Tensor) -> Tensor:
        """Compute the entropy of each head given operation and slot `[B, H]` [nats]; 0 for heads that do not matter."""
        row_B, op_B, slot_B = torch.arange(len(action_BH)), action_BH[:, Head.OP], action_BH[:, Head.SLOT]
        entropy_BH = self.op_BO.new_zeros(len(action_BH), len(Head))
        entropy_BH[:, Head.OP] = entropy_of(self.op_BO)
        entropy_BH[:, Head.SLOT] = entropy_of(self.slot_BOS[row_B, op_B]) * _RELEVANT_OH[op_B, Head.SLOT]
        for (op, head), log_prob_BSW in self.parameters.items():
            entropy_BH[:, head] += torch.where(op_B == op, entropy_of(log_prob_BSW[row_B, slot_B]), 0.0)
        return entropy_BH

    def head_choices(self, action_BH: Tensor) -> Tensor:
        """Count the legal values of each head of an action `[B, H]`; 0 for heads that do not matter."""
        row_B, op_B = torch.arange(len(action_BH)), action_BH[:, Head.OP]
        legal_BH = [
            (self.op_BO > MASKED / 2).sum(dim=1),
            (self.slot_BOS[row_B, op_B] > MASKED / 2).sum(dim=1),
            *(self.legal_values_BV[:, place].sum(dim=1) for place in self.places.values()),
        ]
        return torch.stack(legal_BH, dim=1) * _RELEVANT_OH[op_B]

    def entropy(self) -> Tensor:
        """Compute the exact entropy of whole actions by the chain rule `[B]` [nats].

        H(a) = H(o) + sum over o of pi(o) * [H(slot | o) + sum over slots of pi(slot | o) * sum over k of H_k(. | o, slot)]

        The weight of a head is the probability of its operations (Cover, Thomas: Elements of Information Theory, 2.5).
        """
        inner_BO = entropy_of(self.slot_BOS) * _RELEVANT_OH[:, Head.SLOT]
        for (op, _), log_prob_BSW in self.parameters.items():
            expected_B = (self.slot_BOS[:, op].exp() * entropy_of(log_prob_BSW)).sum(dim=1)
            inner_BO = inner_BO + expected_B[:, None] * torch.nn.functional.one_hot(torch.tensor(int(op)), len(Op))
        return entropy_of(self.op_BO) + (self.op_BO.exp() * inner_BO).sum(dim=1)

    def divergence(self, bias_O: Tensor) -> Tensor:
        """Compute the KL divergence from a reference policy, of whole actions `[B]` [nats], by the chain rule as in `entropy`.

        The reference draws legal operations from the softmax of a bias, then legal slots and parameters uniformly.

        Args:
            bias_O: logits of the reference's operations.
        """
        log_legal_BO = self._log_choices()
        reference_BO = masked_log_softmax(bias_O.expand_as(self.op_BO), self.op_BO > MASKED / 2)
        expected_B = (self.op_BO.exp() * (reference_BO - log_legal_BO)).sum(dim=1)
        return -expected_B - self.entropy()

    def _log_choices(self) -> Tensor:
        """Return the log of the number of legal slots and parameters of each operation `[B, O]`."""
        legal_BOS = self.slot_BOS > MASKED / 2
        log_BO = legal_BOS.sum(dim=2).clamp(min=1).to(self.op_BO).log() * _RELEVANT_OH[:, Head.SLOT]
        for op, head in self.parameters:
            values_B = self.legal_values_BV[:, self.places[head]].sum(dim=1)
            log_BO = log_BO + values_B.to(log_BO).log()[:, None] * torch.nn.functional.one_hot(torch.tensor(int(op)), len(Op))
        return log_BO
