"""What every controller is: something that looks at an observation and decides, for all hosts at once."""

# N hosts, H heads

import warnings
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from esper.env.actions import EnvSpec, HeadsConfig, Observation

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
State = dict[str, Tensor]
"""What a controller remembers from step to step: tensors `[N, ...]` by name; empty where it remembers nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What a controller decided for N hosts."""

    action: IntArray
    """[N, H], legal; heads that do not matter for the chosen operation are 0."""
    state: State
    """What it remembers for the next step."""
    log_prob: FloatArray | None = None
    """[N], natural logarithm of the probability of the whole action; None for a controller that does not learn."""
    value: FloatArray | None = None
    """[N], expected discounted return [reward]; None for a controller that does not learn."""


class Controller(Protocol):
    """Decides what is done to every host."""

    def start(self, num_hosts: int) -> State:
        """What is remembered before the first step."""
        ...

    def act(
        self,
        observation: Observation,
        state: State,
        *,
        is_init: BoolArray,
        uniform: npt.NDArray[np.float64],
        greedy: bool = False,
    ) -> Decision:
        """Decides for N hosts. All chance comes from `uniform`: what host i does depends on row i of the arguments only.

        Args:
            is_init: `[N]`, does this step start a (sub-)episode?
            uniform: `[N, H]` independent numbers in [0, 1), one a head.
            greedy: take the most probable values instead of drawn ones.
        """
        ...


@dataclass(kw_only=True, slots=True)
class AgentConfig:
    """A controller."""

    gamma: float = 1.0
    """Discount per step, in [0, 1]. Higher looks further ahead, and the returns get noisier. The reward's shaping uses it too."""
    heads: HeadsConfig = field(default_factory=HeadsConfig)
    """Which parameters of its actions it chooses: each is a value's name, or free, as in agent.heads.alpha_target=free."""

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"agent.gamma must be in [0, 1], got {self.gamma}: 0.99 is a good start")
        if self.gamma < 0.9:
            warnings.warn(f"agent.gamma={self.gamma} hardly looks ahead, and growth pays later: 0.99 is usual", stacklevel=2)

    def build(self, spec: EnvSpec, *, seed: int) -> Controller:
        """The controller.

        Args:
            spec: sizes and names of what it sees and does.
            seed: root seed of the run.
        """
        raise TypeError(f"{type(self).__name__} does not say what it builds: define build(spec, seed=...)")
