"""The learned gate of a seed: the weight of its delta, per sample; in a sequence, per position."""

# B batch, T positions, M members, C channels of one member, H hidden units

import torch
from torch import Tensor, nn

from esper.fusion.layout import members_first


class Gate(nn.Module):
    """g(x) = sigmoid(w2 . relu(W1 m + b1) + b2) of the mean m of x over an image, or over a sequence up to each position, so that
    no position sees later ones: a number in (0, 1).

    W1 has H = max(8, C // 4) rows. With PyTorch's initial weights g is near 0.5.
    """

    any_strides = True

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = max(8, channels // 4)
        self.net = nn.Sequential(nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        """Return the gates of M members from their features: `[B, M]`, or `[M*B, T, 1]` for sequences."""
        if members_first(x):
            wide = torch.promote_types(x.dtype, torch.float32)  # half precision would lose terms of long sums
            count_T1 = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=wide)[:, None]
            return self.net((x.cumsum(1, dtype=wide) / count_T1).to(x.dtype))
        return self.net(x.mean((2, 3)) if x.dim() == 4 else x)


class Gated(nn.Module):
    """A branch with its gate: g(x) * delta(x).

    They are one module, so that they are planted, clipped, saved and cleared together. The gate's first gradient is zero, as
    delta is; it moves as soon as delta does.
    """

    any_strides = True

    def __init__(self, branch: nn.Module, channels: int) -> None:
        super().__init__()
        self.branch, self.gate = branch, Gate(channels)

    def forward(self, x: Tensor) -> Tensor:
        delta, gate = self.branch(x), self.gate(x)
        if members_first(delta):
            return delta * gate
        wide = gate.repeat_interleave(delta.shape[1] // gate.shape[1], 1)
        return delta * wide.view(*wide.shape, *[1] * (delta.dim() - 2))
