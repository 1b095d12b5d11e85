"""A controller without learning that plants where the growth potential is largest, and keeps what has shown its worth."""

# N hosts, S slots, K blueprints, H heads

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from esper.agent.base import AgentConfig, BoolArray, FloatArray, IntArray, seen_as_one
from esper.agent.scripted.base import compose, most_urgent, slot_features, step_number
from esper.agent.scripted.heuristic import POINTS
from esper.buffer.base import Buffer
from esper.buffer.transition import Decision, State
from esper.env.actions import EnvSpec, Head, Observation, Op, segments
from esper.env.observation import exp_potential

ERROR_POINTS = seen_as_one("contribution_error")
"""Percentage points that a contribution's error of 1 stands for in an observation."""


@dataclass(kw_only=True, slots=True)
class GreedyPotentialConfig(AgentConfig):
    """Plants the seed of the largest growth potential, lets it advance, and keeps it if its contribution is above its error."""

    standalone: ClassVar[bool] = True
    at: int = 3
    """Plants after this many host epochs at the earliest, at least 1: before any training the last slot has always the
    largest potential. Higher: clearer what the host lacks, and less time for the seed."""
    threshold: float = 0.03
    """Plants only what has a larger growth potential [nats per unit of learning rate], at least 0. Higher leaves more hosts as
    they are."""
    per_parameter: bool = False
    """Choose by the potential of a parameter instead of that of the whole seed: prefers small seeds. The threshold stays one of
    whole seeds."""
    errors: float = 1.0
    """Keeps a seed whose contribution is above this many of its standard errors, at least 0, and prunes it otherwise. Higher
    keeps fewer."""

    def __post_init__(self) -> None:
        AgentConfig.__post_init__(self)
        if self.at < 1:
            raise ValueError(f"agent.at must be at least 1, got {self.at}: before any training potential does not rank slots")
        for name in ("threshold", "errors"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"agent.{name} must be finite and at least 0, got {getattr(self, name)}")

    def build(self, spec: EnvSpec, *, seed: int, buffer: Buffer | None = None) -> "GreedyPotential":
        return GreedyPotential(self, spec)


class GreedyPotential:
    """See `GreedyPotentialConfig`. Reads the observation only, and draws nothing."""

    def __init__(self, config: GreedyPotentialConfig, spec: EnvSpec) -> None:
        self.config, self.spec = config, spec
        self.params_SK = np.array(spec.seed_params, dtype=np.float64).T

    def start(self, num_hosts: int) -> State:
        """Which blueprints each slot has tried in vain `[N, S, K]`: they are not tried again."""
        return {"failed": torch.zeros(num_hosts, self.spec.num_slots, len(self.spec.blueprint_names), dtype=torch.bool)}

    def act(
        self,
        observation: Observation,
        state: State,
        *,
        is_init: BoolArray,
        uniform: npt.NDArray[np.float64],
        greedy: bool = False,
    ) -> Decision:
        """See `Controller`."""
        step_N = step_number(observation, self.spec)
        failed_NSK = state["failed"].numpy() & (step_N > 0)[:, None, None]
        score_NSK, ripe_NS = self._scores(observation, failed_NSK, step_N), observation.legal_slots[:, Op.FOSSILIZE]
        worthy_NS, score_NS = self._worthy(observation), score_NSK.max(axis=2)
        alike_NS = np.zeros_like(score_NS)
        wanted = {
            Op.FOSSILIZE: (worthy_NS, alike_NS),
            Op.PRUNE: (ripe_NS & ~worthy_NS, alike_NS),
            Op.ADVANCE: (np.ones_like(ripe_NS), alike_NS),
            Op.GERMINATE: (np.isfinite(score_NS), score_NS),
        }
        op_N, slot_N = most_urgent(observation, wanted)
        blueprint_N = score_NSK[np.arange(len(slot_N)), slot_N].argmax(axis=1)
        pruned_NS = np.eye(self.spec.num_slots, dtype=np.bool_)[slot_N] & (op_N == Op.PRUNE)[:, None]
        failed_NSK |= pruned_NS[:, :, None] & (observation.blueprints[:, :, None] == np.arange(failed_NSK.shape[2]))
        action_NH = compose(observation, self.spec, op_N, slot_N, blueprint=blueprint_N)
        return Decision(action=action_NH, state={"failed": torch.from_numpy(failed_NSK)})

    def _scores(self, observation: Observation, failed_NSK: BoolArray, step_N: IntArray) -> FloatArray:
        """The score of each slot and blueprint `[N, S, K]`, -inf where it may not be planted or has not enough."""
        names = [f"potential_of_{name}" for name in self.spec.blueprint_names]
        potential_NSK = exp_potential(np.stack([slot_features(observation, self.spec, name) for name in names], axis=2))
        offered_NK = observation.legal_values[:, segments(self.spec.head_sizes)[Head.BLUEPRINT]]
        may_NSK = observation.legal_slots[:, Op.GERMINATE, :, None] & offered_NK[:, None] & ~failed_NSK
        may_NSK &= (potential_NSK > self.config.threshold) & (step_N >= self.config.at)[:, None, None]
        score_NSK = potential_NSK / self.params_SK if self.config.per_parameter else potential_NSK
        return np.where(may_NSK, score_NSK, -np.inf).astype(np.float32)

    def _worthy(self, observation: Observation) -> BoolArray:
        """`[N, S]`: does the seed contribute more than chance may have given it?"""
        worth_NS, error_NS, known_NS = (
            slot_features(observation, self.spec, name)
            for name in ("contribution", "contribution_error", "contribution_measured")
        )
        return (known_NS > 0) & (POINTS * worth_NS > self.config.errors * ERROR_POINTS * error_NS)
