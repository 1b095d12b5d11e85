"""What the controller sees: one table of features, from which the vector, its size, its names and the docs come.

Scales are fixed, so that rollout and update see the same numbers and nothing has to be remembered. "Never measured" has a bit of
its own and is not a zero in disguise. The controller sees neither the reward nor the instance.
"""

# N hosts, S slots, K blueprints

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.population.roles import Blend
from esper.population.stages import OCCUPIED, Mode, Op, SlotState, Stage

FloatArray = npt.NDArray[np.float32]
HISTORY = 3
"""Epochs of accuracy that are seen besides the last one."""
LEAST_POTENTIAL = 1e-8
"""Growth potential that is seen as nothing much [nats per unit of learning rate]."""
LOG_UNIT = 10.0
"""What a potential's logarithm is divided by, to be of order one."""


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
    potential_NSK: FloatArray
    """Growth potential of each blueprint, NaN where it is not known [nats per unit of learning rate]."""
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


def _blend(blend: Blend) -> Feature:
    return Feature(
        f"blend_{blend.name.lower()}",
        "is this how the seed is blended in?",
        lambda v: v.state.within(*OCCUPIED) & (v.state.blend == blend),
    )


def best_potential(potential_NSK: FloatArray) -> FloatArray:
    """`[N, S]`: growth potential of the best blueprint of which it is known, NaN where there is none."""
    return np.fmax.reduce(potential_NSK, axis=2)


def log_potential(potential: FloatArray) -> FloatArray:
    """Growth potential x [nats per unit of learning rate] as it is seen, log(1 + x / 1e-8) / 10: 0 is none, 1 is 2.2e-4."""
    return (np.log1p(np.minimum(potential, 1e6) / LEAST_POTENTIAL) / LOG_UNIT).astype(np.float32)


def potential_seen(feature: FloatArray) -> FloatArray:
    """Undoes `log_potential`."""
    return (LEAST_POTENTIAL * np.expm1(LOG_UNIT * feature)).astype(np.float32)


def _best_log(v: HostView) -> FloatArray:
    return log_potential(best_potential(v.potential_NSK))


def _relative_log(v: HostView) -> npt.NDArray[Any]:
    logs = _best_log(v)
    known = ~np.isnan(logs)
    mean = np.where(known, logs, 0.0).sum(axis=1, keepdims=True) / np.maximum(known.sum(axis=1, keepdims=True), 1)
    return _known(LOG_UNIT * (logs - mean), logs)


def _potential_of(name: str, rank: int) -> Feature:
    return Feature(
        f"potential_of_{name}",
        f"growth potential of {name} in the same way; 0 where it is not known",
        lambda v: _known(log_potential(v.potential_NSK[:, :, rank]), v.potential_NSK[:, :, rank]),
    )


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
    Feature("alpha_target", "where alpha goes or stays, also before it starts", lambda v: v.state.ramp_target),
    Feature("alpha_up", "is alpha on its way up?", lambda v: v.state.mode == Mode.UP),
    Feature("alpha_down", "is alpha on its way down?", lambda v: v.state.mode == Mode.DOWN),
    Feature(
        "time_to_target",
        "host epochs until alpha is there; 1 is 8, 0 where it does not move",
        lambda v: np.where(v.state.moving, v.state.ramp_total - v.state.ramp_done, 0) / 8,
    ),
    Feature("dying", "does the ramp end in the seed's removal?", lambda v: v.state.dying),
    *(_blend(blend) for blend in Blend),
    Feature("stage_age", "host epochs in the stage; 1 is an episode", lambda v: v.state.stage_age / v.num_steps),
    Feature("seed_age", "host epochs since germination; 1 is an episode", lambda v: v.state.seed_age / v.num_steps),
    Feature("contribution", "accuracy with the seed minus without; 1 is 50 pp", lambda v: v.state.contribution / 50),
    Feature("contribution_error", "its standard error; 1 is 5 pp", lambda v: v.state.contribution_error / 5),
    Feature("contribution_measured", "has it been measured?", lambda v: v.state.measured),
    Feature(
        "improvement",
        "accuracy won in the stage; 1 is 50 pp, 0 where there is no seed",
        lambda v: np.where(v.state.within(*OCCUPIED), v.state.improvement / 50, 0),
    ),
    Feature(
        "gradient_ratio",
        "gradient of the seed over the host's, a parameter; 1 is 10 or more, 0 where not measured",
        lambda v: _known(np.minimum(v.state.gradient_ratio, 10) / 10, v.state.gradient_ratio),
    ),
    Feature("gradient_measured", "has it been measured?", lambda v: ~np.isnan(v.state.gradient_ratio)),
    Feature(
        "potential",
        "growth potential x of the best blueprint, as log(1 + 1e8 x) / 10: 1 is 2.2e-4; 0 where it is not known",
        lambda v: _known(_best_log(v), _best_log(v)),
    ),
    Feature("potential_relative", "its natural logarithm, minus the mean of that over slots", _relative_log),
    Feature("potential_measured", "is it known?", lambda v: ~np.isnan(_best_log(v))),
    Feature("params", "parameters of the seed; 1 is a host's size", lambda v: v.params_NS / v.host_params),
)


def slot_table(blueprints: Sequence[str]) -> tuple[Feature, ...]:
    """The features of a slot where these blueprints are offered: `SLOT_FEATURES`, and the potential of each."""
    return (*SLOT_FEATURES, *(_potential_of(name, rank) for rank, name in enumerate(blueprints)))


def host_features(view: HostView) -> FloatArray:
    """`[N, D]` in the order of `HOST_FEATURES`."""
    return np.stack([feature.extract(view) for feature in HOST_FEATURES], axis=-1, dtype=np.float32, casting="unsafe")


def slot_features(view: HostView, blueprints: Sequence[str]) -> FloatArray:
    """`[N, S, F]` in the order of `slot_table`."""
    return np.stack([one.extract(view) for one in slot_table(blueprints)], axis=-1, dtype=np.float32, casting="unsafe")
