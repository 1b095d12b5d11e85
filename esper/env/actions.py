"""What a controller may do: eight action heads, which of them matter for which operation, and what is legal.

An action is one integer per head. The head `op` says what to do; the others are its arguments, and only the arguments that
`RELEVANT` marks for the chosen op have any effect. Legality is one tensor over (operation, slot) for the whole population,
made from the same rules that the lifecycle uses to execute, so that mask and executor cannot disagree.
"""

# N hosts, S slots, O operations, H heads, K blueprints, V values of all parameter heads laid end to end

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from esper.population.lifecycle import (
    GATES,
    Op,
    SlotsConfig,
    SlotState,
    gate_open,
    may_fossilize,
    may_germinate,
    may_prune,
)

__all__ = ["RELEVANT", "EnvSpec", "Head", "Observation", "Op", "legal_slots", "legal_values", "parameters_legal"]

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]


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


STYLES = ("linear_add", "linear_multiply", "sigmoid_add", "gated")
TEMPOS = {"fast": 3, "standard": 5, "slow": 8}
"""Length of the blend ramp by name [host epochs]."""
ALPHA_TARGETS = (0.5, 0.7, 1.0)
ALPHA_SPEEDS = {"instant": 0, "fast": 3, "medium": 5, "slow": 8}
ALPHA_CURVES = ("linear", "cosine", "sigmoid_gentle", "sigmoid", "sigmoid_sharp")

RELEVANT: BoolArray = np.zeros((len(Op), len(Head)), dtype=np.bool_)
"""[O, H]: does this head affect the world when this op is taken?"""
RELEVANT[:, Head.OP] = True
RELEVANT[Op.GERMINATE, [Head.SLOT, Head.BLUEPRINT, Head.STYLE, Head.TEMPO, Head.ALPHA_TARGET]] = True
RELEVANT[Op.SET_ALPHA_TARGET, [Head.SLOT, Head.STYLE, Head.ALPHA_TARGET, Head.ALPHA_SPEED, Head.ALPHA_CURVE]] = True
RELEVANT[Op.PRUNE, [Head.SLOT, Head.ALPHA_SPEED, Head.ALPHA_CURVE]] = True
RELEVANT[[Op.FOSSILIZE, Op.ADVANCE], Head.SLOT] = True

PARAMETER_HEADS = tuple(Head)[Head.BLUEPRINT :]
"""The heads whose legality does not depend on the slot: all but op and slot."""

PINNED = {Head.STYLE: 0, Head.TEMPO: 0, Head.ALPHA_TARGET: 2, Head.ALPHA_SPEED: 0, Head.ALPHA_CURVE: 0}
"""Heads held at one value: additive linear blends in three epochs up to alpha 1, and removal at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvSpec:
    """What an agent and a buffer need to know about an environment before it runs."""

    num_hosts: int
    """N."""
    num_steps: int
    """T, host epochs of an episode."""
    slot_names: tuple[str, ...]
    """S names in forward order."""
    blueprint_names: tuple[str, ...]
    """K names in the order of the blueprint head."""
    feature_names: tuple[str, ...]
    """D names of `Observation.features`."""
    slot_feature_names: tuple[str, ...]
    """F names of the last axis of `Observation.slots`."""

    @property
    def num_slots(self) -> int:
        return len(self.slot_names)

    @property
    def head_sizes(self) -> tuple[int, ...]:
        """Number of values of each head, in the order of `Head`."""
        fixed = (len(STYLES), len(TEMPOS), len(ALPHA_TARGETS), len(ALPHA_SPEEDS), len(ALPHA_CURVES))
        return (len(Op), self.num_slots, len(self.blueprint_names), *fixed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What the controller sees of N hosts. All features are of order one; "never measured" has a bit of its own."""

    features: FloatArray
    """[N, D] features of the host."""
    slots: FloatArray
    """[N, S, F] features of each slot."""
    blueprints: IntArray
    """[N, S] index of the blueprint in the slot, K where the slot is empty."""
    legal_slots: BoolArray
    """[N, O, S]: may this op be done on this slot now? The row of WAIT is all True."""
    legal_values: BoolArray
    """[N, V]: legality of the values of the parameter heads, laid end to end in the order of `PARAMETER_HEADS`."""

    @property
    def legal_ops(self) -> BoolArray:
        """[N, O]: an op is legal where some slot is legal for it; WAIT always is."""
        return np.asarray(self.legal_slots.any(axis=2))


def legal_values(num_hosts: int, num_blueprints: int) -> BoolArray:
    """[N, V] legality of parameter values: every blueprint offered, and one value of each pinned head."""
    sizes = (num_blueprints, len(STYLES), len(TEMPOS), len(ALPHA_TARGETS), len(ALPHA_SPEEDS), len(ALPHA_CURVES))
    columns: list[BoolArray] = []
    for head, size in zip(PARAMETER_HEADS, sizes, strict=True):
        column = np.ones(size, dtype=np.bool_)
        if head in PINNED:
            column[:] = False
            column[PINNED[head]] = True
        columns.append(column)
    return np.tile(np.concatenate(columns), (num_hosts, 1))


def legal_slots(state: SlotState, config: SlotsConfig, chosen_S: BoolArray) -> BoolArray:
    """`[N, O, S]`: which operation may be done on which slot now. Whatever is legal is carried out; the rest is refused.

    Args:
        chosen_S: which slots are in use.
    """
    legal = np.zeros((len(state.stage), len(Op), len(chosen_S)), dtype=np.bool_)
    by_themselves = [GATES[name] for name in config.auto_advance]
    legal[:, Op.WAIT] = True
    legal[:, Op.GERMINATE] = may_germinate(state, config, chosen_S)
    legal[:, Op.PRUNE] = may_prune(state, config)
    legal[:, Op.FOSSILIZE] = may_fossilize(state)
    legal[:, Op.ADVANCE] = gate_open(state, config) & ~state.within(*by_themselves)
    return legal


def parameters_legal(action_NH: IntArray, legal_values_NV: BoolArray, head_sizes: tuple[int, ...]) -> BoolArray:
    """`[N]`: has every parameter head that matters for the chosen op a legal value?"""
    fine = np.ones(len(action_NH), dtype=np.bool_)
    start = 0
    for head in PARAMETER_HEADS:
        size = head_sizes[head]
        legal_NK = legal_values_NV[:, start : start + size]
        chosen = np.take_along_axis(legal_NK, action_NH[:, head, None], axis=1)[:, 0]
        fine &= chosen | ~RELEVANT[action_NH[:, Head.OP], head]
        start += size
    return fine
