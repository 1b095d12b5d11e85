"""What a rollout teaches, step by step: advantages, values, and what seeds turned out to contribute."""

# T steps, N hosts, S slots

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from esper.agent.base import seen_as_one
from esper.buffer.rollout import Rollout, folded
from esper.env.actions import Head, Op
from esper.lifecycle.stages import LIVE, TAKES_PART, Stage

CONTRIBUTION = "contribution"
UNITS = seen_as_one(CONTRIBUTION) / 10
"""Contributions are learned in units of 10 pp, of which the unit they are seen in has so many: their squares are of order one."""
STAGES = {stage: f"stage_{stage.name.lower()}" for stage in Stage}
NEEDED = (*STAGES.values(), "alpha", CONTRIBUTION, f"{CONTRIBUTION}_measured")
"""Slot features that `contributions` reads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Targets:
    """What a rollout teaches."""

    advantage_TN: Tensor
    """Normalised over the steps at which there was a choice."""
    value_TN: Tensor
    """Lambda returns in the critic's scale."""
    explained_variance: float
    """See `UpdateStats`."""
    free: Sequence[tuple[Op, Head]] | None = None
    """Between the values of which heads there is a choice anywhere in the rollout; None where nobody has looked."""
    contributions: tuple[Tensor, Tensor] | None = None
    """What each seed was found to contribute after each step [10 pp], and where that was measured, `[T, N, S]`; None where nobody
    predicts it."""

    def folded(self, chunk: int) -> "Targets":
        """The same with chunks for rows, as of `Rollout.folded`."""
        found = self.contributions
        return replace(
            self,
            advantage_TN=folded(self.advantage_TN, chunk),
            value_TN=folded(self.value_TN, chunk),
            contributions=(folded(found[0], chunk), folded(found[1], chunk)) if found else None,
        )


def contributions(rollout: Rollout, slot_feature_names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """What each live seed was found to contribute after each step, which the next observation shows.

    It counts where a seed was alive before the step, and in the forward pass after it: only then was it measured anew. It does
    not where an episode ended in between, nor after the last step, whose outcome the rollout does not hold.

    Returns:
        Contributions `[T, N, S]` [10 pp], and where they were measured.
    """
    column = {name: slot_feature_names.index(name) for name in NEEDED}
    seen = rollout.seen.slots
    before, after = seen[:-1], seen[1:]
    alive = before[..., [column[STAGES[stage]] for stage in LIVE]].any(dim=-1)
    takes_part = after[..., [column[STAGES[stage]] for stage in TAKES_PART]].any(dim=-1)
    fresh = takes_part & (after[..., column["alpha"]] > 0) & after[..., column[f"{CONTRIBUTION}_measured"]].bool()
    goes_on = ~(rollout.terminated_TN | rollout.truncated_TN)[:-1, :, None]
    nothing = torch.zeros_like(seen[:1, ..., 0])
    measured = torch.cat([alive & fresh & goes_on, nothing.bool()])
    return torch.cat([UNITS * after[..., column[CONTRIBUTION]], nothing]), measured
