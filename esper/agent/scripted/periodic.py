"""A baseline that grows at fixed intervals."""

# N hosts, S slots, K blueprints, H heads

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from esper.agent.base import AgentConfig, check_offered, check_time
from esper.agent.reading import offered, step_number
from esper.agent.scripted.base import Scripted, compose, most_urgent
from esper.buffer.base import Buffer
from esper.env.actions import Op
from esper.env.spec import EnvSpec, Observation
from esper.lifecycle.stages import IntArray
from esper.ranges import check_ranges


@dataclass(kw_only=True, slots=True)
class PeriodicConfig(AgentConfig):
    """A controller that plants a seed in the next free slot at fixed intervals; seeds advance and are kept as soon as
    possible."""

    seeded: ClassVar[bool] = False
    standalone: ClassVar[bool] = True
    first: int = 0
    """Time of the first planting, at least 0 [host epochs]."""
    every: int = 5
    """Interval between plantings, at least 1 [host epochs]; skipped if no slot is free. Higher: fewer seeds."""
    blueprint: str | None = None
    """Name of the blueprint to plant; null rotates through all that are available."""

    def __post_init__(self) -> None:
        AgentConfig.__post_init__(self)
        check_ranges("agent", self, {"[0, inf]": ["first"], "[1, inf]": ["every"]})

    def check_run(self, *, blueprints: Sequence[str], steps: int, hosts: int, incubates: bool = True) -> None:
        check_time(f"agent.first={self.first}", self.first, steps)
        if self.blueprint is not None:
            check_offered(f"agent.blueprint={self.blueprint}", self.blueprint, blueprints)

    def build(self, spec: EnvSpec, *, seed: int, buffer: Buffer | None = None) -> "Periodic":
        self.check_run(blueprints=spec.blueprint_names, steps=spec.num_steps, hosts=spec.num_hosts)
        return Periodic(self, spec)


class Periodic(Scripted):
    """See `PeriodicConfig`."""

    def __init__(self, config: PeriodicConfig, spec: EnvSpec) -> None:
        Scripted.__init__(self, spec)
        self.config = config
        named = config.blueprint
        self.planted_K = np.array([named is None or name == named for name in spec.blueprint_names])

    def choose(self, observation: Observation, uniform_NH: npt.NDArray[np.float64]) -> IntArray:
        since_N = step_number(observation, self.spec) - self.config.first
        may_NK = offered(observation, self.spec) & self.planted_K
        count_N = may_NK.sum(axis=1)
        due_N = (since_N >= 0) & (since_N % self.config.every == 0) & (count_N > 0)
        alike_NS = np.zeros((len(since_N), self.spec.num_slots))
        wanted = {Op.GERMINATE: due_N[:, None], Op.FOSSILIZE: np.True_, Op.ADVANCE: np.True_}
        op_N, slot_N = most_urgent(
            observation, {op: (np.broadcast_to(where, alike_NS.shape), alike_NS) for op, where in wanted.items()}
        )
        rank_N = since_N // self.config.every % np.maximum(count_N, 1)
        blueprint_N = (may_NK.cumsum(axis=1) > rank_N[:, None]).argmax(axis=1)
        return compose(observation, self.spec, op_N, slot_N, blueprint=blueprint_N)
