"""A controller whose decisions are counted in FLOPs."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.agent.base import Controller
from esper.buffer.transition import Decision, State
from esper.env.spec import Observation
from esper.lifecycle.stages import BoolArray
from esper.measure.flop_counter import FlopCounter


def _recurrent_flops(x: Tensor, *weights: Any, **_: Any) -> int:
    """Return the FLOPs of oneDNN's recurrent layer for its input `[T, N, D]` and weights."""
    return 2 * x.shape[0] * x.shape[1] * sum(weight.numel() for weight in weights[:2])


COUNTED = {torch.ops.aten.mkldnn_rnn_layer: _recurrent_flops}
"""Kernels that PyTorch's counter does not know."""


class Metered(Controller):
    """A controller whose decisions are counted in FLOPs."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.flops = 0
        """FLOPs of all decisions so far."""

    def start(self, num_hosts: int) -> State:
        return self.controller.start(num_hosts)

    def act(
        self,
        observation: Observation,
        state: State,
        *,
        is_init: BoolArray,
        uniform: npt.NDArray[np.float64],
        greedy: bool = False,
    ) -> Decision:
        with FlopCounter(COUNTED) as counter:
            decision = self.controller.act(observation, state, is_init=is_init, uniform=uniform, greedy=greedy)
        self.flops += counter.flops
        return decision
