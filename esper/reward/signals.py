"""Everything measured in one step, by name: the input of rewards, governor and telemetry."""

# N hosts, S slots

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.lifecycle.stages import FloatArray, SlotState
from esper.measure.counterfactuals import SeedEffects


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSignals:
    """One step of N hosts: the state before the action, and the state after it and a host epoch."""

    before: SlotState
    """All slots before the action."""
    after: SlotState
    """All slots after the step."""
    op_N: npt.NDArray[np.int64]
    """Operation carried out; WAIT where the action was refused."""
    accuracy_before_N: FloatArray
    """Validation accuracy before the step [%]."""
    accuracy_N: FloatArray
    """Validation accuracy after it [%]; void where a host was rolled back."""
    loss_before_N: FloatArray
    """Validation loss before the step [nats]."""
    loss_N: FloatArray
    """Validation loss after it [nats]."""
    train_loss_N: FloatArray
    """Mean training loss of the epoch; NaN for a retired host [nats]."""
    effects: SeedEffects
    """Counterfactuals: accuracies and effects with seeds on and off."""
    params_before_NS: npt.NDArray[np.int64]
    params_NS: npt.NDArray[np.int64]
    """Parameters of the seed in each slot before and after the step, 0 where there is none."""
    host_params: int
    """Parameters of a host without seeds."""
    flops_before_NS: FloatArray
    flops_NS: FloatArray
    """FLOPs of the seed in each slot in the forward pass of one sample before and after the step, 0 where there is none; see
    `measure.costs`."""
    host_flops: float
    """FLOPs of a host without seeds."""
    latency_before_NS: FloatArray
    latency_NS: FloatArray
    """Latency of the seed in each slot in the forward pass of one sample before and after the step [s], 0 where there is none;
    NaN where the reward does not need it."""
    host_latency: float
    """Latency of a host without seeds [s], or NaN."""
    num_steps: int
    """Steps of the episode."""
    steps_left: int
    """Steps of the episode after this one."""
    last: bool
    """True for the last step of the episode."""
    rolled_back_N: npt.NDArray[np.bool_]
    """Hosts that the governor rolled back: the transition ends with the penalty, and its measurements are void."""
    final: SlotState | None = None
    """Slots at the end of the episode, those of the snapshot for a host that is rolled back in the last step; None before."""
    final_loss_N: FloatArray | None = None
    """Validation loss at the end of the episode, that of the snapshot for a host that is rolled back in the last step; None
    before [nats]."""
    host_norm_N: FloatArray = field(default_factory=lambda: np.zeros(0, np.float32))
    """Norm of each host's own gradient in the epoch, before clipping; mean over steps; NaN for a frozen or retired host
    [nats per unit of weight]."""
    potential_before_NSK: FloatArray = field(default_factory=lambda: np.zeros((0, 0, 0), np.float32))
    """Growth potential of each blueprint in each slot before the step, NaN where unknown [nats per unit of learning rate]."""

    @property
    def ended_N(self) -> npt.NDArray[np.bool_]:
        """Hosts whose transition ends a (sub-)episode `[N]`."""
        return self.rolled_back_N | self.last

    @property
    def healthy_N1(self) -> npt.NDArray[np.bool_]:
        """Hosts that were not rolled back, as a column `[N, 1]`."""
        return ~self.rolled_back_N[:, None]

    def of(self, rows: slice) -> "StepSignals":
        """Return the signals of some of the hosts."""

        def part(value: Any) -> Any:
            if isinstance(value, SlotState | SeedEffects):
                return type(value)(**{entry.name: getattr(value, entry.name)[rows] for entry in fields(value)})
            return value[rows] if isinstance(value, np.ndarray) else value

        return StepSignals(**{entry.name: part(getattr(self, entry.name)) for entry in fields(self)})
