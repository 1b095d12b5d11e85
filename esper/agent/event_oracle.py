"""An oracle: a bandit that knows what happens to each host, and when."""

# N hosts, E kinds of events

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from esper.agent.bandit import Bandit, BanditConfig
from esper.agent.base import BoolArray, FloatArray
from esper.agent.scripted.rule import underway
from esper.buffer.base import Buffer
from esper.env.actions import EnvSpec, Observation


@dataclass(kw_only=True, slots=True)
class EventOracleConfig(BanditConfig):
    """A contextual bandit that observes only the timetable of a host. Whenever an event begins or ends, it plants the one seed
    with the highest predicted return, or none. It needs env.timetable=true, and shows how much it helps to know the events."""

    needs_timetable: ClassVar[bool] = True

    def build(self, spec: EnvSpec, *, seed: int, buffer: Buffer | None = None) -> "EventOracle":
        return EventOracle(self, spec)


class EventOracle(Bandit):
    """See `EventOracleConfig`."""

    repeats: ClassVar[bool] = True

    def __init__(self, config: EventOracleConfig, spec: EnvSpec) -> None:
        known = [rank for rank, name in enumerate(spec.feature_names) if name.startswith("event_")]
        if not known:
            raise ValueError("agent=event_oracle must know the events: add env.timetable=true")
        Bandit.__init__(self, config, spec, known)
        self._now = [rank for rank in known if not spec.feature_names[rank].startswith("event_ahead_")]
        """Columns of the strengths of events in the coming epoch, of `esper.env.foresight`."""

    def _due(self, observation: Observation, level_N: FloatArray, undecided_N: BoolArray) -> tuple[BoolArray, FloatArray]:
        """Return the hosts where other events are on than at the last decision; the level is their binary code."""
        on_NE = observation.features[:, self._now] > 0
        now_N = (on_NE @ np.exp2(np.arange(len(self._now)))).astype(np.float32)
        due_N = undecided_N & (np.nan_to_num(level_N) != now_N) & ~underway(observation, self.spec).any(axis=1)
        return due_N, np.where(due_N, now_N, level_N)
