"""The `gates` group: conditions for a seed to enter its next stage, as pure functions on arrays, and checks of its config.

A gate with a threshold stays closed until the value is measured: NaN never passes.
"""

# N hosts, S slots

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.lifecycle.roles import Incubation
from esper.lifecycle.slots import SlotsConfig
from esper.lifecycle.stages import BoolArray, FloatArray, SlotState, Stage
from esper.options import Option
from esper.ranges import check_ranges


@dataclass(kw_only=True, slots=True)
class GatesConfig(Option):
    """Minimal gates: no thresholds beyond the required stage."""

    min_training: int = 1
    """Minimum training before a seed may blend, at least 1 [host epochs]. Higher: safer, but uses up the horizon."""
    min_improvement: float | None = None
    """Minimum gain in host accuracy during training before a seed may blend [pp]; null: no threshold. Higher: stricter."""
    min_gradient_ratio: float | None = None
    """Minimum ratio of the seed's gradient to its host's, per parameter in the last epoch, before a seed may blend, at least 0;
    null: no threshold. Higher: only seeds that still learn fast pass."""
    max_gradient_norm: float | None = None
    """Maximum norm of the seed's gradient in the last epoch for it to blend [nats per unit of weight], above 0; null: no
    threshold. Lower: stricter."""
    min_blending: int = 0
    """Minimum blending before a seed may hold, at least 0 [host epochs]. Higher: safer, but uses up the horizon."""
    min_contribution: float | None = None
    """Minimum contribution for a seed to fossilize [pp]; null: any measured contribution. Higher: stricter."""
    contribution_z: float = 0.0
    """Standard errors subtracted from the contribution before the comparison with `min_contribution`, at least 0. 1.64 rejects
    95 % of the seeds whose true contribution equals the threshold. Higher: stricter."""

    def __post_init__(self) -> None:
        ranges = {
            "[1, inf]": ["min_training"],
            "[0, inf]": ["min_blending"],
            "[0, inf)": ["contribution_z", "min_gradient_ratio"],
            "(0, inf)": ["max_gradient_norm"],
            "(-inf, inf)": ["min_improvement", "min_contribution"],
        }
        check_ranges("gates", self, ranges)
        if self.contribution_z > 0 and self.min_contribution is None:
            raise ValueError(
                f"gates.contribution_z={self.contribution_z} has no effect without a threshold: set gates.min_contribution=0 too"
            )


@dataclass(kw_only=True, slots=True)
class StrictConfig(GatesConfig):
    """Long trials with thresholds on learning and contribution. A seed takes at least 22 host epochs, so set steps well above."""

    min_training: int = 10
    min_improvement: float | None = 0.5
    min_gradient_ratio: float | None = 0.1
    max_gradient_norm: float | None = 10.0
    min_blending: int = 10
    min_contribution: float | None = 1.0
    contribution_z: float = 1.64


