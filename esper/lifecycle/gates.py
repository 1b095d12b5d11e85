"""What a seed must have shown before it may go on: the `gates` group, and the gates as pure functions on arrays.

A gate that asks for a measurement stays shut until it was made: NaN passes nothing.
"""

# N hosts, S slots

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.lifecycle.stages import BoolArray, FloatArray, SlotState, Stage


@dataclass(kw_only=True, slots=True)
class GatesConfig:
    """Open to every seed that is in its stage: only what a gate cannot do without is asked for."""

    min_training: int = 1
    """Host epochs a seed trains before it may blend, at least 1. More is safer and costs horizon."""
    min_improvement: float | None = None
    """Accuracy the host won while the seed trained, before the seed may blend [pp]; null asks for none. Higher is stricter."""
    min_gradient_ratio: float | None = None
    """Gradient per parameter of the seed over that of its host, in the last epoch, before it may blend [1], at least 0; null does
    not ask. Higher lets through only seeds that still learn fast."""
    max_gradient_norm: float | None = None
    """Norm of the seed's gradient in the last epoch above which it may not blend [nats per unit of weight], above 0; null does
    not ask. Lower is stricter."""
    min_blending: int = 0
    """Host epochs a seed is in blending before it may hold, at least 0. More is safer and costs horizon."""
    min_contribution: float | None = None
    """Contribution a seed must have to be fossilized [pp]; null asks only that it was measured. Higher is stricter."""
    contribution_z: float = 0.0
    """Standard errors that are taken off the contribution before `min_contribution` is asked, at least 0. 1.64 keeps out 95 % of
    the seeds that contribute just as little as is asked."""

    def __post_init__(self) -> None:
        for name, least in (("min_training", 1), ("min_blending", 0), ("contribution_z", 0), ("min_gradient_ratio", 0)):
            value = getattr(self, name)
            if value is not None and not least <= value < math.inf:
                raise ValueError(f"gates.{name} must be finite and at least {least}, got {value}")
        if self.max_gradient_norm is not None and not 0 < self.max_gradient_norm < math.inf:
            raise ValueError(f"gates.max_gradient_norm must be finite and above 0 or null, got {self.max_gradient_norm}")
        for name in ("min_improvement", "min_contribution"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ValueError(f"gates.{name} must be finite or null, got {value}: null does not ask")
        if self.contribution_z > 0 and self.min_contribution is None:
            raise ValueError(
                f"gates.contribution_z={self.contribution_z} has no effect without a threshold: set gates.min_contribution=0 too"
            )


@dataclass(kw_only=True, slots=True)
class StrictConfig(GatesConfig):
    """Long trials and thresholds: a seed must have been seen to learn, to blend, and to contribute beyond doubt. It takes 22 host
    epochs at least, so that steps should be well above that."""

    min_training: int = 10
    min_improvement: float | None = 0.5
    min_gradient_ratio: float | None = 0.1
    max_gradient_norm: float | None = 10.0
    min_blending: int = 10
    min_contribution: float | None = 1.0
    contribution_z: float = 1.64


def may_blend(state: SlotState, gates: GatesConfig) -> BoolArray:
    """`[N, S]`: the gate out of training, to blending; without incubation, to holding.

    Open where the seed trained for `min_training` epochs, and the host improved, and the seed's gradient was neither too small
    beside its host's nor too large, as far as the config asks.
    """
    trained = state.within(Stage.TRAINING) & (state.stage_age >= gates.min_training)
    calm = True if gates.max_gradient_norm is None else state.gradient_norm <= gates.max_gradient_norm
    return (
        trained
        & _at_least(state.improvement, gates.min_improvement)
        & _at_least(state.gradient_ratio, gates.min_gradient_ratio)
        & calm
    )


def may_hold(state: SlotState, gates: GatesConfig) -> BoolArray:
    """`[N, S]`: the gate out of blending, to holding.

    Open where the ramp is over, its target is 1, and the seed was in blending for `min_blending` epochs. A seed with a target
    below 1 stays in blending until it is given another: only what is fully in is judged, and kept.
    """
    full = (state.ramp_done >= state.ramp_total) & (state.ramp_target == 1.0)
    return state.within(Stage.BLENDING) & full & (state.stage_age >= gates.min_blending)


def may_fossilize(state: SlotState, gates: GatesConfig) -> BoolArray:
    """`[N, S]`: the gate out of holding, to fossilized.

    Open where the contribution was measured, and contribution - z * standard error >= `min_contribution`, if that is asked.
    """
    worth = state.contribution - gates.contribution_z * state.contribution_error
    return state.within(Stage.HOLDING) & state.measured & _at_least(worth, gates.min_contribution)


def gate_open(state: SlotState, gates: GatesConfig) -> BoolArray:
    """`[N, S]`: may a seed that is germinated, training or blending go on to its next stage? Out of the first it always may."""
    return state.within(Stage.GERMINATED) | may_blend(state, gates) | may_hold(state, gates)


def _at_least(value: npt.NDArray[np.floating[Any]], threshold: float | None) -> BoolArray | bool:
    return True if threshold is None else np.isfinite(value) & (value >= threshold)


def gradient_ratio(
    seed_norm_NS: FloatArray, host_norm_N: FloatArray, params_NS: npt.NDArray[Any], host_params: int
) -> FloatArray:
    """How strongly a seed learns beside its host, per parameter, `[N, S]`; NaN where its gradient was not measured.

    r = (|g_seed| / |g_host|) * sqrt(P_host / P_seed), the ratio of their root mean square gradients; 0 where |g_host| < 1e-8.

    Args:
        seed_norm_NS: norms of the seeds' gradients, NaN where none learnt.
        host_norm_N: norms of the hosts' gradients.
        params_NS: parameters of the seeds.
        host_params: parameters of a host.
    """
    host_N1 = host_norm_N[:, None]
    known = np.isfinite(seed_norm_NS) & np.isfinite(host_N1) & (params_NS > 0)
    ratio = np.where(known, seed_norm_NS, 0.0) / np.maximum(host_N1, 1e-8) * np.sqrt(host_params / np.maximum(params_NS, 1))
    return np.where(known, np.where(host_N1 < 1e-8, 0.0, ratio), np.nan).astype(np.float32)
