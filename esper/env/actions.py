"""Actions: eight heads, their relevance to each operation, and legality.

An action is one integer per head. The head `op` selects the operation; the others are its arguments, and only those that
`RELEVANT` marks for the chosen op have an effect. Legality is one tensor over (operation, slot) for all hosts, computed from
the rules of the lifecycle; `execute` applies any legal action.
"""

# N hosts, S slots, O operations, H heads, K blueprints, V values of all parameter heads, concatenated, A listed actions

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.lifecycle import operations as lifecycle
from esper.lifecycle.gates import GatesConfig, gate_open, may_fossilize
from esper.lifecycle.operations import may_germinate, may_prune, may_retarget, may_switch
from esper.lifecycle.ramps import Curve
from esper.lifecycle.roles import Blend, Incubation
from esper.lifecycle.slots import GATES, SlotsConfig
from esper.lifecycle.stages import BoolArray, IntArray, Op, SlotState


class ActionError(ValueError):
    """Actions that are not in the action space; the message is for the author of an agent."""


class Head(IntEnum):
    """Columns of an action."""

    OP = 0
    SLOT = 1
    BLUEPRINT = 2
    STYLE = 3
    TEMPO = 4
    ALPHA_TARGET = 5
    ALPHA_SPEED = 6
    ALPHA_CURVE = 7


STYLES = {
    "linear_add": (Blend.ADD, Curve.LINEAR),
    "linear_multiply": (Blend.MULTIPLY, Curve.LINEAR),
    "sigmoid_add": (Blend.ADD, Curve.SIGMOID),
    "gated": (Blend.GATE, Curve.LINEAR),
}
"""Blend of a seed, for its whole life, and the curve of its first ramp."""
TEMPOS = {"fast": 3, "standard": 5, "slow": 8}
"""Length of the first ramp [host epochs]."""
ALPHA_TARGETS = {"half": 0.5, "seventy": 0.7, "full": 1.0}
ALPHA_SPEEDS = {"instant": 0, "fast": 3, "medium": 5, "slow": 8}
"""Length of the ramp to another target, or down to a seed's removal [host epochs]."""
ALPHA_CURVES = {curve.name.lower(): curve for curve in Curve}
VALUES: dict[Head, dict[str, Any]] = {
    Head.STYLE: STYLES,
    Head.TEMPO: TEMPOS,
    Head.ALPHA_TARGET: ALPHA_TARGETS,
    Head.ALPHA_SPEED: ALPHA_SPEEDS,
    Head.ALPHA_CURVE: ALPHA_CURVES,
}
"""Values of each head: name to meaning, in the order of their indices."""

RELEVANT: BoolArray = np.zeros((len(Op), len(Head)), dtype=np.bool_)
"""[O, H]: True where the head has an effect with this op."""
RELEVANT[:, Head.OP] = True
RELEVANT[Op.GERMINATE, [Head.SLOT, Head.BLUEPRINT, Head.STYLE, Head.TEMPO, Head.ALPHA_TARGET]] = True
RELEVANT[Op.SET_ALPHA_TARGET, [Head.SLOT, Head.ALPHA_TARGET, Head.ALPHA_SPEED, Head.ALPHA_CURVE]] = True
RELEVANT[Op.PRUNE, [Head.SLOT, Head.ALPHA_SPEED, Head.ALPHA_CURVE]] = True
RELEVANT[[Op.FOSSILIZE, Op.ADVANCE], Head.SLOT] = True

PARAMETER_HEADS = tuple(Head)[Head.BLUEPRINT :]
"""Heads whose legality does not depend on the slot: all but op and slot."""
FREE = "free"
"""Config value that leaves the choice of a head to the controller."""