def may_blend(state: SlotState, gates: GatesConfig) -> BoolArray:
    """Return where the gate out of training is open `[N, S]`: to blending, or to holding without incubation.

    It requires `min_training` epochs, and the configured thresholds on improvement, gradient ratio and gradient norm.
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
    """Return where the gate from blending to holding is open `[N, S]`.

    It requires a finished ramp with target 1, and `min_blending` epochs in blending. A seed with a target below 1 stays in
    blending until it gets another target.
    """
    full = (state.ramp_done >= state.ramp_total) & (state.ramp_target == 1.0) & (state.alpha == 1.0)  # before a tick, it is not
    return state.within(Stage.BLENDING) & full & (state.stage_age >= gates.min_blending)


def may_fossilize(state: SlotState, gates: GatesConfig) -> BoolArray:
    """Return where the gate from holding to fossilized is open `[N, S]`.

    It requires a measured contribution and, with a threshold, contribution - z * standard error >= `min_contribution`.
    """
    worth = state.contribution - gates.contribution_z * state.contribution_error
    return state.within(Stage.HOLDING) & state.measured & _at_least(worth, gates.min_contribution)


def gate_open(state: SlotState, gates: GatesConfig) -> BoolArray:
    """Return where a germinated, training or blending seed may enter its next stage `[N, S]`; a germinated one always may."""
    return state.within(Stage.GERMINATED) | may_blend(state, gates) | may_hold(state, gates)


def _at_least(value: npt.NDArray[np.floating[Any]], threshold: float | None) -> BoolArray | bool:
    return True if threshold is None else np.isfinite(value) & (value >= threshold)


def gradient_ratio(
    seed_norm_NS: FloatArray, host_norm_N: FloatArray, params_NS: npt.NDArray[Any], host_params: int
) -> FloatArray:
    """Return the ratio of a seed's to its host's gradient per parameter `[N, S]`; NaN where it was not measured.

    r = (|g_seed| / |g_host|) * sqrt(P_host / P_seed), the ratio of their root mean square gradients; 0 where |g_host| < 1e-8.

    Args:
        seed_norm_NS: norms of the seeds' gradients, NaN where no seed learned.
        host_norm_N: norms of the hosts' gradients.
        params_NS: number of parameters of each seed.
        host_params: number of parameters of a host.
    """
    host_N1 = host_norm_N[:, None]
    known = np.isfinite(seed_norm_NS) & np.isfinite(host_N1) & (params_NS > 0)
    ratio = np.where(known, seed_norm_NS, 0.0) / np.maximum(host_N1, 1e-8) * np.sqrt(host_params / np.maximum(params_NS, 1))
    return np.where(known, np.where(host_N1 < 1e-8, 0.0, ratio), np.nan).astype(np.float32)


def check_gates(slots: SlotsConfig, gates: GatesConfig, *, frozen: bool, steady: bool) -> None:
    """Raise ValueError if the gate out of training can never open.

    Args:
        frozen: True if hosts are frozen.
        steady: True if the data never changes.
    """
    if frozen and gates.min_gradient_ratio is not None:
        raise ValueError(
            f"gates.min_gradient_ratio={gates.min_gradient_ratio} needs gradients of the host, and host.frozen=true "
            "computes none: set gates.min_gradient_ratio=null"
        )
    least = gates.min_training + ("training" not in slots.auto_advance)  # a germinated seed ages, but does not learn yet
    bounds = {"min_gradient_ratio": gates.min_gradient_ratio, "max_gradient_norm": gates.max_gradient_norm}
    bound = next((f"gates.{key}={bound}" for key, bound in bounds.items() if bound is not None), None)
    if bound is not None and 0 < slots.learning_epochs < least:
        raise ValueError(
            f"{bound} can never be met: gates.min_training={gates.min_training} delays the check until a seed has stopped "
            f"learning (slots.learning_epochs={slots.learning_epochs}) and has no gradient: raise slots.learning_epochs to at "
            f"least {least}, lower gates.min_training, or set {bound.partition('=')[0]}=null"
        )
    behind = frozen and steady and slots.incubation != Incubation.none
    if behind and gates.min_improvement is not None and gates.min_improvement > 0:
        raise ValueError(
            f"gates.min_improvement={gates.min_improvement} can never be met: with host.frozen=true the accuracy stays the same "
            "while seeds train behind the host: set gates.min_improvement=null, or slots.incubation=none"
        )


def shortest_life(slots: SlotsConfig, gates: GatesConfig, ticks: int) -> int:
    """Return the steps from germination to fossilisation, both included, if every gate is passed as soon as it opens.

    A gate that is passed automatically (`slots.auto_advance`) takes no extra step; any other takes the action of a later step.

    Args:
        ticks: length of the seed's first ramp [host epochs].
    """
    auto, incubates = slots.auto_advance, slots.incubation != Incubation.none
    blending = max(ticks - ("holding" in auto), gates.min_blending) if incubates else 0
    held_by_hand = ("holding" if incubates else "blending") not in auto
    at_once = held_by_hand and "fossilized" in auto  # `tick` follows the action: held and fossilized in one step
    return gates.min_training + blending + 2 + ("training" not in auto) - at_once
