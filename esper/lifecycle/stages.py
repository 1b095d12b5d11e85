"""Stages, operations, and the state of all slots."""

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
    """Stage of a slot."""

    DORMANT = 0
    """Empty."""
    GERMINATED = 1
    """Holds a seed that is not in the forward pass yet."""
    TRAINING = 2
    """The seed learns behind the host without changing its output (without incubation it is active at once)."""
    BLENDING = 3
    """Alpha moves to its target, or stays at a target below 1."""
    HOLDING = 4
    """Alpha is 1; the seed awaits the decision to keep it."""
    FOSSILIZED = 5
    """Kept permanently."""
    PRUNED = 6
    """Removed in this step."""
    EMBARGOED = 7
    """Empty and temporarily closed."""

    def __str__(self) -> str:
        """Return the name, as in `training`."""
        return self.name.lower()


class Op(IntEnum):
    """Operations of a controller, one per host and host epoch."""

    WAIT = 0
    GERMINATE = 1
    SET_ALPHA_TARGET = 2
    PRUNE = 3
    FOSSILIZE = 4
    ADVANCE = 5


class Mode(IntEnum):
    """Direction in which alpha moves."""

    DOWN = -1
    HOLD = 0
    UP = 1


LIVE = (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING)
"""Stages in which a seed may be pruned."""
OCCUPIED = (*LIVE, Stage.FOSSILIZED)
TAKES_PART = (Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)
"""Stages in which the seed is computed."""
BLENDED = (Stage.BLENDING, Stage.HOLDING)
"""Stages in which a controller may move alpha."""


@dataclass(slots=True)
class SlotState:
    """State of all slots, one array `[N, S]` per field. Unmeasured values are NaN, except contributions, which are 0."""

    stage: IntArray
    """`Stage` of the slot."""
    blueprint: IntArray
    """Index of the blueprint, -1 for none."""
    blend: IntArray
    """`Blend` of the seed, fixed at birth."""
    alpha: FloatArray
    """Blend weight in [0, 1]."""
    ramp_start: FloatArray
    """Alpha at the start of the ramp; before blending, of the coming ramp."""
    ramp_target: FloatArray
    """Alpha at the end of the ramp."""
    ramp_done: IntArray
    """Completed ticks of the ramp [host epochs]."""
    ramp_total: IntArray
    """Length of the ramp [host epochs]."""
    ramp_curve: IntArray
    """`Curve` of the ramp."""
    dying: BoolArray
    """True if the ramp ends in the seed's removal."""
    stage_age: IntArray
    """Age of the stage [host epochs trained in it]."""
    seed_age: IntArray
    """Age of the seed since germination [host epochs]."""
    accuracy: FloatArray
    """Last validation accuracy of the host [%], repeated for all of its slots."""
    accuracy_start: FloatArray
    """Validation accuracy when the stage was entered [%]."""
    contribution: FloatArray
    """Accuracy with the seed minus without it [pp]; 0 where not measured."""
    contribution_error: FloatArray
    """Standard error of the contribution [pp]."""
    measured: BoolArray
    """True if the contribution of this seed was ever measured."""
    gradient_ratio: FloatArray
    """Ratio of the seed's to its host's gradient per parameter in the last epoch; see `gates.min_gradient_ratio`."""
    gradient_norm: FloatArray
    """Norm of the seed's gradient in the last epoch, before clipping; mean over steps [nats per unit of weight]."""

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays by name."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    def of(self, rows: slice | npt.NDArray[np.integer[Any]]) -> "SlotState":
        """Return the state of some of the hosts."""
        return SlotState(**{name: array[rows] for name, array in self.arrays().items()})

    def within(self, *stages: Stage) -> BoolArray:
        """Return which slots are in one of these stages `[N, S]`."""
        return _is_one_of(stages)[self.stage]

    @property
    def moving(self) -> BoolArray:
        """True where alpha has not reached its target `[N, S]`."""
        return self.within(Stage.BLENDING) & (self.ramp_done < self.ramp_total)

    @property
    def mode(self) -> IntArray:
        """`Mode` of each slot `[N, S]`, derived from the ramp."""
        return np.where(self.moving, np.sign(self.ramp_target - self.ramp_start), Mode.HOLD).astype(np.int64)

    @property
    def improvement(self) -> FloatArray:
        """Accuracy gained since the stage was entered `[N, S]` [pp]."""
        return self.accuracy - self.accuracy_start


@cache
def _is_one_of(stages: tuple[Stage, ...]) -> BoolArray:
    """Return for every stage whether it is one of these; cached, since a step looks this up forty times."""
    return np.array([stage in stages for stage in Stage], dtype=np.bool_)


_DTYPES: dict[Any, Any] = {IntArray: np.int64, FloatArray: np.float32, BoolArray: np.bool_}
_UNKNOWN = ("accuracy", "accuracy_start", "gradient_ratio", "gradient_norm")
"""Fields that are NaN before their first measurement."""


def empty(num_hosts: int, num_slots: int) -> SlotState:
    """Return dormant slots without measurements."""
    initial = {"blueprint": EMPTY} | dict.fromkeys(_UNKNOWN, np.nan)
    shape = (num_hosts, num_slots)
    return SlotState(**{one.name: np.full(shape, initial.get(one.name, 0), _DTYPES[one.type]) for one in fields(SlotState)})
