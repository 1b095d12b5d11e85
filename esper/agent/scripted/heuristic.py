"""A hand-written controller, to be beaten: it grows when the host stops improving, and keeps what has shown its worth."""

# N hosts, S slots, O operations, H heads, K blueprints

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from esper.agent.base import AgentConfig, BoolArray, FloatArray, IntArray, seen_as_one
from esper.agent.scripted.base import compose, features, most_urgent, slot_features, step_number
from esper.buffer.base import Buffer
from esper.buffer.transition import Decision, State
from esper.env.actions import EnvSpec, Head, Observation, Op, segments

LOOKBACK = 3
"""Epochs over which a plateau is looked for: the oldest accuracy that is observed."""
POINTS = seen_as_one("contribution")
"""Percentage points that a contribution of 1 stands for in an observation."""
ACCURACY_POINTS = seen_as_one("accuracy")
"""The same of an accuracy."""
assert seen_as_one(f"accuracy_{LOOKBACK}_ago") == ACCURACY_POINTS


@dataclass(kw_only=True, slots=True)
class HeuristicConfig(AgentConfig):
    """Looks after every seed, the most urgent thing first: prune, fossilise, advance, germinate, wait."""

    standalone: ClassVar[bool] = True
    patience: int = 2
    """Germinates after this many host epochs even without a plateau, at least 0. Higher leaves hosts alone for longer."""
    plateau: float = 0.5
    """Germinates earlier where accuracy rose by less than this in the last three epochs [pp], at least 0. Higher acts sooner."""
    threshold: float = 0.5
    """Seeds whose contribution is above this are kept, and those below its negative are pruned [pp], at least 0. In the last step
    every seed that helps at all is kept. Higher decides later."""

    def __post_init__(self) -> None:
        AgentConfig.__post_init__(self)
        for name in ("patience", "plateau", "threshold"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"agent.{name} must be finite and at least 0, got {getattr(self, name)}")

    def build(self, spec: EnvSpec, *, seed: int, buffer: Buffer | None = None) -> "Heuristic":
        return Heuristic(self, spec)


class Heuristic:
    """See `HeuristicConfig`. Reads the observation only, and draws nothing."""

    def __init__(self, config: HeuristicConfig, spec: EnvSpec) -> None:
        self.config, self.spec = config, spec

    def start(self, num_hosts: int) -> State:
        """How many seeds each host was given, from which the next blueprint follows."""
        return {"germinated": torch.zeros(num_hosts, dtype=torch.int64)}

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
        # A host that was rolled back starts anew as well, but goes on with the next blueprint instead of the one that broke it.
        germinated_N = np.where(step_N == 0, 0, state["germinated"].numpy())
        op_N, slot_N = self._most_urgent(observation, step_N)
        germinated_N = germinated_N + (op_N == Op.GERMINATE)
        blueprint_N = self._rotate(observation, germinated_N - 1)
        action_NH = compose(observation, self.spec, op_N, slot_N, blueprint=blueprint_N)
        return Decision(action=action_NH, state={"germinated": torch.from_numpy(germinated_N)})

    def _most_urgent(self, observation: Observation, step_N: IntArray) -> tuple[IntArray, IntArray]:
        """The operation of each host `[N]`, and its slot `[N]`."""
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
        """`[N]`: is it time for another seed?"""
        before_N = features(observation, self.spec, f"accuracy_{LOOKBACK}_ago")
        known_N = features(observation, self.spec, f"accuracy_{LOOKBACK}_ago_known") > 0
        gained_N = ACCURACY_POINTS * (features(observation, self.spec, "accuracy") - before_N)
        return (step_N >= self.config.patience) | (known_N & (gained_N < self.config.plateau))

    def _rotate(self, observation: Observation, turn_N: IntArray) -> IntArray:
        """The blueprint `[N]` whose turn it is among the legal ones."""
        legal_NK = observation.legal_values[:, segments(self.spec.head_sizes)[Head.BLUEPRINT]]
        rank_N = turn_N % legal_NK.sum(axis=1)
        return (legal_NK.cumsum(axis=1) > rank_N[:, None]).argmax(axis=1)
