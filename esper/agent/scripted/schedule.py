"""Controllers that follow what was written down beforehand: one seed at one time, or a list of actions."""

# N hosts, S slots, A written actions, H heads

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from esper.agent.base import AgentConfig, BoolArray, Controller, IntArray, check_offered, check_slot, check_time
from esper.agent.scripted.base import Scripted, compose, most_urgent, step_number
from esper.buffer.base import Buffer
from esper.buffer.transition import Decision, State
from esper.env.actions import PARAMETER_HEADS, RELEVANT, VALUES, EnvSpec, Head, Observation, Op, segments

OPS = {op.name.lower(): op for op in Op if op is not Op.WAIT}
"""Operations that can be written down: waiting is what is not written."""
UNSET = -1
"""Stands for a parameter that is not written, which then has its usual value."""


@dataclass(kw_only=True, slots=True)
class ActionConfig:
    """One written action."""

    at: int = 0
    """Done after this many host epochs, or as soon after as it may be, once; at least 0."""
    op: str = "germinate"
    """What is done, out of germinate, set_alpha_target, prune, fossilize, advance."""
    slot: int = 0
    """Where, counted from 0 in the order of the host's layers."""
    blueprint: str | None = None
    """What is germinated; not for another operation."""
    style: str | None = None
    """How a germinated seed is blended, for life; as in agent.heads.style, and null is its usual value."""
    tempo: str | None = None
    """Length of its ramp; as in agent.heads.tempo, and null is its usual value."""
    alpha_target: str | None = None
    """Where alpha goes, with germinate or set_alpha_target; as in agent.heads.alpha_target, and null is its usual value."""
    alpha_speed: str | None = None
    """How fast, with set_alpha_target or prune; as in agent.heads.alpha_speed, and null is its usual value."""
    alpha_curve: str | None = None
    """On which curve, with set_alpha_target or prune; as in agent.heads.alpha_curve, and null is its usual value."""

    def __post_init__(self) -> None:
        if self.op not in OPS:
            raise ValueError(f"agent.actions has op={self.op}, which is not known: choose one of {', '.join(OPS)}")
        for name in ("at", "slot"):
            if getattr(self, name) < 0:
                raise ValueError(f"agent.actions has {name}={getattr(self, name)}, which must be at least 0")
        op, written = OPS[self.op], self.written()
        needs = {Op.GERMINATE: Head.BLUEPRINT, Op.SET_ALPHA_TARGET: Head.ALPHA_TARGET}.get(op)
        if needs is not None and needs not in written:
            raise ValueError(f"agent.actions has op={self.op} without {needs.name.lower()}: say which")
        for head, value in written.items():
            name = head.name.lower()
            if not RELEVANT[op, head]:
                raise ValueError(f"agent.actions has {name}={value}, which has no effect with op={self.op}: leave it out")
            if head in VALUES and value not in VALUES[head]:
                known = ", ".join(VALUES[head])
                raise ValueError(f"agent.actions has {name}={value}, which is not known: choose one of {known}")

    def written(self) -> dict[Head, str]:
        """The parameters that are given, by head."""
        given = {head: getattr(self, head.name.lower()) for head in PARAMETER_HEADS}
        return {head: value for head, value in given.items() if value is not None}

    def plain(self) -> dict[str, Any]:
        """What is written, as primitives: `ActionConfig(**plain)` is this action again."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(kw_only=True, slots=True)
class ScheduleConfig(AgentConfig):
    """The same for every host: one seed, moved on and kept as soon as that is legal; or a written list of actions."""

    slot: int = 0
    """Which slot, counted from 0 in the order of the host's layers."""
    blueprint: str = "conv_light"
    """Name of the blueprint, one of those that are offered."""
    at: int = 0
    """Germinates after this many host epochs, or as soon after as it may, and again if the seed is lost; at least 0."""
    actions: list[ActionConfig] = field(default_factory=lambda: list[ActionConfig]())
    """Instead of the one seed: what is done, as in [{at: 0, op: germinate, slot: 1, blueprint: norm}, {at: 6, op: fossilize,
    slot: 1}]. A host does one action a host epoch; of several that are due and legal, the first in the list."""
    by_hand: bool = False
    """With `actions`: do seeds advance only where the list says so? Otherwise they do as soon as they may, whenever there is
    nothing else to do."""

    def __post_init__(self) -> None:
        AgentConfig.__post_init__(self)
        if self.slot < 0:
            raise ValueError(f"agent.slot must be at least 0, got {self.slot}: it counts the slots from the first layer on")
        if self.at < 0:
            raise ValueError(f"agent.at must be at least 0, got {self.at}: it counts host epochs from the start")
        if not self.actions:
            if self.by_hand:
                raise ValueError("agent.by_hand=true has no effect without agent.actions: leave it out, or write the actions")
            return
        usual = ScheduleConfig.__dataclass_fields__
        for name in ("slot", "blueprint", "at"):
            if getattr(self, name) != usual[name].default:
                raise ValueError(
                    f"agent.{name}={getattr(self, name)} has no effect beside agent.actions: write it into the list, or "
                    "leave the list out"
                )
        for action in self.actions:
            self._check_action(action)

    def _check_action(self, action: ActionConfig) -> None:
        if action.op == "advance" and not self.by_hand:
            raise ValueError("agent.actions has op=advance, and seeds do that anyway: leave it out, or set agent.by_hand=true")
        for head, value in action.written().items():
            name = head.name.lower()
            if head not in self.heads.pinned:
                continue
            held = getattr(self.heads, name)
            if held != value or (action.op == "set_alpha_target" and head == Head.ALPHA_TARGET):
                raise ValueError(
                    f"agent.actions asks for op={action.op} with {name}={value}, and agent.heads.{name}={held} holds it: set "
                    f"agent.heads.{name}=free"
                )

    @property
    def planned(self) -> list[tuple[str, ActionConfig]]:
        """All that is to be done, each with the words that it is named by in a message."""
        if self.actions:
            return [("{}={} in agent.actions", action) for action in self.actions]
        return [("agent.{}={}", ActionConfig(at=self.at, slot=self.slot, blueprint=self.blueprint))]

    def check_run(self, *, blueprints: Sequence[str], steps: int, hosts: int, incubates: bool = True) -> None:
        for words, action in self.planned:
            if action.blueprint is not None:
                check_offered(words.format("blueprint", action.blueprint), action.blueprint, blueprints)
            check_time(words.format("at", action.at), action.at, steps)
            if action.tempo is not None and not incubates:
                raise ValueError(
                    f"{words.format('tempo', action.tempo)} has no effect with slots.incubation=none: leave it out, or choose "
                    "another incubation"
                )

    def check_hosts(self, *, slots: Sequence[str], in_use: BoolArray, cap: int, blueprints: Sequence[str], hosts: int) -> None:
        for words, action in self.planned:
            named = words.format("slot", action.slot)
            check_slot(named, action.slot, len(slots))
            if not in_use[action.slot]:
                use = ", ".join(f"{number} ({name})" for number, name in enumerate(slots) if in_use[number])
                raise ValueError(f"{named} is not in use: there are {use}")

    def build(self, spec: EnvSpec, *, seed: int, buffer: Buffer | None = None) -> Controller:
        """The controller.

        Raises:
            ValueError: there is no such slot or blueprint, or the time never comes.
        """
        everywhere = np.ones(spec.num_slots, dtype=np.bool_)
        self.check_run(blueprints=spec.blueprint_names, steps=spec.num_steps, hosts=spec.num_hosts)
        self.check_hosts(slots=spec.slot_names, in_use=everywhere, cap=0, blueprints=spec.blueprint_names, hosts=spec.num_hosts)
        if self.actions:
            return Written(self.actions, spec, by_hand=self.by_hand)
        return Schedule(self, spec)


