"""The interface of an environment: Gymnasium's `VectorEnv`, and what the trainer asks besides."""

# N hosts, S slots, H heads, O operations, V values of all parameter heads

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from esper.env.actions import EnvSpec, Head, HeadsConfig, Observation, Op
from esper.env.shard import DeviceConfig
from esper.governor.base import GovernorConfig
from esper.hosts.base import HostConfig
from esper.lifecycle.gates import GatesConfig
from esper.lifecycle.slots import SlotsConfig
from esper.measure.counterfactuals import CounterfactualsConfig
from esper.reward.audit import Audit
from esper.reward.modes import RewardConfig
from esper.seeds.blueprints.base import BlueprintConfig
from esper.task.base import TaskConfig
from esper.task.instances import Split

Array = npt.NDArray[Any]
Hparam = bool | int | float | str


class EpisodeRecord(Protocol):
    """The record of one episode of N hosts, kept by `play`."""

    return_N: npt.NDArray[np.float32]
    """Undiscounted sum of rewards so far [points]."""
    instance: list[str]
    """Kind of each host; known at the end."""
    audit: Audit | None
    """Reward-hacking checks; None before the end, and in an environment that has none."""
    act_seconds: float
    """Time that the controller took [s]."""
    seconds: float
    """Time of the whole episode [s]."""

    def add(self, info: Mapping[str, Any], reward_N: npt.NDArray[np.float32]) -> None:
        """Take in one step."""
        ...

    def close(self, info: Mapping[str, Any]) -> None:
        """Take in the info of the last step, after `add`."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return metrics by tag."""
        ...

    def summary(self) -> list[tuple[str, str]]:
        """Return rows of name and text for the summary at the end of a run."""
        ...


class Environment(Protocol):
    """A vectorised environment of N hosts, as the trainer, `play` and the decision log use it."""

    layout: EnvSpec
    """Sizes and names of observations and actions."""
    root: int
    """Root seed of all random streams."""
    split: Split
    """Hosts to train the controller on, or held-out hosts."""
    episode: int
    """Number of the current episode; -1 before the first reset."""
    num_envs: int
    """N."""
    chosen_S: npt.NDArray[np.bool_]
    """Slots in use."""
    num_steps: int
    """T."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Array], dict[str, Any]]:
        """Start an episode; `options={"episode": e}` asks for one by number."""
        ...

    def step(self, actions: npt.NDArray[np.int64]) -> tuple[dict[str, Array], Array, Array, Array, dict[str, Any]]:
        """Act, and return observation, reward, terminated, truncated and info.

        `info["rolled_back"]` and `info["signals"]` become parts of the transition; both may be missing.
        """
        ...

    def observation(self) -> dict[str, Array]:
        """Return the current observation, by the names of `Observation`."""
        ...

    def record(self) -> EpisodeRecord:
        """Return an empty record of the episode that starts now."""
        ...

    def prepare(self, state: dict[str, Any] | None = None) -> None:
        """Measure what a run measures once, or restore what `state_dict` returned."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs of the environment between two episodes."""
        ...

    def hparams(self) -> dict[str, Hparam]:
        """Return what distinguishes the data from that of other runs."""
        ...

    def costs_table(self) -> dict[str, Any]:
        """Return the costs of hosts and seeds, for `costs.json`; empty if there are none."""
        ...

    def close(self) -> None:
        """Release threads and memory."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvParts:
    """Everything an environment can be built from. Each environment takes what it needs."""

    task: TaskConfig
    host: HostConfig
    slots: SlotsConfig
    gates: GatesConfig
    heads: HeadsConfig
    blueprints: Mapping[str, BlueprintConfig]
    reward: RewardConfig
    governor: GovernorConfig
    devices: Mapping[str, DeviceConfig]
    counterfactuals: CounterfactualsConfig
    gamma: float
    """Discount, which potential-based shaping needs."""
    num_hosts: int
    num_steps: int
    seed: int
    split: Split
    num_twins: int
    trains: bool
    """True for the hosts of a training run; false where controllers are compared, all paid by one mode."""
    test_at_end: bool
    """Measure the test part at the end of each episode."""


@dataclass(kw_only=True, slots=True)
class EnvConfig:
    """An environment."""

    ignores: ClassVar[tuple[str, ...]] = ()
    """Root keys without effect in this environment, refused on the command line."""

    def build(self, parts: EnvParts) -> Environment:
        """Return the environment."""
        raise TypeError(f"{type(self).__name__} does not define build(parts)")

    def check_run(self, *, slots: SlotsConfig, gates: GatesConfig, heads: HeadsConfig, steps: int) -> None:
        """Raise ValueError if the environment cannot run with these."""


def observation_space(spec: EnvSpec) -> spaces.Dict:
    """Return the space of one host's observation, by the names of `Observation`."""
    slots, blueprints = spec.num_slots, len(spec.blueprint_names)
    return spaces.Dict(
        {
            "features": spaces.Box(-np.inf, np.inf, (len(spec.feature_names),), np.float32),
            "slots": spaces.Box(-np.inf, np.inf, (slots, len(spec.slot_feature_names)), np.float32),
            "blueprints": spaces.MultiDiscrete(np.full(slots, blueprints + 1, dtype=np.int64)),
            "legal_slots": spaces.MultiBinary([len(Op), slots]),
            "legal_values": spaces.MultiBinary(sum(spec.head_sizes[Head.BLUEPRINT :])),
        }
    )


def as_observation(arrays: Mapping[str, Array]) -> Observation:
    """Return the dict of arrays of `reset` and `step` as an `Observation`."""
    return Observation(
        features=arrays["features"].astype(np.float32, copy=False),
        slots=arrays["slots"].astype(np.float32, copy=False),
        blueprints=arrays["blueprints"].astype(np.int64, copy=False),
        legal_slots=arrays["legal_slots"].astype(np.bool_),
        legal_values=arrays["legal_values"].astype(np.bool_),
    )
