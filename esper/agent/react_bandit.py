"""The hand-designed baseline for learned policies: a rule decides when to plant a seed, regressions decide where and which."""

# N hosts

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from esper.agent.bandit import Bandit, BanditConfig
from esper.agent.reading import accuracy, underway
from esper.buffer.base import Buffer
from esper.env.spec import EnvSpec, Observation
from esper.lifecycle.stages import BoolArray, FloatArray
from esper.ranges import check_ranges


@dataclass(kw_only=True, slots=True)
class ReactBanditConfig(BanditConfig):
    """A contextual bandit that looks at a host whenever its accuracy has fallen, and plants the one seed with the highest
    predicted return, or none."""

    needs_hosts: ClassVar[bool] = True
    drop: float = 4.0
    """Fall in accuracy that triggers a decision, from the highest value since the last decision, > 0 [pp]. Higher: later
    reactions, fewer false alarms."""

    def __post_init__(self) -> None:
        BanditConfig.__post_init__(self)
        check_ranges("agent", self, {"(0, inf)": ["drop"]})

    def build(self, spec: EnvSpec, *, seed: int, buffer: Buffer | None = None) -> "ReactBandit":
        return ReactBandit(self, spec)


class ReactBandit(Bandit):
    """See `ReactBanditConfig`."""

    repeats: ClassVar[bool] = True

    def __init__(self, config: ReactBanditConfig, spec: EnvSpec) -> None:
        Bandit.__init__(self, config, spec)
        self.drop = config.drop

    def _due(self, observation: Observation, level_N: FloatArray, undecided_N: BoolArray) -> tuple[BoolArray, FloatArray]:
        """Return the hosts whose accuracy has fallen; the level is its highest value since the last decision [pp]."""
        now_N = accuracy(observation, self.spec)
        level_N = np.fmax(level_N, now_N)
        due_N = undecided_N & (level_N - now_N >= self.drop) & ~underway(observation, self.spec).any(axis=1)
        return due_N, np.where(due_N, now_N, level_N).astype(np.float32)