@dataclass(kw_only=True, slots=True)
class HeadsConfig:
    """Parameters of actions: each head is fixed at one value, or `free` for the controller to choose."""

    style: str = "linear_add"
    """Blend of new seeds: linear_add, linear_multiply, sigmoid_add, gated, or free."""
    tempo: str = "fast"
    """Length of the first ramp of alpha: fast (3 host epochs), standard (5), slow (8), or free. No effect with
    slots.incubation=none."""
    alpha_target: str = "full"
    """Alpha at the end of that ramp: half (0.5), seventy (0.7), full (1), or free. Only if free can it change later, except that
    slots.switchable=true lets fossils be switched off and on."""
    alpha_speed: str = "instant"
    """Length of later ramps, to another target or removal: instant (0 host epochs), fast (3), medium (5), slow (8), or free."""
    alpha_curve: str = "linear"
    """Curve of later ramps: linear, cosine, sigmoid_gentle, sigmoid, sigmoid_sharp, or free."""

    def __post_init__(self) -> None:
        for head, values in VALUES.items():
            value = getattr(self, head.name.lower())
            if value not in (*values, FREE):
                known = ", ".join((*values, FREE))
                raise ValueError(f"agent.heads.{head.name.lower()}={value} is not known: choose one of {known}")
        if self.alpha_speed == "instant" and self.alpha_curve != "linear":
            raise ValueError(
                f"agent.heads.alpha_curve={self.alpha_curve} has no effect while agent.heads.alpha_speed is instant: "
                "set alpha_speed=free or one of fast, medium, slow"
            )
        if self.alpha_target in ("half", "seventy"):
            warnings.warn(
                f"agent.heads.alpha_target={self.alpha_target} keeps every seed below alpha 1, so that none can ever be "
                "fossilized: set it to full or free",
                stacklevel=2,
            )

    @property
    def pinned(self) -> dict[Head, int]:
        """Index of the value of each fixed head."""
        chosen = {head: getattr(self, head.name.lower()) for head in VALUES}
        return {head: list(VALUES[head]).index(name) for head, name in chosen.items() if name != FREE}


PINNED = HeadsConfig().pinned
"""Default values: additive linear blends in three epochs up to alpha 1, and immediate removal. Controllers that do not choose a
head take this value where it is legal."""


def legal_values(
    num_hosts: int, num_blueprints: int, heads: HeadsConfig | None = None, slots: SlotsConfig | None = None
) -> BoolArray:
    """Return the legality of parameter values `[N, V]`: every blueprint, one value of each fixed head, all of the free ones.

    Without incubation a seed has no first ramp, so the tempo has a single legal value.

    Args:
        heads: which heads are free; by default none.
        slots: rules of a seed's life.
    """
    pinned = (heads or HeadsConfig()).pinned
    if slots is not None and slots.incubation == Incubation.none:
        pinned = {Head.TEMPO: 0} | pinned
    columns = [np.ones(num_blueprints, dtype=np.bool_)]
    for head, values in VALUES.items():
        column = np.ones(len(values), dtype=np.bool_)
        columns.append(np.arange(len(values)) == pinned[head] if head in pinned else column)
    return np.tile(np.concatenate(columns), (num_hosts, 1))


def legal_slots(
    state: SlotState,
    slots: SlotsConfig,
    chosen_S: BoolArray,
    gates: GatesConfig | None = None,
    heads: HeadsConfig | None = None,
) -> BoolArray:
    """Return which operations are legal on which slots `[N, O, S]`.

    Args:
        chosen_S: True for slots in use.
        gates: conditions of advancing; by default the most permissive.
        heads: which heads are free: a fixed alpha target cannot be changed, but fossils may be switched.
    """
    gates, heads = gates or GatesConfig(), heads or HeadsConfig()
    legal = np.zeros((len(state.stage), len(Op), len(chosen_S)), dtype=np.bool_)
    by_hand = ~state.within(*(GATES[name] for name in slots.auto_advance))
    legal[:, Op.WAIT] = True
    legal[:, Op.GERMINATE] = may_germinate(state, slots, chosen_S)
    if Head.ALPHA_TARGET not in heads.pinned:
        legal[:, Op.SET_ALPHA_TARGET] = may_retarget(state)
    legal[:, Op.SET_ALPHA_TARGET] |= may_switch(state, slots)
    legal[:, Op.PRUNE] = may_prune(state, slots)
    legal[:, Op.FOSSILIZE] = may_fossilize(state, gates) & by_hand
    legal[:, Op.ADVANCE] = gate_open(state, gates) & by_hand
    return legal


def execute(state: SlotState, action_NH: IntArray, slots: SlotsConfig) -> SlotState:
    """Apply one legal action per host, with refused ones replaced by WAIT. No time passes.

    Args:
        action_NH: values of all heads; irrelevant ones are ignored.
    """
    if not action_NH[:, Head.OP].any():
        return state
    here_NS = np.eye(state.stage.shape[1], dtype=np.bool_)[action_NH[:, Head.SLOT]]
    where = {op: here_NS & (action_NH[:, Head.OP] == op)[:, None] for op in Op}
    later = {"ticks_N": _head_values(action_NH, Head.ALPHA_SPEED, int), "curve_N": _head_values(action_NH, Head.ALPHA_CURVE, int)}
    target_N = _head_values(action_NH, Head.ALPHA_TARGET, float).astype(np.float32)
    state = lifecycle.germinate(
        state,
        where[Op.GERMINATE],
        blueprint_N=action_NH[:, Head.BLUEPRINT],
        blend_N=_head_values(action_NH, Head.STYLE, lambda style: int(style[0])),
        target_N=target_N,
        ticks_N=_head_values(action_NH, Head.TEMPO, int),
        curve_N=_head_values(action_NH, Head.STYLE, lambda style: int(style[1])),
    )
    switched = where[Op.SET_ALPHA_TARGET] & may_switch(state, slots)
    state = lifecycle.switch(state, switched)
    state = lifecycle.retarget(state, where[Op.SET_ALPHA_TARGET] & ~switched, target_N=target_N, **later)
    state = lifecycle.ramp_down(state, where[Op.PRUNE], **later)
    return lifecycle.advance(state, where[Op.ADVANCE] | where[Op.FOSSILIZE], slots)


