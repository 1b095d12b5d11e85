"""Random search over schedules."""

# N hosts, S slots, K blueprints, H heads

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from esper.agent.base import AgentConfig, BoolArray, FloatArray, Learner, check_offered, check_slot, check_time
from esper.agent.scripted.schedule import ActionConfig, ActionList
from esper.buffer.base import Buffer
from esper.buffer.transition import Decision, State, Transition
from esper.env.actions import VALUES, EnvSpec, Head, Observation, Op, segments
from esper.ranges import check_ranges
from esper.seeding import stream

BIRTH = (Head.STYLE, Head.TEMPO, Head.ALPHA_TARGET)
"""Parameters that are drawn at random for a seed if the config leaves them free."""


@dataclass(kw_only=True, slots=True)
class BestOfRandomConfig(AgentConfig):
    """A random search that tries one schedule per update on the same hosts, and plays the best one so far by mean return. The
    first schedule only waits; the others germinate seeds at random times in random slots, which advance and are kept as soon as
    possible."""

    one_episode: ClassVar[bool] = True
    most: int = 0
    """Maximum number of seeds in a schedule, at least 0; 0 means one per slot in use. Higher: larger schedules are tried."""
    latest: int | None = None
    """Latest time to germinate, at least 0; null means the end of the episode [host epochs]. Lower: fewer schedules whose seeds
    come too late to be kept."""

    def __post_init__(self) -> None:
        AgentConfig.__post_init__(self)
        check_ranges("agent", self, {"[0, inf]": ["most", "latest"]})

    def check_run(self, *, blueprints: Sequence[str], steps: int, hosts: int, incubates: bool = True) -> None:
        if self.latest is not None:
            check_time(f"agent.latest={self.latest}", self.latest, steps)

    def build(self, spec: EnvSpec, *, seed: int, buffer: Buffer | None = None) -> "BestOfRandom":
        return BestOfRandom(self, spec, seed=seed)


class BestOfRandom(Learner):
    """See `BestOfRandomConfig`. Plays the next schedule between `begin` and `learn`, otherwise the best one so far.

    Root seed and number determine a schedule, so that a search resumes exactly.
    """

    def __init__(self, config: BestOfRandomConfig, spec: EnvSpec, *, seed: int) -> None:
        self.config, self.spec, self.seed = config, spec, seed
        self.tried = 0
        self.best_return: float | None = None
        self.best: list[ActionConfig] = []
        """Best schedule so far, as `ScheduleConfig.actions`."""
        self._player, self._trial = ActionList([], spec), list[ActionConfig]()
        self._return_N: FloatArray | None = None
        """Returns of the schedule being tried; None outside of an update."""
        self._undrawn = False
        """True until the first observation shows which slots and blueprints a schedule can use."""

    # ---- acting

    def start(self, num_hosts: int) -> State:
        """Return the initial state of the schedule that is played."""
        return self._player.start(num_hosts)

    def act(
        self,
        observation: Observation,
        state: State,
        *,
        is_init: BoolArray,
        uniform: npt.NDArray[np.float64],
        greedy: bool = False,
    ) -> Decision:
        """See `Controller`. Before the first try, it waits."""
        if self._undrawn:
            self._undrawn, self._trial = False, self._draw(observation) if self.tried else []
            self._player = ActionList(self._trial, self.spec)
            state = self._player.start(len(is_init))
        return self._player.act(observation, state, is_init=is_init, uniform=uniform, greedy=greedy)

    # ---- searching

    def begin(self, update: int) -> None:
        """Try another schedule in the next episode."""
        self._return_N, self._undrawn = np.zeros(self.spec.num_hosts, np.float32), True

    def observe(self, transition: Transition) -> None:
        """Add the rewards of a step to the returns."""
        assert self._return_N is not None, "call begin() first"
        self._return_N += transition.reward_N

    def learn(self, progress: float) -> dict[str, float]:
        """Keep the schedule just tried if its mean return is the highest; ties keep the earlier one."""
        assert self._return_N is not None, "call begin() first"
        mean = float(self._return_N.mean(dtype=np.float64))
        improved = bool(np.isfinite(mean)) and (self.best_return is None or mean > self.best_return)
        if improved:
            self.best_return, self.best = mean, self._trial
        self._play(self.best)
        self.tried, self._return_N = self.tried + 1, None
        seeds = sum(action.op == "germinate" for action in self._trial)
        best = float("nan") if self.best_return is None else self.best_return
        return {"search/best_return": best, "search/improved": float(improved), "search/seeds": float(seeds)}

    def summary(self) -> list[tuple[str, str]]:
        """Return the best schedule as it is typed on the command line."""
        return [("best schedule", f"agent.actions={self.overrides()}")]

    def overrides(self) -> str:
        """Return the best schedule as the value of `agent.actions` on the command line."""
        actions = [", ".join(f"{name}: {value}" for name, value in action.plain().items()) for action in self.best]
        return "[" + ", ".join(f"{{{action}}}" for action in actions) + "]"

    def _play(self, actions: list[ActionConfig]) -> None:
        self.best, self._player = actions, ActionList(actions, self.spec)

    def _draw(self, first: Observation) -> list[ActionConfig]:
        rng, spec = stream(self.seed, "schedule", self.tried), self.spec
        free_S = np.flatnonzero(first.legal_slots[:, Op.GERMINATE].any(axis=0))
        offered = {head: np.flatnonzero(first.legal_values[0, place]) for head, place in segments(spec.head_sizes).items()}
        most, last = self.config.most or len(free_S), spec.num_steps - 1 if self.config.latest is None else self.config.latest
        count = min(int(rng.integers(most)) + 1, len(free_S)) if len(free_S) else 0
        actions: list[ActionConfig] = []
        slots, times = rng.permutation(free_S)[:count].tolist(), np.sort(rng.integers(last + 1, size=count)).tolist()
        for slot, at in zip(slots, times, strict=True):
            blueprint = spec.blueprint_names[rng.choice(offered[Head.BLUEPRINT])]
            free = [head for head in BIRTH if len(offered[head]) > 1]
            others = {head.name.lower(): list(VALUES[head])[rng.choice(offered[head])] for head in free}
            actions.append(ActionConfig(at=at, op="germinate", slot=slot, blueprint=blueprint, **others))
            actions.append(ActionConfig(at=at, op="fossilize", slot=slot))
        return actions

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        best = [action.plain() for action in self.best]
        return {"tried": self.tried, "best_return": self.best_return, "best": best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned.

        Raises:
            ValueError: the best schedule cannot be played on these hosts.
        """
        best = [ActionConfig(**plain) for plain in state["best"]]
        for action in best:
            check_time(f"at={action.at} in the best schedule", action.at, self.spec.num_steps)
            if action.blueprint is not None:
                check_offered(f"blueprint={action.blueprint} in the best schedule", action.blueprint, self.spec.blueprint_names)
            check_slot(f"slot={action.slot} in the best schedule", action.slot, self.spec.num_slots)
        self.tried, self.best_return = state["tried"], state["best_return"]
        self._play(best)
