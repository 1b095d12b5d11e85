"""A controller that grows by the clock alone."""

# N hosts, S slots, K blueprints, H heads

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from esper.agent.base import AgentConfig, IntArray, check_offered, check_time
from esper.agent.scripted.base import Scripted, compose, most_urgent, step_number
from esper.buffer.base import Buffer
from esper.env.actions import EnvSpec, Head, Observation, Op, segments


@dataclass(kw_only=True, slots=True)
class PeriodicConfig(AgentConfig):
    """Plants a seed in the next free slot every so many host epochs; seeds are moved on and kept as soon as that is legal."""

    standalone: ClassVar[bool] = True
    first: int = 0
    """Plants its first seed after this many host epochs, at least 0."""
    every: int = 5
    """Host epochs from one planting to the next, at least 1; one that finds no free slot is left out. Higher plants fewer."""
    blueprint: str | None = None
    """What it plants, one of the blueprints that are offered; null takes them in turns."""

    def __post_init__(self) -> None:
        AgentConfig.__post_init__(self)
        if self.first < 0:
            raise ValueError(f"agent.first must be at least 0, got {self.first}: it counts host epochs from the start")
        if self.every < 1:
            raise ValueError(f"agent.every must be at least 1, got {self.every}: 1 plants in every host epoch")

    def check_run(self, *, blueprints: Sequence[str], steps: int, hosts: int, incubates: bool = True) -> None:
        check_time(f"agent.first={self.first}", self.first, steps)
        if self.blueprint is not None:
            check_offered(f"agent.blueprint={self.blueprint}", self.blueprint, blueprints)

    def build(self, spec: EnvSpec, *, seed: int, buffer: Buffer | None = None) -> "Periodic":
        """The controller.

        Raises:
            ValueError: there is no such blueprint, or the first time never comes.
        """
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
        may_NK = observation.legal_values[:, segments(self.spec.head_sizes)[Head.BLUEPRINT]] & self.planted_K
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
