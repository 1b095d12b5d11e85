"""The life of a seed: operations, stages, gates and transitions, as pure functions on arrays over hosts and slots.

    dormant -> germinated -> training -> blending -> holding -> fossilized
                    \\____________\\____________\\___________\\-> pruned -> embargoed -> dormant

One step of the environment calls `execute` (what the controller asked for) and then `tick` (what time does by itself), and then
trains for a host epoch. A stage's age counts the host epochs trained in it, the coming one included.
"""

# N hosts, S slots, O operations

from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.population.alpha import linear_ramp
from esper.population.roles import Blend, Roles

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]


class Stage(IntEnum):
    """Where a slot stands."""

    DORMANT = 0
    """Empty."""
    GERMINATED = 1
    """A seed is there and takes no part yet."""
    TRAINING = 2
    """The seed learns behind the host, whose output it does not change."""
    BLENDING = 3
    """Alpha rises."""
    HOLDING = 4
    """Alpha is at its target; the seed waits for the decision."""
    FOSSILIZED = 5
    """Kept for good."""
    PRUNED = 6
    """Removed in this step."""
    EMBARGOED = 7
    """Empty, and closed for a while."""


class Op(IntEnum):
    """Operations of a controller; one of them is done per host and host epoch."""

    WAIT = 0
    GERMINATE = 1
    SET_ALPHA_TARGET = 2
    PRUNE = 3
    FOSSILIZE = 4
    ADVANCE = 5


LIVE = (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING)
"""Stages of a seed that may still be pruned."""
OCCUPIED = (*LIVE, Stage.FOSSILIZED)
TAKES_PART = (Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)
"""Stages in which the seed is computed."""
ADVANCES_TO = {Stage.GERMINATED: Stage.TRAINING, Stage.TRAINING: Stage.BLENDING, Stage.BLENDING: Stage.HOLDING}
GATES = {"training": Stage.GERMINATED, "blending": Stage.TRAINING, "holding": Stage.BLENDING}
"""Gates that may open by themselves, by the stage they lead to, with the stage they start from."""


@dataclass(kw_only=True, slots=True)
class SlotsConfig:
    """Which slots may hold seeds, and the rules of their life."""

    where: list[str] = field(default_factory=lambda: list[str]())
    """Names of the slots in use, such as [r0c0, r0c2]; empty means every slot of the host."""
    max_seeds: int = 0
    """Most seeds a host may hold at once, live and fossilized together, at least 0; 0 means no cap."""
    auto_advance: list[str] = field(default_factory=lambda: ["training", "holding"])
    """Stages that are entered as soon as their gate is open, without an action, out of training, blending and holding."""
    min_training: int = 1
    """Host epochs a seed trains behind the host before it may blend, at least 1. More is safer and costs horizon."""
    min_prune_age: int = 5
    """Host epochs a seed lives before it may be pruned, at least 0. More keeps a controller from churning."""
    embargo: int = 2
    """Host epochs an emptied slot stays closed after the one in which it was emptied, at least 0."""

    def __post_init__(self) -> None:
        if len(set(self.where)) < len(self.where):
            raise ValueError(f"slots.where names a slot twice: {self.where}")
        if self.max_seeds < 0:
            raise ValueError(f"slots.max_seeds must be at least 0, got {self.max_seeds}: 0 means no cap")
        unknown = [name for name in self.auto_advance if name not in GATES]
        if unknown:
            raise ValueError(f"slots.auto_advance must name stages out of {', '.join(GATES)}, got {', '.join(unknown)}")
        if self.min_training < 1:
            raise ValueError(f"slots.min_training must be at least 1, got {self.min_training}")
        if self.min_prune_age < 0:
            raise ValueError(f"slots.min_prune_age must be at least 0, got {self.min_prune_age}")
        if self.embargo < 0:
            raise ValueError(f"slots.embargo must be at least 0, got {self.embargo}")

    def chosen(self, names: tuple[str, ...]) -> BoolArray:
        """`[S]`: which of the host's slots are in use.

        Raises:
            ValueError: `where` names a slot that the host does not have.
        """
        unknown = [name for name in self.where if name not in names]
        if unknown:
            raise ValueError(f"slots.where={','.join(unknown)} is not a slot of this host: it has {', '.join(names)}")
        return np.array([not self.where or name in self.where for name in names], dtype=np.bool_)