class Schedule(Scripted):
    """One seed; see `ScheduleConfig`."""

    def __init__(self, config: ScheduleConfig, spec: EnvSpec) -> None:
        Scripted.__init__(self, spec)
        self.slot, self.blueprint, self.at = config.slot, spec.blueprint_names.index(config.blueprint), config.at

    def choose(self, observation: Observation, uniform_NH: npt.NDArray[np.float64]) -> IntArray:
        legal_NO = observation.legal_slots[:, :, self.slot]
        offered_N = observation.legal_values[:, segments(self.spec.head_sizes)[Head.BLUEPRINT]][:, self.blueprint]
        due_N = (step_number(observation, self.spec) >= self.at) & offered_N
        op_N = np.full(len(due_N), Op.WAIT, dtype=np.int64)
        for op, wanted_N in ((Op.GERMINATE, due_N), (Op.ADVANCE, True), (Op.FOSSILIZE, True)):
            op_N = np.where(legal_NO[:, op] & wanted_N, op, op_N)
        full_N = np.ones_like(op_N)
        return compose(observation, self.spec, op_N, full_N * self.slot, blueprint=full_N * self.blueprint)


class Written:
    """Does a list of actions, each once, in every host; see `ScheduleConfig.actions`."""

    def __init__(self, actions: Sequence[ActionConfig], spec: EnvSpec, *, by_hand: bool = False) -> None:
        self.spec, self.by_hand = spec, by_hand
        # One action that never comes keeps an empty list from being a case of its own.
        self.at_A = np.array([*(action.at for action in actions), spec.num_steps])
        rows = [_numbers(action, spec) for action in actions]
        self.action_AH = np.array([*rows, [UNSET] * len(Head)], dtype=np.int64)

    def start(self, num_hosts: int) -> State:
        """Which actions are done `[N, A]`."""
        return {"done": torch.zeros(num_hosts, len(self.at_A), dtype=torch.bool)}

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
        step_N = step_number(observation, self.spec)
        done_NA = state["done"].numpy() & (step_N > 0)[:, None]  # a host that was rolled back goes on in the list
        due_NA = np.greater_equal(step_N[:, None], self.at_A) & ~done_NA & self._legal(observation)
        first_N: IntArray = due_NA.argmax(axis=1)
        acts_N = np.asarray(due_NA.any(axis=1))
        written_NH = np.where(acts_N[:, None], self.action_AH[first_N], UNSET)
        nothing_NS = np.full((len(step_N), self.spec.num_slots), not self.by_hand)
        op_N, slot_N = most_urgent(observation, {Op.ADVANCE: (nothing_NS, np.zeros(nothing_NS.shape))})
        op_N, slot_N = (np.where(acts_N, written_NH[:, head], own) for head, own in ((Head.OP, op_N), (Head.SLOT, slot_N)))
        usual_NH = compose(observation, self.spec, op_N, slot_N)
        action_NH = np.where(written_NH == UNSET, usual_NH, written_NH)
        done_NA |= due_NA & (np.arange(len(self.at_A)) == first_N[:, None])
        return Decision(action=action_NH, state={"done": torch.from_numpy(done_NA)})

    def _legal(self, observation: Observation) -> BoolArray:
        """`[N, A]`: may this action be done now, with the parameters that are written?"""
        legal_NA = observation.legal_slots[:, self.action_AH[:, Head.OP], self.action_AH[:, Head.SLOT]]
        for head, place in segments(self.spec.head_sizes).items():
            value_A = self.action_AH[:, head]
            legal_NA = legal_NA & (observation.legal_values[:, place][:, value_A] | (value_A == UNSET))
        return legal_NA


def _numbers(action: ActionConfig, spec: EnvSpec) -> list[int]:
    """An action as the values of its heads, `UNSET` where a parameter is not written."""
    values = action.written()
    names = {Head.BLUEPRINT: spec.blueprint_names} | {head: tuple(meanings) for head, meanings in VALUES.items()}
    chosen = [names[head].index(values[head]) if head in values else UNSET for head in PARAMETER_HEADS]
    return [int(OPS[action.op]), action.slot, *chosen]
