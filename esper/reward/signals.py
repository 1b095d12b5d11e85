"""Everything measured in one step, by name: what rewards, governor and telemetry read."""

# N hosts, S slots

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.lifecycle.stages import SlotState

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSignals:
    """One step of N hosts: the state the action found, and the state that it led to after a host epoch."""

    before: SlotState
    after: SlotState
    op_N: npt.NDArray[np.int64]
    """Operation that was carried out; WAIT where the action was refused."""
    accuracy_before_N: FloatArray
    """Validation accuracy before the step [pp]."""
    accuracy_N: FloatArray
    """Validation accuracy after it [pp]; void where a host was rolled back."""
    loss_before_N: FloatArray
    """Validation loss before the step [nats]."""
    loss_N: FloatArray
    """Validation loss after it [nats]."""
    train_loss_N: FloatArray
    """Mean training loss of the epoch [nats]."""
    committed_accuracy_N: FloatArray
    """Validation accuracy with the fossils alone [pp]; NaN where it is not measured, as before the last step unless asked for."""
    all_off_accuracy_N: FloatArray
    """Validation accuracy with all live seeds off [pp], that of the host as it is where none is in; NaN where not measured."""
    interaction_NSS: FloatArray
    """What each pair of live seeds gives beyond what each gives alone [pp], beside the fossils; 0 of a seed with itself, NaN
    where not measured in this step, or where there is no such pair."""
    params_before_NS: npt.NDArray[np.int64]
    params_NS: npt.NDArray[np.int64]
    """Parameters of the seed in each slot, 0 where there is none, before and after."""
    host_params: int
    """Parameters of a host without seeds."""
    flops_before_NS: FloatArray
    flops_NS: FloatArray
    """FLOPs that the seed in each slot adds to the forward pass of one sample, 0 where there is none, before and after; see
    `population.costs`."""
    host_flops: float
    """Those of a host without seeds."""
    latency_before_NS: FloatArray
    latency_NS: FloatArray
    """Seconds that the seed in each slot adds to the forward pass of one sample, 0 where there is none, before and after; NaN
    throughout where the reward does not need it, and it was not measured."""
    host_latency: float
    """That of a host without seeds [s], or NaN."""
    steps_left: int
    """Steps of the episode that follow this one."""
    last: bool
    """Does the step end the episode?"""
    rolled_back_N: npt.NDArray[np.bool_]
    """Did the governor roll this host back? Its transition ends with the penalty, and what was measured of it is void."""

    @property
    def ended_N(self) -> npt.NDArray[np.bool_]:
        """Does the transition end a (sub-)episode?"""
        return self.rolled_back_N | self.last

    @property
    def healthy_N1(self) -> npt.NDArray[np.bool_]:
        """Hosts that were not rolled back, as a column `[N, 1]`."""
        return ~self.rolled_back_N[:, None]

    def of(self, rows: slice) -> "StepSignals":
        """The same of some of the hosts."""

        def part(value: Any) -> Any:
            if isinstance(value, SlotState):
                return SlotState(**{name: array[rows] for name, array in value.arrays().items()})
            return value[rows] if isinstance(value, np.ndarray) else value

        return StepSignals(**{entry.name: part(getattr(self, entry.name)) for entry in fields(self)})
