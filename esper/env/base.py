"""The base of environments: Gymnasium's `VectorEnv`, with additional methods for the trainer."""

# N hosts, S slots, H heads, O operations, V values of all parameter heads

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from esper.env.actions import ActionError, Head, HeadsConfig, Op, all_actions, legal_values, parameters_legal, permitted_ops
from esper.env.spec import Array, EnvSpec, observation_space
from esper.governor.base import GovernorConfig
from esper.hosts.base import HostConfig
from esper.lifecycle.gates import GatesConfig
from esper.lifecycle.slots import SlotsConfig
from esper.lifecycle.stages import SlotState
from esper.measure.counterfactuals import CounterfactualsConfig
from esper.optimisers.base import OptimiserConfig
from esper.optimisers.sgd import SGDConfig
from esper.options import Option
from esper.pool.cluster import ClusterConfig, LocalConfig
from esper.pool.devices import DeviceConfig
from esper.reward.modes import RewardConfig
from esper.seeds.blueprints.base import BlueprintConfig
from esper.task.base import TaskConfig
from esper.task.instances import Split

Hparam = bool | int | float | str


@dataclass(kw_only=True, slots=True)
class EpisodeRecord:
    """The record of one episode of N hosts, kept by `play`.

    A record from outside the package may derive from this class, or offer the same methods and attributes.
    """

    return_N: npt.NDArray[np.float32]
    """Undiscounted sum of rewards so far [points]."""
    instance: list[str] = field(default_factory=list[str])
    """Kind of each host; known at the end."""
    ops: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(Op), np.int64))
    """Count of each operation carried out."""
    fossilized: int = 0
    """Number of seeds fossilized."""
    act_seconds: float = 0.0
    """Time that the controller took [s]."""
    seconds: float = 0.0
    """Time of the whole episode [s]."""
    phases: dict[str, float] = field(default_factory=dict[str, float])
    """Time that the environment spent in each of its phases [s], such as `train`; known at the end."""

    def add(self, info: Mapping[str, Any], reward_N: npt.NDArray[np.float32]) -> None:
        """Add one step; `info` holds the operation carried out and the number of seeds fossilized, for each host."""
        self.return_N += reward_N
        self.ops += np.bincount(info["op"], minlength=len(Op))
        self.fossilized += int(info["fossilized"].sum())

    def close(self, info: Mapping[str, Any]) -> None:
        """Add the info of the last step, after `add`."""

    def metrics(self) -> dict[str, float]:
        """Return metrics by tag."""
        hosts, host_steps = len(self.return_N), int(self.ops.sum())
        phases = {f"time/{phase}_seconds": seconds for phase, seconds in self.phases.items()}
        return (
            phases
            | {
                "policy/return": float(self.return_N.mean()),
                "host/seeds_germinated": float(self.ops[Op.GERMINATE] / hosts),
                "host/seeds_fossilized": self.fossilized / hosts,
                "time/rollout_seconds": self.seconds,
                "time/act_seconds": self.act_seconds,
                "time/environment_seconds": self.seconds - self.act_seconds - sum(self.phases.values()),
                "time/host_epochs_per_second": host_steps / self.seconds,
            }
            | {f"action/{op.name.lower()}": float(self.ops[op] / host_steps) for op in Op}
        )

    def summary(self) -> list[tuple[str, str]]:
        """Return rows of name and text for the summary at the end of a run."""
        return []


def one_number(value: Any, name: str) -> Any:
    """Return an integer of NumPy, or an array of equal ones such as an entry of an info, as one integer; others as they are.

    Args:
        name: what the integer is, an argument of `reset`.

    Raises:
        ValueError: it is a list, or an array of several integers.
    """
    if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "iu" and (value == value.flat[0]).all():
        value = value.flat[0]
    if isinstance(value, list | tuple | np.ndarray):
        raise ValueError(f"reset got several numbers as {name}, {value}: give one integer, which counts for all hosts")
    return int(value) if isinstance(value, np.integer) else value


def check_open(env: VectorEnv[Any, Any, Any]) -> None:
    """Raise `gymnasium.error.ClosedEnvironmentError` if an environment is closed."""
    if env.closed:
        raise gymnasium.error.ClosedEnvironmentError("the environment is closed: make another one")


