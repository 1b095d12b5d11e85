"""Where a slot may stand, what may be asked of it, and all that is known of it."""

# N hosts, S slots

from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]


EMPTY = -1
"""Blueprint index of a slot without a seed."""


class Stage(IntEnum):
    """Where a slot stands."""

    DORMANT = 0
    """Empty."""
    GERMINATED = 1
    """A seed is there and takes no part yet."""
    TRAINING = 2
    """The seed learns behind the host, whose output it does not change (without incubation it is in at once)."""
    BLENDING = 3
    """Alpha moves to its target, or stays at one below 1."""
    HOLDING = 4
    """Alpha is 1; the seed waits for the decision."""
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


class Mode(IntEnum):
    """What alpha does."""

    DOWN = -1
    HOLD = 0
    UP = 1


LIVE = (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING)
"""Stages of a seed that may still be pruned."""
OCCUPIED = (*LIVE, Stage.FOSSILIZED)
TAKES_PART = (Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)
"""Stages in which the seed is computed."""
BLENDED = (Stage.BLENDING, Stage.HOLDING)
"""Stages in which a controller may move alpha."""


@dataclass(slots=True)
class SlotState:
    """Everything the lifecycle knows, each an array `[N, S]`. What was not measured is NaN, but for contributions."""

    stage: IntArray
    blueprint: IntArray
    """Index of the blueprint, -1 where there is none."""
    blend: IntArray
    """A `Blend`, from birth on."""
    alpha: FloatArray
    """Blend weight in [0, 1]."""
    ramp_start: FloatArray
    ramp_target: FloatArray
    """Alpha at the ends of the ramp. Before blending: those of the ramp to come."""
    ramp_done: IntArray
    """Ticks of the ramp behind us."""
    ramp_total: IntArray
    """Its length [host epochs]."""
    ramp_curve: IntArray
    """A `Curve`."""
    dying: BoolArray
    """Does the ramp lead down to the seed's removal?"""
    stage_age: IntArray
    """Host epochs trained in the stage."""
    seed_age: IntArray
    """Host epochs since germination."""
    accuracy: FloatArray
    """Last validation accuracy of the host [pp]; the same in all of its slots, empty ones too."""
    accuracy_start: FloatArray
    """What it was when the stage was entered [pp]."""
    contribution: FloatArray
    """Accuracy with the seed minus without it [pp]; 0 where not measured."""
    contribution_error: FloatArray
    """Its standard error [pp]."""
    measured: BoolArray
    """Has the contribution of this seed been measured?"""
    fresh: BoolArray
    """Was it measured in the last host epoch? It was not where the seed is behind its host, or at alpha 0."""
    velocity: FloatArray
    """How fast it changes [pp / host epoch]; see `attribution.velocity`. NaN until it was measured in two epochs in a row."""
    gradient_ratio: FloatArray
    """How strongly the seed learnt in the last epoch, against its host; see `gates.gradient_ratio` [1]."""
    gradient_norm: FloatArray
    """Norm of its gradient in that epoch, before clipping; mean over steps [nats per unit of weight]."""

    def copy(self) -> "SlotState":
        return SlotState(**{name: array.copy() for name, array in self.arrays().items()})

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays by name."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    def of(self, rows: slice) -> "SlotState":
        """Return the state of some of the hosts."""
        return SlotState(**{name: array[rows] for name, array in self.arrays().items()})

    def within(self, *stages: Stage) -> BoolArray:
        """`[N, S]`: is the slot in one of these stages?"""
        return _is_one_of(stages)[self.stage]

    @property
    def moving(self) -> BoolArray:
        """`[N, S]`: is alpha on its way?"""
        return self.within(Stage.BLENDING) & (self.ramp_done < self.ramp_total)

    @property
    def mode(self) -> IntArray:
        """`[N, S]`: a `Mode`; it follows from the ramp and is stored nowhere."""
        return np.where(self.moving, np.sign(self.ramp_target - self.ramp_start), Mode.HOLD).astype(np.int64)

    @property
    def improvement(self) -> FloatArray:
        """`[N, S]`: accuracy won since the stage was entered [pp]."""
        return self.accuracy - self.accuracy_start


@cache
def _is_one_of(stages: tuple[Stage, ...]) -> BoolArray:
    """For every stage: is it one of these? A table, since the question is asked forty times a step."""
    return np.array([stage in stages for stage in Stage], dtype=np.bool_)


def empty(num_hosts: int, num_slots: int) -> SlotState:
    """Every slot dormant, and nothing measured."""

    def filled(value: float, kind: type[np.generic]) -> npt.NDArray[Any]:
        return np.full((num_hosts, num_slots), value, dtype=kind)

    return SlotState(
        stage=filled(Stage.DORMANT, np.int64),
        blueprint=filled(-1, np.int64),
        blend=filled(0, np.int64),
        alpha=filled(0, np.float32),
        ramp_start=filled(0, np.float32),
        ramp_target=filled(0, np.float32),
        ramp_done=filled(0, np.int64),
        ramp_total=filled(0, np.int64),
        ramp_curve=filled(0, np.int64),
        dying=filled(False, np.bool_),
        stage_age=filled(0, np.int64),
        seed_age=filled(0, np.int64),
        accuracy=filled(np.nan, np.float32),
        accuracy_start=filled(np.nan, np.float32),
        contribution=filled(0, np.float32),
        contribution_error=filled(0, np.float32),
        measured=filled(False, np.bool_),
        fresh=filled(False, np.bool_),
        velocity=filled(np.nan, np.float32),
        gradient_ratio=filled(np.nan, np.float32),
        gradient_norm=filled(np.nan, np.float32),
    )
