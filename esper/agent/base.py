"""The interface of controllers and learners, and the base of their configs."""

# N hosts, H heads

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from torch import nn

from esper.buffer.base import Buffer, BufferConfig, Forfeit
from esper.buffer.transition import Decision, State, Transition
from esper.env.actions import HeadsConfig
from esper.env.spec import EnvSpec, Observation
from esper.lifecycle.slots import SlotsConfig
from esper.lifecycle.stages import BoolArray, IntArray
from esper.options import Option
from esper.ranges import check_ranges


class Controller(Protocol):
    """Chooses an action for every host."""

    def start(self, num_hosts: int) -> State:
        """Return the recurrent state before the first step."""
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
        """Choose actions for N hosts. All randomness comes from `uniform`; the action of host i depends only on row i.

        Args:
            is_init: `[N]`, True where this step starts a (sub-)episode.
            uniform: `[N, H]` independent numbers in [0, 1), one per head.
            greedy: if true, take the most probable values instead of sampling.
        """
        ...


@runtime_checkable
class Revisable(Protocol):
    """A controller whose state records what it has done, such as how many seeds it planted. As a teacher it is only asked what it
    would do, so it is told what was done instead. Other controllers keep their state after acting."""

    def revise(self, observation: Observation, before: State, decision: Decision, taken_NH: IntArray) -> State:
        """Return the state for the next step, given the actions that were taken instead of its own.

        Args:
            observation: observation of the step.
            before: state before it.
            decision: what `act` returned.
            taken_NH: actions taken `[N, H]`.
        """
        ...


@runtime_checkable
class Learner(Controller, Protocol):
    """A controller that learns from transitions, once per update.

    Inherit from it to get defaults for everything but `learn` and the state.
    """

    independent: bool = False
    """True once the learner will never ask its teacher again; the run then does without it."""

    def follow(self, teacher: Controller) -> None:
        """Imitate a teacher at first, the one of `AgentConfig.imitates`."""
        raise TypeError(f"{type(self).__name__} cannot imitate a teacher: define follow(teacher), or leave the teacher out")

    def begin(self, update: int) -> None:
        """Prepare for the episode from which update number `update` (from 0) learns."""

    def observe(self, transition: Transition) -> None:
        """Receive one step of every host."""

    def learn(self, progress: float) -> dict[str, float]:
        """Learn from the transitions since `begin`.

        Args:
            progress: completed share of the run, in [0, 1).

        Returns:
            Metrics by tag, such as `policy/kl`. Tags that `docs/metrics.md` lacks start with `agent/`.
        """
        ...

    def summary(self) -> list[tuple[str, str]]:
        """Return rows of name and text for the summary at the end of a run."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: tensors and primitives."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` or `acting_state` returned."""
        ...

    def acting_state(self) -> dict[str, Any]:
        """Return the part of the state that acting needs, for a policy that is passed on; by default all of it."""
        return self.state_dict()

    def program(self) -> nn.Module | None:
        """Return one decision as a module for `torch.export`, with the inputs and outputs of `PolicyProgram`; None if there is
        none."""
        return None