class Environment(VectorEnv[dict[str, Array], npt.NDArray[np.int64], Array]):
    """N hosts in lockstep, as the trainer, `play` and the decision log use them.

    An environment from outside the package may derive from this class, or offer the same methods and attributes.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}  # noqa: RUF012  (as in Gymnasium)
    layout: EnvSpec
    """Sizes and names of observations and actions."""
    root: int
    """Root seed of all random streams."""
    split: Split
    """Hosts to train the controller on, or held-out hosts."""
    episode: int = -1
    """Number of the current episode; -1 before the first reset."""
    chosen_S: npt.NDArray[np.bool_]
    """Slots in use."""
    num_steps: int
    """T."""
    time: int
    """Steps done in the current episode."""
    autoreset: bool = True
    """If false, the last step of an episode does not start new hosts, which would cost as much as a step; call `reset` to start
    the next episode."""
    shown: SlotState | None = None
    """Slots after the last step, before the reset that follows an episode; None if the environment has none to show."""

    def __init__(self, layout: EnvSpec, *, seed: int, split: Split, heads: HeadsConfig, slots: SlotsConfig) -> None:
        self.layout, self.root, self.split = layout, seed, split
        self.num_envs, self.num_steps = layout.num_hosts, layout.num_steps
        self._legal_values = legal_values(layout.num_hosts, len(layout.blueprint_names), heads, slots)
        self._permitted_ops = permitted_ops(heads, slots)
        self.single_action_space = spaces.MultiDiscrete(np.array(layout.head_sizes, dtype=np.int64))
        self.single_observation_space = observation_space(layout)
        self.action_space = batch_space(self.single_action_space, layout.num_hosts)
        self.observation_space = batch_space(self.single_observation_space, layout.num_hosts)

    def observation(self) -> dict[str, Array]:
        """Return the current observation, by the names of `Observation`."""
        raise NotImplementedError

    def legal_slots(self) -> npt.NDArray[np.bool_]:
        """Return which operations are legal on which slots now `[N, O, S]`."""
        raise NotImplementedError

    def actions(self) -> npt.NDArray[np.int64]:
        """Return every action that can become legal, as a row of heads `[A, H]`; the first is to wait."""
        return all_actions(self._permitted_ops, self.chosen_S, self._legal_values[0], self.layout.head_sizes)

    def record(self) -> EpisodeRecord:
        """Return an empty record of the episode that starts now."""
        raise NotImplementedError

    def prepare(self, state: dict[str, Any] | None = None) -> None:
        """Make the measurements that are needed once per run, or restore them from the result of `state_dict`."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint between two episodes."""
        return {}

    def hparams(self) -> dict[str, Hparam]:
        """Return hyperparameters that identify the data."""
        return {}

    def machines(self) -> dict[str, str]:
        """Return the processor or GPU behind each device of the config, by the device's name; empty if no host trains."""
        return {}

    def costs_table(self) -> dict[str, Any]:
        """Return the costs of hosts and seeds, for `costs.json`; empty if there are none."""
        return {}

    # ---- for environments that derive from this class

    def begin(self, seed: Any, options: dict[str, Any] | None) -> None:
        """Set root and episode from the arguments of `reset`; `options={"episode": e}` asks for an episode by number.

        Raises:
            gymnasium.error.ClosedEnvironmentError: the environment is closed.
            ValueError: an argument is not valid.
        """
        check_open(self)
        seed = one_number(seed, "seed")
        if unknown := [*({*(options or {})} - {"episode"})]:
            raise ValueError(f"reset(options=...) has the unknown key {unknown[0]!r}: the only key is 'episode', for all hosts")
        wanted = one_number((options or {}).get("episode"), "episode")
        if wanted is not None and (isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 0):
            raise ValueError(f"reset(options=...) has episode={wanted!r}, which must be an integer of at least 0")
        if seed is not None:
            self.root, self.episode = int(seed), -1
        self.episode = self.episode + 1 if wanted is None else int(wanted)

    def permitted(self, actions: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the actions with illegal ones replaced by WAIT `[N, H]`, and which were illegal `[N]`.

        Raises:
            gymnasium.error.ClosedEnvironmentError: the environment is closed.
            gymnasium.error.ResetNeeded: there was no reset yet.
            ValueError: an action is not in the action space.
        """
        check_open(self)
        if self.episode < 0:
            raise gymnasium.error.ResetNeeded("call reset() before the first step()")
        action_NH = self._in_space(np.asarray(actions)).astype(np.int64)
        allowed_N = self.legal_slots()[np.arange(self.num_envs), action_NH[:, Head.OP], action_NH[:, Head.SLOT]]
        allowed_N &= parameters_legal(action_NH, self._legal_values, self.layout.head_sizes)
        action_NH[:, Head.OP] = np.where(allowed_N, action_NH[:, Head.OP], Op.WAIT)
        return action_NH, ~allowed_N

    def _in_space(self, action_NH: Array) -> Array:
        """Return the actions, after checking that every value is an index of its head."""
        shape = (self.num_envs, len(Head))
        if action_NH.shape != shape:
            raise ActionError(
                f"actions must have the shape {shape}, one row per host and one number per head, got {action_NH.shape}"
            )
        if action_NH.dtype.kind not in "iu":
            raise ActionError(f"actions must be integers, got {action_NH.dtype}")
        sizes_H = np.array(self.layout.head_sizes)
        outside = np.argwhere((action_NH < 0) | (action_NH >= sizes_H))
        if len(outside):
            host, head = outside[0].tolist()
            name, value = Head(head).name.lower(), action_NH[host, head]
            raise ActionError(f"the action of host {host} has {name}={value}: it must be from 0 to {sizes_H[head] - 1}")
        return action_NH


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvParts:
    """Everything an environment can be built from. Each environment takes what it needs."""

    task: TaskConfig
    host: HostConfig
    optimiser: OptimiserConfig = field(default_factory=SGDConfig)
    slots: SlotsConfig
    gates: GatesConfig = field(default_factory=GatesConfig)
    heads: HeadsConfig = field(default_factory=HeadsConfig)
    blueprints: Mapping[str, BlueprintConfig]
    reward: RewardConfig
    governor: GovernorConfig
    devices: Mapping[str, DeviceConfig]
    cluster: ClusterConfig = field(default_factory=LocalConfig)
    counterfactuals: CounterfactualsConfig = field(default_factory=CounterfactualsConfig)
    gamma: float
    """Discount per step, for potential-based shaping."""
    num_hosts: int
    num_steps: int
    seed: int = 0
    split: Split = Split.TRAINING
    num_twins: int = 1
    """Number of consecutive hosts that are twins; must divide `num_hosts`. See `HostSampler`."""
    trains: bool = True
    """True in a training run; false in a comparison of controllers, where all hosts get the same reward mode."""
    test_at_end: bool = False
    """If true, measure accuracy on the test split at the end of each episode."""
    test_online: bool = False
    """If true, measure accuracy on the test split after every step as well."""


@dataclass(kw_only=True, slots=True)
class EnvConfig(Option):
    """Base of environment configs."""

    ignores: ClassVar[tuple[str, ...]] = ()
    """Root keys without effect in this environment, refused on the command line."""
    has_hosts: ClassVar[bool] = True
    """If false, the environment neither trains nor measures hosts."""

    def build(self, parts: EnvParts) -> Environment:
        """Return the environment."""
        raise TypeError(f"{type(self).__name__} does not define build(parts)")

    def memory(self, steps: int) -> float:
        """Return the memory that the environment needs beside its hosts [bytes], for episodes of this length."""
        return 0.0

    def check_run(self, *, slots: SlotsConfig, heads: HeadsConfig, steps: int) -> None:
        """Raise ValueError if the environment cannot run with these settings."""

    def blueprint_names(self, chosen: Sequence[str]) -> Sequence[str]:
        """Return the names of the blueprints that actions choose from: those of the run, or the environment's own."""
        return chosen


def machines_of(env: Environment) -> dict[str, str]:
    """Return `env.machines()`; empty for an environment from outside that does not know its machines."""
    return getattr(env, "machines", dict[str, str])()
