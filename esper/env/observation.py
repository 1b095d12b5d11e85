"""What the controller sees: one table of features, from which the vector, its size, its names and the docs come.

Scales are fixed, so that rollout and update see the same numbers and nothing has to be remembered. "Never measured" has a bit of
its own and is not a zero in disguise. The controller sees neither the reward nor the instance.
"""

# N hosts, S slots

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.population.lifecycle import OCCUPIED, Op, SlotState, Stage

FloatArray = npt.NDArray[np.float32]
HISTORY = 3
"""Epochs of accuracy that are seen besides the last one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostView:
    """What is known of N hosts when they are observed."""

    step: int
    """Host epochs behind us."""
    num_steps: int
    accuracy_NH: FloatArray
    """Validation accuracy now and 1, 2, 3 epochs ago [pp]; NaN before it was measured."""
    loss_N: FloatArray
    """Validation loss [nats]."""
    chance_loss: float
    """Loss of a random guess [nats]."""
    state: SlotState
    potential_NS: FloatArray
    """Growth potential, NaN before it was measured."""
    params_NS: npt.NDArray[np.int64]
    host_params: int
    max_seeds: int
    """Seeds a host may hold, the number of slots where there is no cap."""
    op_N: npt.NDArray[np.int64]
    """Operation carried out in the last step; WAIT at the start."""
    refused_N: npt.NDArray[np.bool_]
    """Was the last action refused?"""


@dataclass(frozen=True, slots=True)
class Feature:
    """One number a host, or one a slot."""

    name: str
    meaning: str
    """What 0 and 1 mean."""
    extract: Callable[[HostView], npt.NDArray[Any]]
    """`[N]` or `[N, S]`."""


def _known(values: npt.NDArray[Any], known: FloatArray) -> npt.NDArray[Any]:
    return np.where(np.isnan(known), 0.0, values)


def _past(ago: int) -> list[Feature]:
    return [
        Feature(
            f"accuracy_{ago}_ago",
            f"validation accuracy {ago} epochs ago; 1 is 100 %, 0 where it did not exist",
            lambda v: _known(v.accuracy_NH[:, ago] / 100, v.accuracy_NH[:, ago]),
        ),
        Feature(f"accuracy_{ago}_ago_known", "did it exist?", lambda v: ~np.isnan(v.accuracy_NH[:, ago])),
    ]


def _last_op(op: Op) -> Feature:
    return Feature(f"last_op_{op.name.lower()}", "was this carried out in the last step?", lambda v: v.op_N == op)


def _stage(stage: Stage) -> Feature:
    return Feature(f"stage_{stage.name.lower()}", "is the slot in this stage?", lambda v: v.state.stage == stage)


def _log_potential(v: HostView) -> npt.NDArray[Any]:
    return _known(np.log(v.potential_NS + 1e-6), v.potential_NS)


def _relative_potential(v: HostView) -> npt.NDArray[Any]:
    logs = np.log(v.potential_NS + 1e-6)
    return _known(logs - logs.mean(axis=1, keepdims=True), v.potential_NS)


HOST_FEATURES: tuple[Feature, ...] = (
    Feature("time_left", "share of the episode ahead", lambda v: np.full(len(v.loss_N), 1 - v.step / v.num_steps)),
    Feature("accuracy", "validation accuracy; 1 is 100 %", lambda v: v.accuracy_NH[:, 0] / 100),
    Feature("loss", "validation loss; 1 is a random guess", lambda v: np.minimum(v.loss_N / v.chance_loss, 5.0)),
    *(feature for ago in range(1, HISTORY + 1) for feature in _past(ago)),
    Feature(
        "seeds_left",
        "share of the seed cap that is free",
        lambda v: 1 - v.state.within(*OCCUPIED).sum(axis=1) / v.max_seeds,
    ),
    *(_last_op(op) for op in Op),
    Feature("last_refused", "was the last action refused?", lambda v: v.refused_N),
)

SLOT_FEATURES: tuple[Feature, ...] = (
    *(_stage(stage) for stage in Stage),
    Feature("alpha", "blend weight", lambda v: v.state.alpha),
    Feature("stage_age", "host epochs in the stage; 1 is an episode", lambda v: v.state.stage_age / v.num_steps),
    Feature("seed_age", "host epochs since germination; 1 is an episode", lambda v: v.state.seed_age / v.num_steps),
    Feature("contribution", "accuracy with the seed minus without; 1 is 50 pp", lambda v: v.state.contribution / 50),
    Feature("contribution_error", "its standard error; 1 is 5 pp", lambda v: v.state.contribution_error / 5),
    Feature("contribution_measured", "has it been measured?", lambda v: v.state.measured),
    Feature("potential", "growth potential, natural logarithm; 0 where never measured", _log_potential),
    Feature("potential_relative", "the same, minus its mean over slots", _relative_potential),
    Feature("potential_measured", "has it been measured?", lambda v: ~np.isnan(v.potential_NS)),
    Feature("params", "parameters of the seed; 1 is a host's size", lambda v: v.params_NS / v.host_params),
)


def host_features(view: HostView) -> FloatArray:
    """`[N, D]` in the order of `HOST_FEATURES`."""
    return np.stack([feature.extract(view) for feature in HOST_FEATURES], axis=-1, dtype=np.float32, casting="unsafe")


def slot_features(view: HostView) -> FloatArray:
    """`[N, S, F]` in the order of `SLOT_FEATURES`."""
    return np.stack([feature.extract(view) for feature in SLOT_FEATURES], axis=-1, dtype=np.float32, casting="unsafe")