@dataclass(kw_only=True, slots=True)
class OneSeedConfig(SlotsConfig):
    """Every slot is open, and a host may hold one seed: where to grow, or whether, is the whole question."""

    max_seeds: int = 1
    """Most seeds a host may hold at once, live and fossilized together, at least 0; 0 means no cap."""


@dataclass(kw_only=True, slots=True)
class EveryBlockConfig(SlotsConfig):
    """Every slot is open and may hold a seed of its own."""


@dataclass(slots=True)
class SlotState:
    """Everything the lifecycle knows, each an array `[N, S]`."""

    stage: IntArray
    blueprint: IntArray
    """Index of the blueprint, -1 where there is none."""
    alpha: FloatArray
    ramp_done: IntArray
    """Ticks of the blend ramp behind us."""
    ramp_total: IntArray
    """Its length [host epochs]."""
    stage_age: IntArray
    seed_age: IntArray
    contribution: FloatArray
    """Accuracy with the seed minus without it [pp]; 0 where not measured."""
    contribution_error: FloatArray
    """Its standard error [pp]."""
    measured: BoolArray
    """Has the contribution of this seed been measured?"""

    def copy(self) -> "SlotState":
        return SlotState(**{name: array.copy() for name, array in self.arrays().items()})

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays by name."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    def within(self, *stages: Stage) -> BoolArray:
        """`[N, S]`: is the slot in one of these stages?"""
        return _is_one_of(stages)[self.stage]


@cache
def _is_one_of(stages: tuple[Stage, ...]) -> BoolArray:
    """For every stage: is it one of these? A table, since the question is asked forty times a step."""
    return np.array([stage in stages for stage in Stage], dtype=np.bool_)


def empty(num_hosts: int, num_slots: int) -> SlotState:
    """Every slot dormant."""
    shape = (num_hosts, num_slots)
    return SlotState(
        stage=np.full(shape, Stage.DORMANT, dtype=np.int64),
        blueprint=np.full(shape, -1, dtype=np.int64),
        alpha=np.zeros(shape, dtype=np.float32),
        ramp_done=np.zeros(shape, dtype=np.int64),
        ramp_total=np.zeros(shape, dtype=np.int64),
        stage_age=np.zeros(shape, dtype=np.int64),
        seed_age=np.zeros(shape, dtype=np.int64),
        contribution=np.zeros(shape, dtype=np.float32),
        contribution_error=np.zeros(shape, dtype=np.float32),
        measured=np.zeros(shape, dtype=np.bool_),
    )


def may_germinate(state: SlotState, config: SlotsConfig, chosen_S: BoolArray) -> BoolArray:
    """`[N, S]`: dormant slots in use, of hosts whose cap is not reached."""
    below_cap = np.ones(len(state.stage), dtype=np.bool_)
    if config.max_seeds > 0:
        below_cap = state.within(*OCCUPIED).sum(axis=1) < config.max_seeds
    return state.within(Stage.DORMANT) & chosen_S & below_cap[:, None]


def gate_open(state: SlotState, config: SlotsConfig) -> BoolArray:
    """`[N, S]`: may the seed go on to its next stage?

    germinated: at once. training: after `min_training` epochs. blending: with alpha at its target.
    """
    trained = state.within(Stage.TRAINING) & (state.stage_age >= config.min_training)
    blended = state.within(Stage.BLENDING) & (state.ramp_done >= state.ramp_total)
    return state.within(Stage.GERMINATED) | trained | blended


