"""Fixed schedules: one seed at one time, or a list of actions."""

# N hosts, S slots, A actions of the list, H heads

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from esper.agent.base import AgentConfig, Controller, check_offered, check_slot, check_time
from esper.agent.reading import offered, step_number
from esper.agent.scripted.base import Scripted, UniformArray, compose, most_urgent, plant_and_keep
from esper.buffer.base import Buffer
from esper.buffer.transition import Decision, State
from esper.env.actions import PARAMETER_HEADS, RELEVANT, VALUES, Head, Op, segments
from esper.env.spec import EnvSpec, Observation
from esper.lifecycle.slots import SlotsConfig
from esper.lifecycle.stages import BoolArray, IntArray
from esper.ranges import check_ranges

OPS = {op.name.lower(): op for op in Op if op is not Op.WAIT}
"""Operations of a schedule, by name. Waiting is implicit."""
UNSET = -1
"""Marks a parameter that is not given and takes its default value."""


@dataclass(kw_only=True, slots=True)
class ActionConfig:
    """One action of a schedule."""

    at: int = 0
    """Time of the action, at least 0 [host epochs]. It is taken once, as soon as it is legal at or after this time."""
    op: str = "germinate"
    """Operation: germinate, set_alpha_target, prune, fossilize or advance."""
    slot: int = 0
    """Number of the slot, from 0 in the order of the host's layers."""
    blueprint: str | None = None
    """Blueprint to germinate; for germinate only."""
    style: str | None = None
    """Blend of a germinated seed, as in agent.heads.style; null for the default."""
    tempo: str | None = None
    """Length of the seed's first ramp, as in agent.heads.tempo; null for the default."""
    alpha_target: str | None = None
    """Target of alpha, for germinate and set_alpha_target, as in agent.heads.alpha_target; null for the default."""
    alpha_speed: str | None = None
    """Length of the ramp, for set_alpha_target and prune, as in agent.heads.alpha_speed; null for the default."""
    alpha_curve: str | None = None
    """Curve of the ramp, for set_alpha_target and prune, as in agent.heads.alpha_curve; null for the default."""

    def __post_init__(self) -> None:
        if self.op not in OPS:
            raise ValueError(f"agent.actions has op={self.op}, which is not known: choose one of {', '.join(OPS)}")
        for name in ("at", "slot"):
            if getattr(self, name) < 0:
                raise ValueError(f"agent.actions has {name}={getattr(self, name)}, which must be at least 0")
        op, written = OPS[self.op], self.written()
        needs = {Op.GERMINATE: Head.BLUEPRINT, Op.SET_ALPHA_TARGET: Head.ALPHA_TARGET}.get(op)
        if needs is not None and needs not in written:
            raise ValueError(f"agent.actions has op={self.op} without {needs.name.lower()}: add it")
        for head, value in written.items():
            name = head.name.lower()
            if not RELEVANT[op, head]:
                raise ValueError(f"agent.actions has {name}={value}, which has no effect with op={self.op}: leave it out")
            if head in VALUES and value not in VALUES[head]:
                known = ", ".join(VALUES[head])
                raise ValueError(f"agent.actions has {name}={value}, which is not known: choose one of {known}")

    def written(self) -> dict[Head, str]:
        """Return the given parameters by head."""
        given = {head: getattr(self, head.name.lower()) for head in PARAMETER_HEADS}
        return {head: value for head, value in given.items() if value is not None}

    def plain(self) -> dict[str, Any]:
        """Return the given values as primitives: `ActionConfig(**plain)` restores the action."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(kw_only=True, slots=True)
class ScheduleConfig(AgentConfig):
    """A controller that plays the same schedule in every host: one seed, advanced and kept as soon as possible, or a list of
    actions."""

    seeded: ClassVar[bool] = False
    slot: int = 0
    """Number of the slot, from 0 in the order of the host's layers."""
    blueprint: str = "conv_light"
    """Name of the blueprint."""
    at: int = 0
    """Time to germinate, at least 0 [host epochs]; later if it is not legal yet, and again if the seed is lost."""
    actions: list[ActionConfig] = field(default_factory=lambda: list[ActionConfig]())
    """List of actions that replaces the one seed, as in [{at: 0, op: germinate, slot: 1, blueprint: norm}, {at: 6, op: fossilize,
    slot: 1}]. Each host takes one action per host epoch: the first in the list that is due and legal. Where none is, seeds
    advance, unless the list has an op=advance."""

    def __post_init__(self) -> None:
        AgentConfig.__post_init__(self)
        check_ranges("agent", self, {"[0, inf]": ["slot", "at"]})
        if not self.actions:
            return
        defaults = ScheduleConfig.__dataclass_fields__
        for name in ("slot", "blueprint", "at"):
            if getattr(self, name) != defaults[name].default:
                raise ValueError(
                    f"agent.{name}={getattr(self, name)} has no effect with agent.actions: put it into the list, or "
                    "remove the list"
                )
        for action in self.actions:
            self._check_action(action)

    def _check_action(self, action: ActionConfig) -> None:
        for head, value in action.written().items():
            name = head.name.lower()
            if head not in self.heads.pinned:
                continue
            held = getattr(self.heads, name)
            if held != value:
                raise ValueError(
                    f"agent.actions has op={action.op} with {name}={value}, but agent.heads.{name}={held} fixes it: set "
                    f"agent.heads.{name}=free"
                )

    def check_slots(self, slots: SlotsConfig) -> None:
        fixed = self.heads.alpha_target if Head.ALPHA_TARGET in self.heads.pinned else None
        if fixed and not slots.switchable and any(action.op == "set_alpha_target" for action in self.actions):
            raise ValueError(
                f"agent.actions has op=set_alpha_target, but agent.heads.alpha_target={fixed} fixes it: set "
                "agent.heads.alpha_target=free, or slots.switchable=true, with which the action switches fossils off and on"
            )

    @property
    def planned(self) -> list[tuple[str, ActionConfig]]:
        """All actions, each with a template that names one of its settings in error messages."""
        if self.actions:
            return [("{}={} in agent.actions", action) for action in self.actions]
        return [("agent.{}={}", ActionConfig(at=self.at, slot=self.slot, blueprint=self.blueprint))]

    def check_run(self, *, blueprints: Sequence[str], steps: int, hosts: int, incubates: bool = True) -> None:
        for setting, action in self.planned:
            if action.blueprint is not None:
                check_offered(setting.format("blueprint", action.blueprint), action.blueprint, blueprints)
            check_time(setting.format("at", action.at), action.at, steps)
            if action.tempo is not None and not incubates:
                raise ValueError(
                    f"{setting.format('tempo', action.tempo)} has no effect with slots.incubation=none: leave it out, or choose "
                    "another incubation"
                )

    def check_hosts(self, *, slots: Sequence[str], in_use: BoolArray, cap: int, blueprints: Sequence[str], hosts: int) -> None:
        for setting, action in self.planned:
            named = setting.format("slot", action.slot)
            check_slot(named, action.slot, len(slots))
            if not in_use[action.slot]:
                use = ", ".join(f"{number} ({name})" for number, name in enumerate(slots) if in_use[number])
                raise ValueError(f"{named} is not in use: choose from {use}")

    def build(self, spec: EnvSpec, *, seed: int, buffer: Buffer | None = None) -> Controller:
        everywhere = np.ones(spec.num_slots, dtype=np.bool_)
        self.check_run(blueprints=spec.blueprint_names, steps=spec.num_steps, hosts=spec.num_hosts)
        self.check_hosts(slots=spec.slot_names, in_use=everywhere, cap=0, blueprints=spec.blueprint_names, hosts=spec.num_hosts)
        if self.actions:
            return ActionLists([self.actions], spec)
        return Schedule(self, spec)


