"""The learnt gate of a seed: how much of its delta each sample gets."""

# B batch, M members, C channels of one member, H hidden units

from torch import Tensor, nn

from esper.fusion.layout import members_first


def _hidden(channels: int) -> int:
    return max(8, channels // 4)


def gate_parameters(channels: int) -> int:
    """Learnt numbers of a gate: H (C + 2) + 1."""
    return _hidden(channels) * (channels + 2) + 1


class Gate(nn.Module):
    """g(x) = sigmoid(w2 . relu(W1 m + b1) + b2) of the mean m of x over space or time: a number in (0, 1) for each sample.

    W1 has H = max(8, C // 4) rows. With PyTorch's first weights g is near 0.5.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = _hidden(channels)
        self.net = nn.Sequential(nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        """From the features of M members side by side: `[B, M]`, or `[M*B, 1, 1]` where x is sequences."""
        if members_first(x):
            return self.net(x.mean(1, keepdim=True))
        return self.net(x.mean((2, 3)) if x.dim() == 4 else x)


class Gated(nn.Module):
    """A branch with its gate: g(x) * delta(x).

    The two are one module, so that they are planted, trained within one clipping budget, remembered and cleared together. The
    gate's first gradient is zero, as delta is; it moves as soon as the seed does something.
    """

    def __init__(self, branch: nn.Module, channels: int) -> None:
        super().__init__()
        self.branch, self.gate = branch, Gate(channels)

    def forward(self, x: Tensor) -> Tensor:
        delta, gate = self.branch(x), self.gate(x)
        if members_first(delta):
            return delta * gate
        wide = gate.repeat_interleave(delta.shape[1] // gate.shape[1], 1)
        return delta * wide.view(*wide.shape, *[1] * (delta.dim() - 2))
