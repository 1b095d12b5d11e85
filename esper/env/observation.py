"""What the controller sees: one table of features, from which the vector, its size, its names, its docs and its tests come.

Scales are fixed, so that rollout and update see the same numbers and nothing has to be remembered. "Never measured" differs from
zero. The controller sees neither the reward nor the instance.
"""

# N hosts, S slots, K blueprints

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.env.features import Feature, FloatArray, HostView, Plan, Yardstick
from esper.lifecycle.roles import Blend
from esper.lifecycle.stages import OCCUPIED, Mode, Op, Stage

HISTORY = 3
"""Epochs of accuracy that are seen besides the last one."""
LEAST_POTENTIAL = 1e-8
"""Growth potential that is seen as nothing much [nats per unit of learning rate]."""
MOST_POTENTIAL = 1e6
"""Growth potential above which nothing more is seen [nats per unit of learning rate]."""
LOG_UNIT = 10.0
"""What a potential's logarithm is divided by, to be of order one."""


def _past(ago: int) -> list[Feature]:
    known = f"accuracy_{ago}_ago_known"
    return [
        Feature(
            name=f"accuracy_{ago}_ago",
            meaning=f"validation accuracy {ago} epoch{'s' * (ago > 1)} ago",
            extract=lambda v: v.accuracy_NH[:, ago],
            unit="pp",
            one=100.0,
            told_by=(known,),
        ),
        Feature(name=known, meaning="did it exist?", extract=lambda v: ~np.isnan(v.accuracy_NH[:, ago])),
    ]


def _last_op(op: Op) -> Feature:
    meaning = "was this carried out in the last step?"
    return Feature(name=f"last_op_{op.name.lower()}", meaning=meaning, extract=lambda v: v.op_N == op)


def _stage(stage: Stage) -> Feature:
    meaning = "is the slot in this stage?"
    return Feature(name=f"stage_{stage.name.lower()}", meaning=meaning, extract=lambda v: v.state.stage == stage)


def _blend(blend: Blend) -> Feature:
    return Feature(
        name=f"blend_{blend.name.lower()}",
        meaning="is this how the seed is blended in?",
        extract=lambda v: v.state.within(*OCCUPIED) & (v.state.blend == blend),
    )


def best_potential(potential_NSK: FloatArray) -> FloatArray:
    """`[N, S]`: growth potential of the best blueprint of which it is known, NaN where there is none."""
    return np.fmax.reduce(potential_NSK, axis=2)


def log_potential(potential: FloatArray) -> FloatArray:
    """Growth potential x [nats per unit of learning rate] as it is seen, log(1 + x / 1e-8) / 10: 0 is none, 1 is 2.2e-4."""
    return (_log(potential) / LOG_UNIT).astype(np.float32)


def potential_seen(feature: FloatArray) -> FloatArray:
    """Undoes `log_potential`."""
    return (LEAST_POTENTIAL * np.expm1(LOG_UNIT * feature)).astype(np.float32)


def _log(potential: FloatArray) -> FloatArray:
    return np.log1p(np.minimum(potential, MOST_POTENTIAL) / LEAST_POTENTIAL)


def _relative_log(v: HostView) -> npt.NDArray[Any]:
    logs = log_potential(best_potential(v.potential_NSK))
    known = ~np.isnan(logs)
    mean = np.where(known, logs, 0.0).sum(axis=1, keepdims=True) / np.maximum(known.sum(axis=1, keepdims=True), 1)
    return LOG_UNIT * (logs - mean)


_POTENTIAL_UNIT = f"ln(1 + x / {LEAST_POTENTIAL:g}), x in nats per unit of learning rate"
_MOST_SEEN = float(np.log1p(MOST_POTENTIAL / LEAST_POTENTIAL)) / LOG_UNIT


def _potential_of(name: str, rank: int) -> Feature:
    return Feature(
        name=f"potential_of_{name}",
        meaning=f"growth potential x of {name}; 0 too where it cannot grow, since nothing can be gained",
        extract=lambda v: _log(v.potential_NSK[:, :, rank]),
        unit=_POTENTIAL_UNIT,
        one=LOG_UNIT,
        high=_MOST_SEEN,
        told_by=("potential_measured",),
    )


HOST_FEATURES: tuple[Feature, ...] = (
    Feature(
        name="time_left",
        meaning="what is ahead of the episode",
        extract=lambda v: np.full(len(v.loss_N), v.num_steps - v.step),
        unit="host epochs",
        one=Yardstick.num_steps,
    ),
    Feature(name="accuracy", meaning="validation accuracy", extract=lambda v: v.accuracy_NH[:, 0], unit="pp", one=100.0),
    Feature(
        name="loss",
        meaning="validation loss; of a host whose loss is no number, as bad as can be",
        extract=lambda v: v.loss_N,
        unit="nats",
        one=Yardstick.chance_loss,
        high=5.0,
        unknown=5.0,
    ),
    *(feature for ago in range(1, HISTORY + 1) for feature in _past(ago)),
    Feature(
        name="seeds_left",
        meaning="seeds that the host may still hold besides those it has",
        extract=lambda v: v.max_seeds - v.state.within(*OCCUPIED).sum(axis=1),
        unit="seeds",
        one=Yardstick.max_seeds,
    ),
    *(_last_op(op) for op in Op),
    Feature(name="last_refused", meaning="was the last action refused?", extract=lambda v: v.refused_N),
)

