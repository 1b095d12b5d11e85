"""The terms of which rewards are made: pure functions of a step, each for all hosts at once.

Every term is in points [pp]: one point is one percentage point of accuracy of the network that is left at the end. Terms that go
by slot are summed over slots, so what is paid cannot depend on the slot that an action names, and seeds in all slots earn alike.
"""

# N hosts, S slots

from enum import StrEnum

import numpy as np
import numpy.typing as npt

from esper.lifecycle.stages import OCCUPIED, Op, SlotState, Stage
from esper.reward.signals import StepSignals

FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]

STAGE_POTENTIAL = np.array([0.0, 1.0, 2.0, 3.5, 5.5, 6.0, 0.0, 0.0], dtype=np.float32)
"""Worth of having brought a seed to a stage, by `Stage`."""
CONTRIBUTES = 1.0
"""A seed that contributes at least this much counts as contributing [pp]."""


class RentUnit(StrEnum):
    """What rent is charged for."""

    params = "params"
    """Parameters of the seeds."""
    flops = "flops"
    """Floating-point operations per sample."""
    latency = "latency"
    """Measured seconds of a forward pass."""


def contributions(state: SlotState) -> FloatArray:
    """What each seed was last found to contribute `[N, S]` [pp]; 0 where nothing was measured."""
    return np.where(state.measured & state.within(*OCCUPIED), state.contribution, 0.0).astype(np.float32)


def attribution(signals: StepSignals) -> FloatArray:
    """Sum over slots of the seeds' measured contributions [pp]: accuracy with a seed minus without it, fossils included."""
    return np.where(signals.healthy_N1, contributions(signals.after), 0.0).sum(axis=1).astype(np.float32)


def rent(signals: StepSignals, unit: RentUnit = RentUnit.params, *, fossils: bool = False) -> FloatArray:
    """Cost of all seeds in the host, in host sizes [1], as they stand after the step; of a rolled back host, before.

    Args:
        fossils: charge for those alone.

    Raises:
        ValueError: nobody counts or measures this unit.
    """
    before_NS = getattr(signals, f"{unit}_before_NS")
    cost_NS = np.where(signals.healthy_N1, getattr(signals, f"{unit}_NS"), before_NS)
    if fossils:
        kept_NS = np.where(signals.healthy_N1, signals.after.within(Stage.FOSSILIZED), signals.before.within(Stage.FOSSILIZED))
        cost_NS = np.where(kept_NS, cost_NS, 0)
    due_N = cost_NS.sum(axis=1) / getattr(signals, f"host_{unit}")
    if not np.isfinite(due_N).all():
        raise ValueError(f"reward.rent_unit={unit} has no price here, since it is not measured: use reward.rent_unit=params")
    return due_N.astype(np.float32)


def final_rent(signals: StepSignals, unit: RentUnit = RentUnit.params, *, fossils: bool = False) -> FloatArray:
    """On the last step `rent`; else 0."""
    return rent(signals, unit, fossils=fossils) if signals.last else np.zeros(len(signals.op_N), dtype=np.float32)


def operations(signals: StepSignals, op: int) -> FloatArray:
    """1 where this operation was carried out."""
    return (signals.op_N == op).astype(np.float32)


def actions(signals: StepSignals) -> FloatArray:
    """1 where anything was done but to wait."""
    return (signals.op_N != Op.WAIT).astype(np.float32)


def alpha_shock(signals: StepSignals) -> FloatArray:
    """Sum over slots of the squared change of alpha, each times the seed's parameters in host sizes [1]; 0 after a rollback."""
    params_NS = np.maximum(signals.params_before_NS, signals.params_NS)
    shock_NS = np.square(signals.after.alpha - signals.before.alpha) * params_NS / signals.host_params
    return np.where(signals.healthy_N1, shock_NS, 0.0).sum(axis=1).astype(np.float32)


def terminal(signals: StepSignals) -> FloatArray:
    """On the last step the accuracy of what was committed [pp]: host and fossils, without seeds still on trial; else 0."""
    if not signals.last:
        return np.zeros(len(signals.op_N), dtype=np.float32)
    return np.where(signals.rolled_back_N, 0.0, signals.committed_accuracy_N).astype(np.float32)


def contributing(signals: StepSignals) -> FloatArray:
    """On the last step the number of fossils that contribute at least `CONTRIBUTES` [count]; else 0."""
    if not signals.last:
        return np.zeros(len(signals.op_N), dtype=np.float32)
    fossil_NS = signals.after.within(Stage.FOSSILIZED) & signals.healthy_N1
    return (fossil_NS & (contributions(signals.after) >= CONTRIBUTES)).sum(axis=1).astype(np.float32)


def new_fossils(signals: StepSignals) -> BoolArray:
    """`[N, S]`: seeds that this step has kept for good; not what was asked for, but what is so afterwards."""
    now, then = signals.after.within(Stage.FOSSILIZED), signals.before.within(Stage.FOSSILIZED)
    return now & ~then & signals.healthy_N1


def stage_potential(state: SlotState) -> FloatArray:
    """Sum over slots of the worth of their stages [1]."""
    return STAGE_POTENTIAL[state.stage].sum(axis=1)


def shaping(before_N: FloatArray, after_N: FloatArray, gamma: float, signals: StepSignals) -> FloatArray:
    """Potential-based shaping, gamma * Phi(s') - Phi(s), which leaves the best policy as it is (Ng, Harada, Russell 1999).

    The potential of a terminal state is 0, so the discounted sum over an episode is -Phi(s_0) whatever was done in it.

    Args:
        before_N: Phi of the state that the action found.
        after_N: Phi of the state that it led to; ignored where the transition ends the episode.
        gamma: the agent's discount per step.
    """
    return (gamma * np.where(signals.ended_N, 0.0, after_N) - before_N).astype(np.float32)


assert len(STAGE_POTENTIAL) == len(Stage)
