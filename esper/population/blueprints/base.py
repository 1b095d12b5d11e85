"""What every blueprint is: a rule that makes a branch for a given number of channels.

A branch computes delta(x) of the shape of x, and its last operation is an affine map born as zero, with no norm or
activation after it. So a newborn seed changes nothing, exactly, and yet its first gradient is not zero.
"""

from dataclasses import dataclass

from torch import nn


@dataclass(kw_only=True, slots=True)
class BlueprintConfig:
    """One kind of seed."""

    def branch(self, channels: int) -> nn.Module:
        """A new branch delta(x) for features `[B, channels, H, W]`, with random first weights and a last map of zeros."""
        raise TypeError(f"{type(self).__name__} does not say how to make a branch: define branch(channels)")

    def num_parameters(self, channels: int) -> int:
        """Learnt numbers of a branch, by formula."""
        raise TypeError(f"{type(self).__name__} does not say how large it is: define num_parameters(channels)")


def num_groups(channels: int) -> int:
    """Groups of a GroupNorm: the most, not above channels / 16, that divide the channels; at least one."""
    return max(groups for groups in range(1, max(1, channels // 16) + 1) if channels % groups == 0)
