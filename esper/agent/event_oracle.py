"""An oracle: a bandit that knows what happens to each host, and when."""

# N hosts, F features of the timetable, D epochs of delay

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from esper.agent.bandit import Bandit, BanditConfig
from esper.agent.reading import step_number, underway
from esper.buffer.base import Buffer
from esper.buffer.transition import Decision, State
from esper.env.foresight import MOST_MOVES
from esper.env.spec import EnvSpec, Observation
from esper.lifecycle.stages import BoolArray, FloatArray
from esper.ranges import check_ranges
from esper.task.events import CLASSES


@dataclass(kw_only=True, slots=True)
class EventOracleConfig(BanditConfig):
    """A contextual bandit that observes only the timetable of a host. Whenever an event begins or ends, it plants the one seed
    with the highest predicted return, or none. It needs env.timetable=true, and shows how much it helps to know the events."""

    needs_hosts: ClassVar[bool] = True
    needs_timetable: ClassVar[bool] = True
    delay: int = 0
    """Delay with which it reads the timetable, at least 0 [host epochs]. 0: it acts before the first epoch of an event; 1: after
    that epoch, as early as other controllers can notice the event."""
    ahead: bool = True
    """If true, the bandit observes the rest of the timetable: how long current events last, and which follow. If false, only
    the events in force in the coming epoch: with delay=1, that is no more than other controllers could infer from the data."""

    def __post_init__(self) -> None:
        BanditConfig.__post_init__(self)
        check_ranges("agent", self, {"[0, inf]": ["delay"]})

    def check_run(self, *, blueprints: Sequence[str], steps: int, hosts: int, incubates: bool = True) -> None:
        if self.delay >= steps:
            raise ValueError(f"agent.delay={self.delay} is as long as an episode or longer: choose a delay below steps={steps}")

    def build(self, spec: EnvSpec, *, seed: int, buffer: Buffer | None = None) -> "EventOracle":
        return EventOracle(self, spec)


class EventOracle(Bandit):
    """See `EventOracleConfig`."""

    repeats: ClassVar[bool] = True

    def __init__(self, config: EventOracleConfig, spec: EnvSpec) -> None:
        told = [name for name in spec.feature_names if config.ahead or not name.startswith("event_ahead_")]
        known = [rank for rank, name in enumerate(spec.feature_names) if name.startswith("event_") and name in told]
        if not known:
            raise ValueError("agent=event_oracle needs the timetable of events: add env.timetable=true")
        Bandit.__init__(self, config, spec, known)
        self.delay, self._known = config.delay, known
        self._now = [rank for rank in known if not spec.feature_names[rank].startswith("event_ahead_")]
        """Columns of the strengths of events in the coming epoch, of `esper.env.foresight`."""
        counted = [MOST_MOVES + 1 if spec.feature_names[rank].removeprefix("event_") in CLASSES else 2 for rank in self._now]
        self._place_E = np.cumprod([1, *counted[:-1]])
        """Place value of each kind in the code of the events in force."""

    def start(self, num_hosts: int) -> State:
        """Return the state of a bandit, and what the timetable said in the last epochs, the oldest first `[N, D, F]`."""
        return Bandit.start(self, num_hosts) | {"told": torch.zeros(num_hosts, self.delay, len(self._known))}

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
        new_N = step_number(observation, self.spec) == 0
        earlier_NDF = np.where(new_N[:, None, None], np.float32(0), state["told"].numpy())
        told_NDF = np.concatenate([earlier_NDF, observation.features[:, None, self._known]], axis=1)
        features = observation.features.copy()
        features[:, self._known] = told_NDF[:, 0]
        late = replace(observation, features=features)
        decision = Bandit.act(self, late, state, is_init=is_init, uniform=uniform, greedy=greedy)
        return replace(decision, state=decision.state | {"told": torch.from_numpy(told_NDF[:, 1:])})

    def _due(self, observation: Observation, level_N: FloatArray, undecided_N: BoolArray) -> tuple[BoolArray, FloatArray]:
        """Return the hosts where other events are in force than at the last decision; the level encodes them."""
        on_NE = np.ceil(observation.features[:, self._now])
        now_N = (on_NE @ self._place_E).astype(np.float32)
        due_N = undecided_N & (np.nan_to_num(level_N) != now_N) & ~underway(observation, self.spec).any(axis=1)
        return due_N, np.where(due_N, now_N, level_N)
