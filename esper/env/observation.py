"""The observation of the controller: one table of features gives the vectors, their sizes and names, the docs and the tests.

A feature is a quantity, and the scaling that makes it a network input. An extractor returns the quantity in its unit; scale,
range and fill value are data, which `FeatureTable` applies to all features at once. Scales are fixed, so that rollout and update
see the same numbers without state. "Never measured" differs from zero. The observation contains neither reward nor instance.
"""

# N hosts, S slots, K blueprints, F features of a table

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from esper.env.spec import Ranges
from esper.lifecycle.roles import Blend
from esper.lifecycle.stages import OCCUPIED, FloatArray, Mode, Op, SlotState, Stage
from esper.text import counted

HISTORY = 3
"""Past epochs of accuracy in the observation."""
LEAST_POTENTIAL = 1e-8
"""Growth potential where its logarithm starts to rise [nats per unit of learning rate]."""
MOST_POTENTIAL = 1e6
"""Growth potential above which the feature saturates [nats per unit of learning rate]."""
LOG_UNIT = 10.0
"""Scale of the logarithm of a potential, which makes it of order one."""


class HostView(Protocol):
    """The part of an environment from which the features of N hosts are computed."""

    time: int
    """Host epochs so far."""
    num_steps: int
    accuracy_NH: FloatArray
    """Validation accuracy now and 1, 2, 3 epochs ago [%]; NaN before it was measured."""
    loss_N: FloatArray
    """Validation loss [nats; for numeric targets, the loss of targets standardized over training]."""
    chance_loss: float
    """Loss of a guess that ignores the input."""
    state: SlotState
    potential_NSK: FloatArray
    """Growth potential of each blueprint, NaN where unknown [nats per unit of learning rate]."""
    host_params: int
    max_seeds: int
    """Maximum number of seeds per host; the number of slots in use if there is no cap."""
    op_N: npt.NDArray[np.int64]
    """Operation carried out in the last step; WAIT at the start."""
    refused_N: npt.NDArray[np.bool_]
    """Hosts whose last action was refused."""
    foresight_NF: FloatArray
    """Features of the events in the timetables; without columns unless `env.timetable` is set."""

    @property
    def params_NS(self) -> npt.NDArray[np.int64]: ...


class RunScale(StrEnum):
    """A scale that depends on the run: an attribute of `HostView`."""

    num_steps = "an episode"
    chance_loss = "a guess that ignores the input: ln(number of classes), or the loss of the mean target"
    host_params = "a host without seeds"
    max_seeds = "the seed cap, or without one the slots in use"


@dataclass(frozen=True, slots=True)
class Feature:
    """One number per host, or one per slot."""

    name: str
    meaning: str
    extract: Callable[[HostView], npt.NDArray[Any]]
    """The quantity in its unit, `[N]` or `[N, S]`; NaN where it was never measured."""
    unit: str = ""
    """Empty for flags, which are 1 or 0."""
    scale: float | RunScale = 1.0
    """Divisor, in that unit."""
    low: float = 0.0
    high: float = 1.0
    """Clipping range after scaling."""
    fill: float = 0.0
    """Value where the quantity was never measured, or is NaN."""
    indicators: tuple[str, ...] = ()
    """Features of the same table that tell `fill` from a measured value; empty where the quantity is always measured."""


