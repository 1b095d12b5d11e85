"""A greedy baseline: it plants the seed with the largest growth potential, and keeps seeds with a significant contribution."""

# N hosts, S slots, K blueprints, H heads

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from esper.agent.base import AgentConfig, check_time
from esper.agent.reading import offered, potentials, step_number, worthy
from esper.agent.scripted.base import Scripted, UniformArray, compose, most_urgent
from esper.buffer.base import Buffer
from esper.buffer.transition import Decision, State
from esper.env.actions import Head, Op
from esper.env.spec import EnvSpec, Observation
from esper.lifecycle.stages import BoolArray, FloatArray, IntArray
from esper.ranges import check_ranges


@dataclass(kw_only=True, slots=True)
class GreedyPotentialConfig(AgentConfig):
    """A controller that plants the seed with the largest growth potential, and keeps it if its contribution exceeds its error."""

    seeded: ClassVar[bool] = False
    standalone: ClassVar[bool] = True
    needs_hosts: ClassVar[bool] = True
    needs_potential: ClassVar[bool] = True
    at: int = 3
    """Earliest time to plant, at least 1 [host epochs]: potentials at the start of an episode are measured in another way, and
    nearly always largest in the last slot. Higher: more reliable potentials, less time for the seed."""
    threshold: float = 0.03
    """Growth potential above which a seed is planted, at least 0 [nat per unit of learning rate]. Higher: fewer seeds."""
    per_parameter: bool = False
    """If true, rank seeds by potential per parameter, which prefers small seeds. The threshold applies to whole seeds either
    way."""
    errors: float = 1.0
    """Standard errors by which a contribution must exceed 0 for its seed to be kept instead of pruned, at least 0. Higher: keeps
    fewer."""

    def __post_init__(self) -> None:
        AgentConfig.__post_init__(self)
        check_ranges("agent", self, {"[1, inf]": ["at"], "[0, inf)": ["threshold", "errors"]})

    def check_run(self, *, blueprints: Sequence[str], steps: int, hosts: int, incubates: bool = True) -> None:
        check_time(f"agent.at={self.at}", self.at, steps)

    def build(self, spec: EnvSpec, *, seed: int, buffer: Buffer | None = None) -> "GreedyPotential":
        return GreedyPotential(self, spec)


class GreedyPotential(Scripted):
    """See `GreedyPotentialConfig`."""

    def __init__(self, config: GreedyPotentialConfig, spec: EnvSpec) -> None:
        self.config, self.spec = config, spec
        self.params_SK = np.array(spec.seed_params, dtype=np.float64).T

    def start(self, num_hosts: int) -> State:
        """Return the blueprints that were pruned from each slot `[N, S, K]`: they are not tried again."""
        return {"failed": torch.zeros(num_hosts, self.spec.num_slots, len(self.spec.blueprint_names), dtype=torch.bool)}

    def decide(self, observation: Observation, state: State, uniform_NH: UniformArray) -> tuple[IntArray, State]:
        step_N = step_number(observation, self.spec)
        failed_NSK = state["failed"].numpy() & (step_N > 0)[:, None, None]
        score_NSK, ripe_NS = self._scores(observation, failed_NSK, step_N), observation.legal_slots[:, Op.FOSSILIZE]
        worthy_NS, score_NS = worthy(observation, self.spec, self.config.errors), score_NSK.max(axis=2)
        alike_NS = np.zeros_like(score_NS)
        wanted = {
            Op.FOSSILIZE: (worthy_NS, alike_NS),
            Op.PRUNE: (ripe_NS & ~worthy_NS, alike_NS),
            Op.ADVANCE: (np.ones_like(ripe_NS), alike_NS),
            Op.GERMINATE: (np.isfinite(score_NS), score_NS),
        }
        op_N, slot_N = most_urgent(observation, wanted)
        blueprint_N = score_NSK[np.arange(len(slot_N)), slot_N].argmax(axis=1)
        action_NH = compose(observation, self.spec, op_N, slot_N, blueprint=blueprint_N)
        return action_NH, self._after(observation, failed_NSK, action_NH)

    def revise(self, observation: Observation, before: State, decision: Decision, taken_NH: IntArray) -> State:
        """Remember the blueprints that were pruned instead of its own; see `Revisable`."""
        earlier_NSK = before["failed"].numpy() & (step_number(observation, self.spec) > 0)[:, None, None]
        return self._after(observation, earlier_NSK, taken_NH)

    def _after(self, observation: Observation, failed_NSK: BoolArray, action_NH: IntArray) -> State:
        """Return the blueprints that have failed after these actions."""
        pruned_NS = np.arange(self.spec.num_slots) == action_NH[:, Head.SLOT, None]
        pruned_NS &= (action_NH[:, Head.OP] == Op.PRUNE)[:, None]
        blueprint_NSK = observation.blueprints[:, :, None] == np.arange(failed_NSK.shape[2])
        return {"failed": torch.from_numpy(failed_NSK | (pruned_NS[:, :, None] & blueprint_NSK))}

    def _scores(self, observation: Observation, failed_NSK: BoolArray, step_N: IntArray) -> FloatArray:
        """Return the score of each slot and blueprint `[N, S, K]`, -inf where planting is illegal or the potential too small."""
        potential_NSK = potentials(observation, self.spec)
        offered_NK = offered(observation, self.spec)
        may_NSK = observation.legal_slots[:, Op.GERMINATE, :, None] & offered_NK[:, None] & ~failed_NSK
        may_NSK &= (potential_NSK > self.config.threshold) & (step_N >= self.config.at)[:, None, None]
        score_NSK = potential_NSK / np.maximum(self.params_SK, 1.0) if self.config.per_parameter else potential_NSK
        return np.where(may_NSK, score_NSK, -np.inf).astype(np.float32)