@dataclass(kw_only=True, slots=True)
class AgentConfig(Option):
    """Base of controller configs."""

    greedy: ClassVar[bool] = False
    """True if the most probable actions differ from sampled ones, so that an evaluation can ask for either."""
    standalone: ClassVar[bool] = False
    """True if the controller acts without training and without further keys: a baseline for every evaluation."""
    buffered: ClassVar[bool] = False
    """True if the controller learns from a buffer."""
    one_episode: ClassVar[bool] = False
    """True if every update replays the same episode, so that returns of different updates can be compared."""
    seeded: ClassVar[bool] = True
    """False if `build` ignores its seed, so that policy_seed has no effect."""
    needs_hosts: ClassVar[bool] = False
    """True if the controller reads measurements of hosts, which env=sandbox does not have."""
    needs_potential: ClassVar[bool] = False
    """True if the controller acts on growth potential, which env.potential=false does not measure."""
    needs_timetable: ClassVar[bool] = False
    """True if the controller acts on the events that env.timetable=true shows."""
    gamma: float = 1.0
    """Discount per step, in [0, 1]. Higher: looks further ahead, noisier returns. Also used by potential-based shaping."""
    heads: HeadsConfig = field(default_factory=HeadsConfig)
    """Parameters of actions: fixed at a named value, or free for the controller, as in agent.heads.alpha_target=free."""

    def __post_init__(self) -> None:
        check_ranges("agent", self, {"[0, 1]": ["gamma"]})
        if self.gamma < 0.9:
            warnings.warn(f"agent.gamma={self.gamma} hardly looks ahead, but growth pays late: the default is 1", stacklevel=2)

    @classmethod
    def unseen(cls, env: Any) -> str:
        """Return what the controller reads that an environment of this config does not provide; empty if nothing is missing."""
        if cls.needs_hosts and not env.has_hosts:
            return "measurements of hosts"
        if cls.needs_potential and not getattr(env, "potential", True):
            return "growth potential"
        return "the timetable of events" if cls.needs_timetable and not getattr(env, "timetable", False) else ""

    @property
    def num_twins(self) -> int:
        """Hosts that share instance, initial weights and data order; 1 for no twins."""
        return 1

    @property
    def explores(self) -> bool:
        """True if the controller acts otherwise while it learns than afterwards, so that its returns in training are not those of
        its checkpoints."""
        return False

    @property
    def imitates(self) -> str | None:
        """Agent that needs no training, or folder of a run, whose controller a learner imitates at first; None for none."""
        return None

    def network_size(self, slots: int, features: int, slot_features: int) -> tuple[int, int, Sequence[str]]:
        """Return the weights of the controller's network, its activations per decision, and the two keys that make it smaller.

        Args:
            slots: slots of a host.
            features: numbers in an observation, without those of slots.
            slot_features: numbers for each slot.
        """
        return 0, 0, ()

    def build(self, spec: EnvSpec, *, seed: int, buffer: Buffer | None = None) -> Controller:
        """Return the controller.

        Args:
            spec: sizes and names of observations and actions.
            seed: root seed of the policy.
            buffer: storage of transitions for a learner; None if it will only act.
        """
        raise TypeError(f"{type(self).__name__} does not define build(spec, *, seed, buffer)")

    def acting(self) -> "AgentConfig":
        """Return the config of the same controller for acting only, without the requirements of training."""
        return self

    def check_run(self, *, blueprints: Sequence[str], steps: int, hosts: int, incubates: bool = True) -> None:
        """Raise ValueError if the controller does not fit the run.

        Args:
            blueprints: names of the available blueprints.
            steps: T, host epochs of an episode.
            hosts: N.
            incubates: True if seeds are blended in on a ramp, so that a tempo has an effect.
        """

    def check_slots(self, slots: SlotsConfig) -> None:
        """Raise ValueError if the controller does not fit the rules of the slots."""

    def check_buffer(self, buffer: BufferConfig, name: str) -> None:
        """Raise ValueError if the buffer does not fit the controller.

        Args:
            buffer: config of the buffer.
            name: its option, as typed.
        """
        if not self.buffered and (buffer.reuses or buffer.forfeit is not Forfeit.none):
            asked = f"buffer={name}" if buffer.reuses else f"buffer.forfeit={buffer.forfeit}"
            raise ValueError(f"{asked} has no effect, since this agent does not learn from a buffer: leave it out")

    def check_evaluation(self, *, seed: int, episode: int) -> None:
        """Raise ValueError if the controller cannot act on the held-out hosts of this seed and episode."""

    def check_hosts(self, *, slots: Sequence[str], in_use: BoolArray, cap: int, blueprints: Sequence[str], hosts: int) -> None:
        """Raise ValueError if the controller does not fit the hosts, or if a file that it needs does not.

        Args:
            slots: names of a host's slots.
            in_use: `[S]`, True where a slot may hold a seed.
            cap: maximum number of seeds in a host, 0 for no limit.
            blueprints: names of the available blueprints.
            hosts: N.
        """


def remedy(unseen: str, controller: str) -> str:
    """Return what to do if an environment does not provide what a controller reads; see `AgentConfig.unseen`.

    Args:
        unseen: what it reads.
        controller: what it is, such as teacher.
    """
    keys = {
        "growth potential": "set env.potential=true, or ",
        "the timetable of events": "add env.timetable=true, with a task that has events, or ",
    }
    return f"{keys.get(unseen, '')}choose another {controller}"


def check_twins(hosts: int, twins: int, remedy: str = "agent.twins=1") -> None:
    """Raise ValueError if the hosts of a run cannot be divided into groups of twins.

    Args:
        remedy: overrides of a run without twins.
    """
    if hosts % twins:
        more = -(-hosts // twins) * twins
        raise ValueError(f"hosts={hosts} is not a multiple of agent.twins={twins}: set hosts to {more}, or {remedy}")


def check_offered(setting: str, blueprint: str, offered: Sequence[str], *, learned: bool = False) -> None:
    """Raise ValueError if a blueprint is not available.

    Args:
        setting: the setting that names it, as typed.
        blueprint: name of the blueprint.
        offered: names of the available blueprints.
        learned: if true, the controller has learned to use it, and can use no other one in its place.
    """
    if blueprint not in offered:
        other = "" if learned else f"choose one of {', '.join(offered)}, or "
        raise ValueError(f"{setting} is not available: {other}add it to blueprint")


def check_choices(learned: Sequence[str], here: Sequence[str]) -> None:
    """Raise ValueError if a policy has learned to choose among other choices than those here."""
    if list(learned) != list(here):
        raise ValueError(
            f"this policy learned to choose among {', '.join(learned)}, but here the choices are "
            f"{', '.join(here)}: use it on hosts with the slots and blueprints of its run"
        )


def check_time(setting: str, at: int, steps: int) -> None:
    """Raise ValueError if a time is after the end of an episode of this many steps."""
    if at >= steps:
        raise ValueError(f"{setting} is after the end of the episode, steps={steps}: choose an earlier time, or raise steps")


def slot_of_these_hosts(setting: str, slot: int, learned: Sequence[str], here: Sequence[str]) -> int:
    """Return the number of a learned slot on these hosts.

    Args:
        setting: what names the slot, for the error message, as in "in the best schedule".
        slot: number of the slot on the hosts of the training.
        learned: names of their slots.
        here: names of the slots of these hosts.

    Raises:
        ValueError: these hosts have no such slot.
    """
    if learned[slot] not in here:
        known = ", ".join(here)
        raise ValueError(
            f"slot {learned[slot]} {setting} does not exist on these hosts, which have {known}: use hosts that have this slot"
        )
    return here.index(learned[slot])


def check_slot(setting: str, slot: int, num_slots: int) -> None:
    """Raise ValueError if a host has no slot of this number."""
    if slot >= num_slots:
        raise ValueError(f"{setting} is not a slot of this host: choose from 0 to {num_slots - 1}")