class FeatureTable:
    """Features as arrays, so that scaling, clipping and filling apply to all of them at once."""

    def __init__(self, features: Sequence[Feature]) -> None:
        self.features = tuple(features)
        self.names = tuple(feature.name for feature in features)
        self.low_F, self.high_F, self.fill_F = (
            np.array([getattr(feature, key) for feature in features], np.float32) for key in ("low", "high", "fill")
        )
        scales = [(rank, feature.scale) for rank, feature in enumerate(features)]
        self.scale_F = np.array([1.0 if isinstance(scale, RunScale) else scale for _, scale in scales], np.float32)
        self.run_scales = [(rank, scale.name) for rank, scale in scales if isinstance(scale, RunScale)]

    @property
    def ranges(self) -> Ranges:
        """Lowest and highest value of each feature."""
        return tuple((feature.low, feature.high) for feature in self.features)

    def values(self, view: HostView) -> FloatArray:
        """Return `[N, F]` or `[N, S, F]`: finite and within the ranges of the table, whatever the view holds."""
        scale_F = self.scale_F.copy()
        for rank, name in self.run_scales:
            scale_F[rank] = getattr(view, name)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):  # diverged hosts hold anything
            value = np.stack([one.extract(view) for one in self.features], axis=-1, dtype=np.float32, casting="unsafe")
            value /= scale_F
        np.copyto(value, self.fill_F, where=np.isnan(value))
        return np.clip(value, self.low_F, self.high_F, out=value)


# ---- the features


def _past(ago: int) -> list[Feature]:
    known = f"accuracy_{ago}_ago_known"
    return [
        Feature(
            f"accuracy_{ago}_ago",
            f"validation accuracy {counted(ago, 'epoch')} ago",
            lambda v: v.accuracy_NH[:, ago],
            unit="%",
            scale=100.0,
            indicators=(known,),
        ),
        Feature(known, "that accuracy was measured", lambda v: ~np.isnan(v.accuracy_NH[:, ago])),
    ]


def _last_op(op: Op) -> Feature:
    meaning = f"{op.name} was carried out in the last step"
    return Feature(f"last_op_{op.name.lower()}", meaning, lambda v: v.op_N == op)


def _stage(stage: Stage) -> Feature:
    meaning = f"the slot is in stage {stage.name.lower()}"
    return Feature(f"stage_{stage.name.lower()}", meaning, lambda v: v.state.stage == stage)


def _blend(blend: Blend) -> Feature:
    return Feature(
        f"blend_{blend.name.lower()}",
        "the seed is blended in this way",
        lambda v: v.state.within(*OCCUPIED) & (v.state.blend == blend),
    )


def best_potential(potential_NSK: FloatArray) -> FloatArray:
    """Return the growth potential of the best blueprint `[N, S]`, NaN where none is known."""
    return np.fmax.reduce(potential_NSK, axis=2)


def log_potential(potential: FloatArray) -> FloatArray:
    """Return log(1 + x / 1e-8) / 10 of growth potential x [nats per unit of learning rate]: 0 is none, 1 is 2.2e-4."""
    return (_log(potential) / LOG_UNIT).astype(np.float32)


def exp_potential(feature: FloatArray) -> FloatArray:
    """Invert `log_potential`."""
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
        f"potential_of_{name}",
        f"growth potential x of {name}; 0 also where it cannot grow",
        lambda v: _log(v.potential_NSK[:, :, rank]),
        unit=_POTENTIAL_UNIT,
        scale=LOG_UNIT,
        high=_MOST_SEEN,
        indicators=("potential_measured",),
    )


HOST_FEATURES: tuple[Feature, ...] = (
    Feature(
        "time_left",
        "time left in the episode",
        lambda v: np.full(len(v.loss_N), v.num_steps - v.time),
        unit="host epochs",
        scale=RunScale.num_steps,
    ),
    Feature("accuracy", "validation accuracy, or R2 of numeric targets", lambda v: v.accuracy_NH[:, 0], unit="%", scale=100.0),
    Feature(
        "loss",
        "validation loss; the upper bound where it is NaN",
        lambda v: v.loss_N,
        unit="nats",
        scale=RunScale.chance_loss,
        high=5.0,
        fill=5.0,
    ),
    *(feature for ago in range(1, HISTORY + 1) for feature in _past(ago)),
    Feature(
        "seeds_left",
        "seeds that the host may hold besides those it has",
        lambda v: v.max_seeds - v.state.within(*OCCUPIED).sum(axis=1),
        unit="seeds",
        scale=RunScale.max_seeds,
    ),
    *(_last_op(op) for op in Op),
    Feature("last_refused", "the last action was refused", lambda v: v.refused_N),
)