SLOT_FEATURES: tuple[Feature, ...] = (
    *(_stage(stage) for stage in Stage),
    Feature(name="alpha", meaning="blend weight", extract=lambda v: v.state.alpha, unit="1"),
    Feature(
        name="alpha_target",
        meaning="where alpha goes or stays, also before it starts",
        extract=lambda v: v.state.ramp_target,
        unit="1",
    ),
    Feature(name="alpha_up", meaning="is alpha on its way up?", extract=lambda v: v.state.mode == Mode.UP),
    Feature(name="alpha_down", meaning="is alpha on its way down?", extract=lambda v: v.state.mode == Mode.DOWN),
    Feature(
        name="time_to_target",
        meaning="time until alpha is there; 0 where it does not move",
        extract=lambda v: np.where(v.state.moving, v.state.ramp_total - v.state.ramp_done, 0),
        unit="host epochs",
        one=8.0,
    ),
    Feature(name="dying", meaning="does the ramp end in the seed's removal?", extract=lambda v: v.state.dying),
    *(_blend(blend) for blend in Blend),
    Feature(
        name="stage_age",
        meaning="time in the stage",
        extract=lambda v: v.state.stage_age,
        unit="host epochs",
        one=Yardstick.num_steps,
    ),
    Feature(
        name="seed_age",
        meaning="time since germination",
        extract=lambda v: v.state.seed_age,
        unit="host epochs",
        one=Yardstick.num_steps,
    ),
    Feature(
        name="contribution",
        meaning="validation accuracy with the seed minus without",
        extract=lambda v: np.where(v.state.measured, v.state.contribution, np.nan),
        unit="pp",
        one=50.0,
        low=-2.0,
        high=2.0,
        told_by=("contribution_measured",),
    ),
    Feature(
        name="contribution_error",
        meaning="its standard error",
        extract=lambda v: np.where(v.state.measured, v.state.contribution_error, np.nan),
        unit="pp",
        one=5.0,
        high=4.0,
        told_by=("contribution_measured",),
    ),
    Feature(name="contribution_measured", meaning="has it been measured?", extract=lambda v: v.state.measured),
    Feature(
        name="improvement",
        meaning="validation accuracy that the host won while the seed is in the stage",
        extract=lambda v: np.where(v.state.within(*OCCUPIED), v.state.improvement, np.nan),
        unit="pp",
        one=50.0,
        low=-2.0,
        high=2.0,
        told_by=tuple(f"stage_{stage.name.lower()}" for stage in OCCUPIED),
    ),
    Feature(
        name="gradient_ratio",
        meaning="gradient of the seed over the host's, a parameter",
        extract=lambda v: v.state.gradient_ratio,
        unit="1",
        one=10.0,
        told_by=("gradient_measured",),
    ),
    Feature(name="gradient_measured", meaning="has it been measured?", extract=lambda v: ~np.isnan(v.state.gradient_ratio)),
    Feature(
        name="potential",
        meaning="growth potential x of the best blueprint",
        extract=lambda v: _log(best_potential(v.potential_NSK)),
        unit=_POTENTIAL_UNIT,
        one=LOG_UNIT,
        high=_MOST_SEEN,
        told_by=("potential_measured",),
    ),
    Feature(
        name="potential_relative",
        meaning="the same logarithm, minus its mean over the host's slots",
        extract=_relative_log,
        unit="1",
        low=-10.0,
        high=10.0,
        told_by=("potential_measured",),
    ),
    Feature(
        name="potential_measured",
        meaning="is the potential of a blueprint known?",
        extract=lambda v: ~np.isnan(best_potential(v.potential_NSK)),
    ),
    Feature(
        name="params",
        meaning="parameters of the seed, its gate's included",
        extract=lambda v: v.params_NS,
        unit="parameters",
        one=Yardstick.host_params,
        high=10.0,
    ),
)


def slot_table(blueprints: Sequence[str]) -> tuple[Feature, ...]:
    """The features of a slot where these blueprints are offered: `SLOT_FEATURES`, and the potential of each."""
    return (*SLOT_FEATURES, *(_potential_of(name, rank) for rank, name in enumerate(blueprints)))


_HOST_PLAN = Plan(HOST_FEATURES)


@cache
def _slot_plan(blueprints: tuple[str, ...]) -> Plan:
    return Plan(slot_table(blueprints))


def host_features(view: HostView) -> FloatArray:
    """`[N, D]` in the order of `HOST_FEATURES`."""
    return _HOST_PLAN.seen(view)


def slot_features(view: HostView, blueprints: Sequence[str]) -> FloatArray:
    """`[N, S, F]` in the order of `slot_table`."""
    return _slot_plan(tuple(blueprints)).seen(view)