def may_fossilize(state: SlotState) -> BoolArray:
    """`[N, S]`: holding, and its contribution has been measured."""
    return state.within(Stage.HOLDING) & state.measured


def may_prune(state: SlotState, config: SlotsConfig) -> BoolArray:
    """`[N, S]`: live and old enough; fossils never."""
    return state.within(*LIVE) & (state.seed_age >= config.min_prune_age)


def germinate(state: SlotState, where_NS: BoolArray, blueprint_N: IntArray, ramp_N: IntArray) -> SlotState:
    """Puts new seeds into the marked slots, with a blueprint and a ramp length a host."""
    if not where_NS.any():
        return state
    new = replace(state, **_cleared(state, where_NS))
    new.blueprint = np.where(where_NS, blueprint_N[:, None], new.blueprint)
    new.ramp_total = np.where(where_NS, ramp_N[:, None], new.ramp_total)
    return enter(new, where_NS, Stage.GERMINATED)


def advance(state: SlotState, where_NS: BoolArray) -> SlotState:
    """Moves the marked seeds to their next stage."""
    for start in reversed(ADVANCES_TO):
        state = enter(state, where_NS & state.within(start), ADVANCES_TO[start])
    return state


def fossilize(state: SlotState, where_NS: BoolArray) -> SlotState:
    """Keeps the marked seeds for good."""
    return enter(state, where_NS, Stage.FOSSILIZED)


def prune(state: SlotState, where_NS: BoolArray) -> SlotState:
    """Removes the marked seeds and all that is known of them."""
    if not where_NS.any():
        return state
    return enter(replace(state, **_cleared(state, where_NS)), where_NS, Stage.PRUNED)


def enter(state: SlotState, where_NS: BoolArray, stage: Stage) -> SlotState:
    """The marked slots are now in this stage, for no epoch so far."""
    if not where_NS.any():
        return state
    return replace(state, stage=np.where(where_NS, int(stage), state.stage), stage_age=np.where(where_NS, 0, state.stage_age))


def tick(state: SlotState, config: SlotsConfig) -> SlotState:
    """What time does: cool-downs end, gates that open by themselves are passed, ramps move, and everything gets older."""
    state = enter(state, state.within(Stage.EMBARGOED) & (state.stage_age >= config.embargo), Stage.DORMANT)
    over = state.within(Stage.PRUNED) & (state.stage_age >= 1)
    state = enter(state, over, Stage.EMBARGOED if config.embargo else Stage.DORMANT)
    early = [GATES[name] for name in config.auto_advance if name != "holding"]
    state = advance(state, gate_open(state, config) & state.within(*early))
    blending = state.within(Stage.BLENDING)
    done = state.ramp_done + blending
    risen = linear_ramp(np.zeros_like(state.alpha), np.ones_like(state.alpha), done, state.ramp_total)
    state = replace(state, ramp_done=done, alpha=np.where(blending, risen, state.alpha))
    if "holding" in config.auto_advance:
        state = enter(state, gate_open(state, config) & state.within(Stage.BLENDING), Stage.HOLDING)
    return replace(state, stage_age=state.stage_age + 1, seed_age=state.seed_age + state.within(*OCCUPIED))


def roles(state: SlotState) -> Roles:
    """What each seed does in the coming host epoch."""
    part_NS, behind_NS = state.within(*TAKES_PART), state.within(Stage.TRAINING)
    return Roles(
        blueprint=np.where(part_NS, state.blueprint, -1),
        blend=np.full_like(state.blueprint, Blend.ADD),
        alpha=state.alpha,
        behind=behind_NS,
        open=part_NS & ~behind_NS,
        learns=part_NS,
        fossil=state.within(Stage.FOSSILIZED),
    )


def _cleared(state: SlotState, where_NS: BoolArray) -> dict[str, npt.NDArray[Any]]:
    """The arrays with the marked slots as in an empty host."""
    blank = empty(*state.stage.shape)
    return {name: np.where(where_NS, getattr(blank, name), array) for name, array in state.arrays().items()}