SLOT_FEATURES: tuple[Feature, ...] = (
    *(_stage(stage) for stage in Stage),
    Feature("alpha", "blend weight", lambda v: v.state.alpha, unit="1"),
    Feature("alpha_target", "target of alpha, also before the ramp starts", lambda v: v.state.ramp_target, unit="1"),
    Feature("alpha_up", "alpha is rising", lambda v: v.state.mode == Mode.UP),
    Feature("alpha_down", "alpha is falling", lambda v: v.state.mode == Mode.DOWN),
    Feature(
        "time_to_target",
        "time until alpha reaches its target; 0 where it does not move",
        lambda v: np.where(v.state.moving, v.state.ramp_total - v.state.ramp_done, 0),
        unit="host epochs",
        scale=8.0,
    ),
    Feature("dying", "the ramp ends in the seed's removal", lambda v: v.state.dying),
    *(_blend(blend) for blend in Blend),
    Feature("stage_age", "time in the stage", lambda v: v.state.stage_age, unit="host epochs", scale=RunScale.num_steps),
    Feature("seed_age", "time since germination", lambda v: v.state.seed_age, unit="host epochs", scale=RunScale.num_steps),
    Feature(
        "contribution",
        "validation accuracy with the seed minus without",
        lambda v: np.where(v.state.measured, v.state.contribution, np.nan),
        unit="pp",
        scale=50.0,
        low=-2.0,
        high=2.0,
        indicators=("contribution_measured",),
    ),
    Feature(
        "contribution_error",
        "standard error of the contribution",
        lambda v: np.where(v.state.measured, v.state.contribution_error, np.nan),
        unit="pp",
        scale=5.0,
        high=4.0,
        indicators=("contribution_measured",),
    ),
    Feature("contribution_measured", "the contribution was measured", lambda v: v.state.measured),
    Feature(
        "improvement",
        "validation accuracy gained by the host while the seed is in the stage",
        lambda v: np.where(v.state.within(*OCCUPIED), v.state.improvement, np.nan),
        unit="pp",
        scale=50.0,
        low=-2.0,
        high=2.0,
        indicators=tuple(f"stage_{stage.name.lower()}" for stage in OCCUPIED),
    ),
    Feature(
        "gradient_ratio",
        "gradient of the seed over that of the host, per parameter",
        lambda v: v.state.gradient_ratio,
        unit="1",
        scale=10.0,
        indicators=("gradient_measured",),
    ),
    Feature("gradient_measured", "the gradient ratio was measured", lambda v: ~np.isnan(v.state.gradient_ratio)),
    Feature(
        "potential",
        "growth potential x of the best blueprint",
        lambda v: _log(best_potential(v.potential_NSK)),
        unit=_POTENTIAL_UNIT,
        scale=LOG_UNIT,
        high=_MOST_SEEN,
        indicators=("potential_measured",),
    ),
    Feature(
        "potential_relative",
        "`potential` minus its mean over the host's slots",
        _relative_log,
        unit="1",
        low=-10.0,
        high=10.0,
        indicators=("potential_measured",),
    ),
    Feature(
        "potential_measured", "the potential of some blueprint is known", lambda v: ~np.isnan(best_potential(v.potential_NSK))
    ),
    Feature(
        "params",
        "parameters of the seed, its gate's included",
        lambda v: v.params_NS,
        unit="parameters",
        scale=RunScale.host_params,
        high=10.0,
    ),
)


def slot_table(blueprints: Sequence[str]) -> tuple[Feature, ...]:
    """Return the features of a slot for these blueprints: `SLOT_FEATURES`, and the potential of each blueprint."""
    return (*SLOT_FEATURES, *(_potential_of(name, rank) for rank, name in enumerate(blueprints)))
