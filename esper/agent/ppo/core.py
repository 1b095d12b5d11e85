"""The core of the policy network, between encoder and heads: recurrent or feed-forward."""

# T steps, N hosts, R units

from itertools import pairwise

import torch
from torch import Tensor, nn

from esper.buffer.transition import State


class Recurrent(nn.LSTM):
    """An LSTM whose state is zeroed at the start of every episode."""

    def __init__(self, size: int) -> None:
        """Create an LSTM with R inputs and R units."""
        super().__init__(size, size)

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Set orthogonal weights and zero biases, except for 1 on the forget gate."""
        for name, parameter in self.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(parameter, generator=generator)
            else:
                nn.init.zeros_(parameter)
        # Each gate adds two biases; those of the forget gate, the second of four, sum to 1.
        self.get_parameter("bias_ih_l0")[self.hidden_size : 2 * self.hidden_size] = 1.0

    def start(self, num_hosts: int) -> State:
        """Return the state before the first step: zeros `[N, R]`."""
        return {name: torch.zeros(num_hosts, self.hidden_size) for name in ("h", "c")}

    def unroll(self, input_TNR: Tensor, state: State, is_init_TN: Tensor) -> tuple[Tensor, State]:
        """Run T steps in order, with one LSTM call per stretch of steps in which no host starts an episode.

        Args:
            input_TNR: inputs.
            state: state before the first step.
            is_init_TN: true where an episode starts; the state is zeroed before that step.

        Returns:
            Outputs `[T, N, R]`, and the state after the last step.
        """
        h_NR, c_NR = state["h"], state["c"]
        starts = [0, *(1 + torch.nonzero(is_init_TN[1:].any(dim=1))[:, 0]).tolist(), len(input_TNR)]
        outputs: list[Tensor] = []
        for start, end in pairwise(starts):
            keep_N1 = (~is_init_TN[start])[:, None].to(h_NR.dtype)
            output_TNR, (h_1NR, c_1NR) = self(input_TNR[start:end], ((h_NR * keep_N1)[None], (c_NR * keep_N1)[None]))
            h_NR, c_NR = h_1NR[0], c_1NR[0]
            outputs.append(output_TNR)
        return torch.cat(outputs), {"h": h_NR, "c": c_NR}


class FeedForward(nn.Sequential):
    """Two layers without memory, with as many weights as the LSTM they replace, 8 R^2, and outputs in (-1, 1)."""

    def __init__(self, size: int) -> None:
        """Create layers with R inputs and R outputs."""
        super().__init__(nn.Linear(size, 4 * size), nn.ReLU(), nn.Linear(4 * size, size), nn.Tanh())

    def start(self, num_hosts: int) -> State:
        """Return an empty state."""
        return {}

    def unroll(self, input_TNR: Tensor, state: State, is_init_TN: Tensor) -> tuple[Tensor, State]:
        """Run T independent steps; see `Recurrent.unroll`."""
        return self(input_TNR), {}
