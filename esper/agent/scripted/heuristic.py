"""A hand-written baseline: it grows from a fixed time on, or when a host stops improving, and keeps seeds that contribute."""

# N hosts, S slots, O operations, H heads, K blueprints

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from esper.agent.base import AgentConfig
from esper.agent.reading import ACCURACY_POINTS, POINTS, feature_scale, features, offered, slot_features, step_number
from esper.agent.scripted.base import Scripted, UniformArray, compose, most_urgent
from esper.buffer.base import Buffer
from esper.buffer.transition import Decision, State
from esper.env.actions import Head, Op
from esper.env.spec import EnvSpec, Observation
from esper.lifecycle.stages import BoolArray, FloatArray, IntArray
from esper.ranges import check_ranges

LOOKBACK = 3
"""Age of the oldest observed accuracy, over which a plateau is detected [host epochs]."""
PLATEAU = 0.5
"""Default of `plateau`, which has no effect with the default of `patience`."""
assert feature_scale(f"accuracy_{LOOKBACK}_ago") == ACCURACY_POINTS


@dataclass(kw_only=True, slots=True)
class HeuristicConfig(AgentConfig):
    """A controller that takes the first action that applies: prune, fossilize, advance, germinate, wait."""

    seeded: ClassVar[bool] = False
    standalone: ClassVar[bool] = True
    needs_hosts: ClassVar[bool] = True
    patience: int = 2
    """Time after which seeds germinate even without a plateau, at least 0 [host epochs]. Higher: later growth."""
    plateau: float = PLATEAU
    """Gain in accuracy over the last three host epochs below which a seed germinates earlier, at least 0 [pp]; no effect unless
    `patience` is above 3. Higher: sooner."""
    threshold: float = 0.5
    """A seed is kept if its contribution is above this value, and pruned if it is below minus this value; at least 0 [pp]. In the
    last step every seed with a positive contribution is kept. Higher: later decisions."""

    def __post_init__(self) -> None:
        AgentConfig.__post_init__(self)
        check_ranges("agent", self, {"[0, inf)": ["patience", "plateau", "threshold"]})
        if self.patience <= LOOKBACK and self.plateau != PLATEAU:
            raise ValueError(
                f"agent.plateau={self.plateau:g} has no effect with agent.patience={self.patience}, since no plateau is "
                f"known before epoch {LOOKBACK}: raise agent.patience above {LOOKBACK}, or leave agent.plateau out"
            )

    def build(self, spec: EnvSpec, *, seed: int, buffer: Buffer | None = None) -> "Heuristic":
        return Heuristic(self, spec)


class Heuristic(Scripted):
    """See `HeuristicConfig`."""

    def __init__(self, config: HeuristicConfig, spec: EnvSpec) -> None:
        self.config, self.spec = config, spec

    def start(self, num_hosts: int) -> State:
        """Return the number of seeds germinated in each host `[N]`, which gives the next blueprint."""
        return {"germinated": torch.zeros(num_hosts, dtype=torch.int64)}

    def decide(self, observation: Observation, state: State, uniform_NH: UniformArray) -> tuple[IntArray, State]:
        step_N = step_number(observation, self.spec)
        # A rolled-back host keeps its count: it plants the next blueprint, not the one that broke it.
        germinated_N = np.where(step_N == 0, 0, state["germinated"].numpy())
        op_N, slot_N = self._most_urgent(observation, step_N)
        germinated_N = germinated_N + (op_N == Op.GERMINATE)
        blueprint_N = self._rotate(observation, germinated_N - 1)
        action_NH = compose(observation, self.spec, op_N, slot_N, blueprint=blueprint_N)
        return action_NH, {"germinated": torch.from_numpy(germinated_N)}

    def revise(self, observation: Observation, before: State, decision: Decision, taken_NH: IntArray) -> State:
        """Count the seeds that were planted instead of its own; see `Revisable`."""
        planted_N, wanted_N = (action_NH[:, Head.OP] == Op.GERMINATE for action_NH in (taken_NH, decision.action))
        return {"germinated": decision.state["germinated"] + torch.from_numpy(planted_N * 1 - wanted_N * 1)}

    def _most_urgent(self, observation: Observation, step_N: IntArray) -> tuple[IntArray, IntArray]:
        """Return operation and slot of each host `[N]`."""
        worth_NS = POINTS * slot_features(observation, self.spec, "contribution")
        known_NS = slot_features(observation, self.spec, "contribution_measured") > 0
        keep_above_N = np.where(step_N >= self.spec.num_steps - 1, 0.0, self.config.threshold)
        wanted: dict[Op, tuple[BoolArray, FloatArray]] = {
            Op.PRUNE: (known_NS & (worth_NS < -self.config.threshold), -worth_NS),
            Op.FOSSILIZE: (known_NS & (worth_NS > keep_above_N[:, None]), worth_NS),
            Op.ADVANCE: (np.ones_like(known_NS), np.zeros_like(worth_NS)),
            Op.GERMINATE: (self._stalls(observation, step_N)[:, None], np.zeros_like(worth_NS)),
        }
        return most_urgent(observation, wanted)

    def _stalls(self, observation: Observation, step_N: IntArray) -> BoolArray:
        """Return which hosts need another seed `[N]`."""
        before_N = features(observation, self.spec, f"accuracy_{LOOKBACK}_ago")
        known_N = features(observation, self.spec, f"accuracy_{LOOKBACK}_ago_known") > 0
        gained_N = ACCURACY_POINTS * (features(observation, self.spec, "accuracy") - before_N)
        return (step_N >= self.config.patience) | (known_N & (gained_N < self.config.plateau))

    def _rotate(self, observation: Observation, turn_N: IntArray) -> IntArray:
        """Return the next legal blueprint in rotation `[N]`."""
        legal_NK = offered(observation, self.spec)
        rank_N = turn_N % legal_NK.sum(axis=1)
        return (legal_NK.cumsum(axis=1) > rank_N[:, None]).argmax(axis=1)
