"""One step of N hosts: the decision, and the transition that a buffer stores."""

# N hosts, H heads

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor

from esper.env.spec import Observation
from esper.lifecycle.stages import BoolArray, FloatArray
from esper.reward.signals import StepSignals

State = dict[str, Tensor]
"""Recurrent state of a controller: tensors `[N, ...]` by name; empty for a controller without memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The decision of a controller for N hosts."""

    action: npt.NDArray[np.int64]
    """[N, H], legal; heads without effect for the chosen operation are 0."""
    state: State
    """Recurrent state for the next step."""
    log_prob: FloatArray | None = None
    """[N], log-probability of the whole action; None for a controller without probabilities."""
    value: FloatArray | None = None
    """[N], expected discounted return [reward]; None for a controller without a critic."""
    head_log_prob: FloatArray | None = None
    """[N, H], each head's share of `log_prob`; None unless the controller learns head by head."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Transition:
    """One step of N hosts, as the controller saw it."""

    observation: Observation
    """Observation before the step."""
    decision: Decision
    """The controller's decision."""
    reward_N: FloatArray
    """Reward of the step [reward]."""
    terminated_N: BoolArray
    """True where the (sub-)episode ended with this step."""
    is_init_N: BoolArray
    """True where a (sub-)episode started with this step."""
    rolled_back_N: BoolArray
    """True where the governor rolled the host back in this step."""
    signals: StepSignals | None = None
    """Everything measured in the step; None in an environment that trains no hosts."""
    paid: Mapping[str, FloatArray] = field(default_factory=dict[str, FloatArray])
    """Terms of the reward by name `[N]`; empty in an environment that does not report them."""
    restored_N: FloatArray | None = None
    """Shaping potential at which each rolled-back host resumes, and which shaping therefore deducts a second time [reward]; 0 for
    other hosts; None in an environment without rollbacks."""
    cause_N: npt.NDArray[np.int64] | None = None
    """Cause of each rollback, 0 for none; None in an environment without a governor."""

    @property
    def earned_N(self) -> FloatArray:
        """Rewards `[N]` whose discounted sum is the return of a whole episode, rollbacks included; a learner of sub-episodes
        takes `reward_N`."""
        return self.reward_N if self.restored_N is None else self.reward_N + self.restored_N
