"""The terms of which rewards are made: pure functions of a step, each for all hosts at once.

Every term is in points [pp]: one point is one percentage point of accuracy of the network that is left at the end.
"""

# N hosts, S slots

import numpy as np
import numpy.typing as npt

from esper.population.lifecycle import OCCUPIED, SlotState, Stage
from esper.reward.signals import StepSignals

FloatArray = npt.NDArray[np.float32]

STAGE_POTENTIAL = np.array([0.0, 1.0, 2.0, 3.5, 5.5, 6.0, 0.0, 0.0], dtype=np.float32)
"""Worth of having brought a seed to a stage, by `Stage`."""


def attribution(signals: StepSignals) -> FloatArray:
    """Sum over slots of the seeds' measured contributions [pp]: accuracy with a seed minus without it, fossils included."""
    paid = signals.after.measured & signals.after.within(*OCCUPIED) & ~signals.rolled_back_N[:, None]
    return np.where(paid, signals.after.contribution, 0.0).sum(axis=1).astype(np.float32)


def rent(signals: StepSignals) -> FloatArray:
    """Parameters of all seeds in the host, in host sizes [1], as they stand after the step; of a rolled back host, before."""
    params = np.where(signals.rolled_back_N[:, None], signals.params_before_NS, signals.params_NS)
    return (params.sum(axis=1) / signals.host_params).astype(np.float32)


def operations(signals: StepSignals, op: int) -> FloatArray:
    """1 where this operation was carried out."""
    return (signals.op_N == op).astype(np.float32)


def terminal(signals: StepSignals) -> FloatArray:
    """On the last step the accuracy of what was committed [pp]: host and fossils, without seeds still on trial; else 0."""
    if not signals.last:
        return np.zeros(len(signals.op_N), dtype=np.float32)
    return np.where(signals.rolled_back_N, 0.0, signals.committed_accuracy_N).astype(np.float32)


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