class Schedule(Scripted):
    """One seed; see `ScheduleConfig`."""

    def __init__(self, config: ScheduleConfig, spec: EnvSpec) -> None:
        Scripted.__init__(self, spec)
        self.slot, self.blueprint, self.at = config.slot, spec.blueprint_names.index(config.blueprint), config.at

    def choose(self, observation: Observation, uniform_NH: UniformArray) -> IntArray:
        due_N = (step_number(observation, self.spec) >= self.at) & offered(observation, self.spec)[:, self.blueprint]
        slot_N, blueprint_N = np.full(len(due_N), self.slot), np.full(len(due_N), self.blueprint)
        every_N = np.ones(len(due_N), np.bool_)
        return plant_and_keep(observation, self.spec, slot_N, blueprint_N, plants_N=due_N, acts_N=every_N)


class ActionLists(Scripted):
    """Plays a list of actions, each once; see `ScheduleConfig.actions`."""

    def __init__(self, lists: Sequence[Sequence[ActionConfig]], spec: EnvSpec) -> None:
        """
        Args:
            lists: the list of each host, or a single one for all hosts.
        """
        self.spec = spec
        self.advances_N1 = np.array([[all(action.op != "advance" for action in actions)] for actions in lists])
        # Every list ends with actions that are never due, at least one, so that lists of any length need no special case.
        shape = (len(lists), max(map(len, lists)) + 1)
        self.at_NA = np.full(shape, spec.num_steps)
        self.action_NAH = np.full((*shape, len(Head)), UNSET, dtype=np.int64)
        for host, actions in enumerate(lists):
            for index, action in enumerate(actions):
                self.at_NA[host, index], self.action_NAH[host, index] = action.at, _numbers(action, spec)

    def start(self, num_hosts: int) -> State:
        """Return which actions are done `[N, A]`."""
        return {"done": torch.zeros(num_hosts, self.at_NA.shape[1], dtype=torch.bool)}

    def decide(self, observation: Observation, state: State, uniform_NH: UniformArray) -> tuple[IntArray, State]:
        step_N = step_number(observation, self.spec)
        row_N, list_N = np.arange(len(step_N)), np.arange(len(step_N)) % len(self.at_NA)
        done_NA = state["done"].numpy() & (step_N > 0)[:, None]  # a rolled-back host continues in the list
        due_NA = np.greater_equal(step_N[:, None], self.at_NA[list_N]) & ~done_NA & self._legal(observation, list_N)
        first_N: IntArray = due_NA.argmax(axis=1)
        acts_N = np.asarray(due_NA.any(axis=1))
        written_NH = np.where(acts_N[:, None], self.action_NAH[list_N, first_N], UNSET)
        nothing_NS = np.repeat(self.advances_N1[list_N], self.spec.num_slots, axis=1)
        op_N, slot_N = most_urgent(observation, {Op.ADVANCE: (nothing_NS, np.zeros(nothing_NS.shape))})
        op_N, slot_N = (np.where(acts_N, written_NH[:, head], own) for head, own in ((Head.OP, op_N), (Head.SLOT, slot_N)))
        default_NH = compose(observation, self.spec, op_N, slot_N)
        action_NH = np.where(written_NH == UNSET, default_NH, written_NH)
        done_NA[row_N, first_N] |= acts_N
        return action_NH, {"done": torch.from_numpy(done_NA)}

    def revise(self, observation: Observation, before: State, decision: Decision, taken_NH: IntArray) -> State:
        """Mark the first action of the list that is due, not done and was taken; see `Revisable`."""
        step_N = step_number(observation, self.spec)
        row_N, list_N = np.arange(len(step_N)), np.arange(len(step_N)) % len(self.at_NA)
        done_NA = before["done"].numpy() & (step_N > 0)[:, None]
        written_NAH = self.action_NAH[list_N]
        taken_NA = ((written_NAH == taken_NH[:, None]) | (written_NAH == UNSET)).all(axis=2)
        due_NA = np.greater_equal(step_N[:, None], self.at_NA[list_N]) & ~done_NA & taken_NA
        done_NA[row_N, due_NA.argmax(axis=1)] |= due_NA.any(axis=1)
        return {"done": torch.from_numpy(done_NA)}

    def _legal(self, observation: Observation, list_N: IntArray) -> BoolArray:
        """Return which actions are legal now, with the given parameters `[N, A]`."""
        action_NAH, row_N1 = self.action_NAH[list_N], np.arange(len(list_N))[:, None]
        legal_NA = observation.legal_slots[row_N1, action_NAH[..., Head.OP], action_NAH[..., Head.SLOT]]
        for head, place in segments(self.spec.head_sizes).items():
            value_NA = action_NAH[..., head]
            legal_NA = legal_NA & (observation.legal_values[:, place][row_N1, value_NA] | (value_NA == UNSET))
        return legal_NA


def _numbers(action: ActionConfig, spec: EnvSpec) -> list[int]:
    """Return an action as values of its heads, `UNSET` where a parameter is not given."""
    values = action.written()
    names = {Head.BLUEPRINT: spec.blueprint_names} | {head: tuple(meanings) for head, meanings in VALUES.items()}
    chosen = [names[head].index(values[head]) if head in values else UNSET for head in PARAMETER_HEADS]
    return [int(OPS[action.op]), action.slot, *chosen]
