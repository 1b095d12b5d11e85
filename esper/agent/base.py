"""What every controller is: something that looks at an observation and decides, for all hosts at once."""

# N hosts, H heads

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from torch import Tensor

from esper.env.actions import EnvSpec, HeadsConfig, Observation
from esper.env.features import Yardstick
from esper.env.observation import HOST_FEATURES, SLOT_FEATURES

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
    head_log_prob: FloatArray | None = None
    """[N, H], what each head adds to `log_prob`; None for a controller that does not learn head by head."""


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


@runtime_checkable
class Learner(Controller, Protocol):
    """A controller that becomes another from update to update, and whose checkpoint says what it has become."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds of it."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Becomes what `state_dict` described."""
        ...


@dataclass(kw_only=True, slots=True)
class AgentConfig:
    """A controller."""

    greedy: ClassVar[bool] = False
    """If true, the controller has most probable actions beside drawn ones."""
    gamma: float = 1.0
    """Discount per step, in [0, 1]. Higher looks further ahead, and the returns get noisier. The reward's shaping uses it too."""
    heads: HeadsConfig = field(default_factory=HeadsConfig)
    """Which parameters of its actions it chooses: each is a value's name, or free, as in agent.heads.alpha_target=free."""

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"agent.gamma must be in [0, 1], got {self.gamma}: 1 is the default")
        if self.gamma < 0.9:
            warnings.warn(f"agent.gamma={self.gamma} hardly looks ahead, and growth pays later: 1 is the default", stacklevel=2)

    def build(self, spec: EnvSpec, *, seed: int) -> Controller:
        """The controller.

        Args:
            spec: sizes and names of what it sees and does.
            seed: root seed of the run.
        """
        raise TypeError(f"{type(self).__name__} does not say what it builds: define build(spec, seed=...)")

    def acting(self) -> "AgentConfig":
        """The same controller where it only acts: without what nothing but learning asks of a run."""
        return self

    def check_run(self, *, blueprints: Sequence[str], steps: int, incubates: bool = True) -> None:
        """Raises ValueError where the controller is asked for what cannot be in such a run.

        Args:
            blueprints: names of those that are offered.
            steps: T, host epochs of an episode.
            incubates: are seeds blended in on a ramp, whose tempo can be chosen?
        """

    def check_hosts(self, *, slots: Sequence[str], in_use: BoolArray, cap: int, blueprints: Sequence[str], hosts: int) -> None:
        """The same for what only the hosts, and files beside the config, can say.

        Args:
            slots: names of a host's slots.
            in_use: `[S]`, may this slot hold a seed?
            cap: most seeds that a host may hold, 0 for no limit.
            blueprints: names of those that are offered.
            hosts: N.
        """

    def check_evaluation(self, *, seed: int, episode: int) -> None:
        """Raise ValueError if the controller does not fit the held-out hosts of this seed and episode."""


def seen_as_one(name: str) -> float:
    """What a feature shows as 1, in its unit; of those for which that is the same in every run."""
    (one,) = (feature.one for feature in (*HOST_FEATURES, *SLOT_FEATURES) if feature.name == name)
    assert not isinstance(one, Yardstick), f"{name} is measured by what differs from run to run"
    return one


def check_offered(words: str, blueprint: str, offered: Sequence[str]) -> None:
    """Raises ValueError where there is no such blueprint.

    Args:
        words: what was asked for, as it was typed.
    """
    if blueprint not in offered:
        raise ValueError(f"{words} is not offered: choose one of {', '.join(offered)}, or add it to blueprint")


def check_time(words: str, at: int, steps: int) -> None:
    """Raises ValueError where an episode of so many steps ends before that time comes."""
    if at >= steps:
        raise ValueError(f"{words} never comes in steps={steps}: choose an earlier time, or raise steps")


def check_slot(words: str, slot: int, num_slots: int) -> None:
    """Raises ValueError where a host has no such slot."""
    if slot >= num_slots:
        raise ValueError(f"{words} is not a slot of this host: it has 0 to {num_slots - 1}")