def _head_values(action_NH: IntArray, head: Head, read: Callable[[Any], float]) -> npt.NDArray[Any]:
    """Return the meaning of the chosen values of a head `[N]`."""
    return np.array([read(value) for value in VALUES[head].values()])[action_NH[:, head]]


def segments(head_sizes: tuple[int, ...]) -> dict[Head, slice]:
    """Return the slice of the axis V that holds the values of each parameter head."""
    places: dict[Head, slice] = {}
    start = 0
    for head in PARAMETER_HEADS:
        places[head] = slice(start, start + head_sizes[head])
        start += head_sizes[head]
    return places


def with_fixed(action_NH: IntArray, legal_values_NV: BoolArray, head_sizes: tuple[int, ...]) -> IntArray:
    """Return actions in which heads with a single legal value have it; values that are none of the head's stay."""
    action_NH = action_NH.copy()
    for head, place in segments(head_sizes).items():
        legal_NW, known_N = legal_values_NV[:, place], (action_NH[:, head] >= 0) & (action_NH[:, head] < head_sizes[head])
        fixed_N = (legal_NW.sum(axis=1) == 1) & known_N
        action_NH[fixed_N, head] = legal_NW[fixed_N].argmax(axis=1)
    return action_NH


def parameters_legal(action_NH: IntArray, legal_values_NV: BoolArray, head_sizes: tuple[int, ...]) -> BoolArray:
    """Return whether every relevant parameter head has a legal value `[N]`."""
    fine = np.ones(len(action_NH), dtype=np.bool_)
    for head, place in segments(head_sizes).items():
        chosen = np.take_along_axis(legal_values_NV[:, place], action_NH[:, head, None], axis=1)[:, 0]
        fine &= chosen | ~RELEVANT[action_NH[:, Head.OP], head]
    return fine


def permitted_ops(heads: HeadsConfig, slots: SlotsConfig) -> BoolArray:
    """Return which operations can become legal with these settings `[O]`."""
    by_hand = set(GATES) - {*slots.auto_advance}
    permitted = np.ones(len(Op), dtype=np.bool_)
    permitted[Op.SET_ALPHA_TARGET] = Head.ALPHA_TARGET not in heads.pinned or slots.switchable
    permitted[Op.FOSSILIZE] = "fossilized" in by_hand
    permitted[Op.ADVANCE] = bool(by_hand - {"fossilized"})
    return permitted


def all_actions(permitted_O: BoolArray, chosen_S: BoolArray, legal_values_V: BoolArray, head_sizes: tuple[int, ...]) -> IntArray:
    """Return every action that can become legal `[A, H]`: WAIT, and each other operation on each slot with each choice of its
    parameters. Irrelevant heads are 0.

    Args:
        permitted_O: operations that can become legal.
        chosen_S: True for slots in use.
        legal_values_V: legality of the values of the parameter heads.
        head_sizes: number of values of each head.
    """
    places, rows = segments(head_sizes), [[0] * len(Head)]
    for op, slot in product(np.flatnonzero(permitted_O).tolist(), np.flatnonzero(chosen_S).tolist()):
        if op != Op.WAIT:
            used = [np.flatnonzero(legal_values_V[place]) if RELEVANT[op, head] else [0] for head, place in places.items()]
            rows += [[op, slot, *map(int, values)] for values in product(*used)]
    return np.array(rows, dtype=np.int64)


def legal_actions(
    action_AH: IntArray, legal_slots_NOS: BoolArray, legal_values_NV: BoolArray, head_sizes: tuple[int, ...]
) -> BoolArray:
    """Return which of some actions are legal for each host `[N, A]`."""
    legal_NA = legal_slots_NOS[:, action_AH[:, Head.OP], action_AH[:, Head.SLOT]]
    for head, place in segments(head_sizes).items():
        legal_NA &= legal_values_NV[:, place][:, action_AH[:, head]] | ~RELEVANT[action_AH[:, Head.OP], head]
    return legal_NA
