"""What hosts learn and how they are scored: loss and accuracy of classes and tokens, loss and R2 of numbers.

A score is a ratio of two sums over targets, sum of points / sum of scale, so errors and counterfactuals are computed in one way:

    classes    points 1 where the most probable class is right, else 0      scale 1
    numbers    points (y - m)^2 - (y - f)^2                                 scale (y - m)^2

where f is the prediction of target y, and m the mean of all targets of the measured split. R2 = 1 - sum (y - f)^2 / sum (y - m)^2
is 100 % for a perfect prediction and 0 % for the mean. It has no lower bound; below -100 %, or where a prediction is not finite,
it counts as -100 %, so that one diverged host does not outweigh all others in rewards and means.
"""

# M members, B batch, T targets of a sample, X samples or positions, K outputs

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

VECTOR = 16
"""With fewer classes, torch's cross entropy on a CPU is several times as fast if the samples of a class lie next to each other in
memory: it vectorises over what does."""


class Objective:
    """The loss that hosts minimise, and the score that controllers and people see."""

    score: ClassVar[str]
    """Name of the score, for display."""
    floor: ClassVar[float]
    """Lowest score, as a share."""
    numbers: ClassVar[bool]
    """If true, targets are numbers; otherwise they are classes, and negative ones are ignored."""

    def losses(self, outputs_MXK: Tensor, targets_MX: Tensor) -> Tensor:
        """Return the loss of each target `[M, X]`, 0 where it is ignored. A member's losses do not depend on the others."""
        raise NotImplementedError

    def sums(self, outputs_MBK: Tensor, targets_MB: Tensor) -> Tensor:
        """Return the sum of the losses of each member `[M]`; for sequences `[M, B*T, K]`, targets are `[M, B*T]`."""
        return self.losses(outputs_MBK, targets_MB.flatten(1)).sum(1)

    def mean_losses(self, outputs_MBK: Tensor, targets_MB: Tensor, count_M: Tensor | None = None) -> Tensor:
        """Return the mean loss of each member `[M]`.

        Args:
            count_M: number by which each sum of losses is divided; None is the number of targets.
        """
        return self.sums(outputs_MBK, targets_MB) / (self.num_targets(targets_MB) if count_M is None else count_M)

    def num_targets(self, targets_MB: Tensor) -> Tensor:
        """Return the number of targets of each member `[M]` that are not ignored; 1 if all are, so that their mean loss is 0."""
        raise NotImplementedError

    def mean(self, targets: Tensor) -> float:
        """Return the mean target of a split, which a score may refer to."""
        raise NotImplementedError

    def points(self, outputs: Tensor, targets: Tensor, mean: float) -> Tensor:
        """Return the points of each target, in the shape of the targets and in double precision."""
        raise NotImplementedError

    def scale(self, targets: Tensor, mean: float) -> Tensor | None:
        """Return the scale of each target, the points of a perfect prediction, in double precision; None for 1 each."""
        raise NotImplementedError

    def chance_loss(self, targets: Tensor, outputs: int) -> float:
        """Return the loss of a guess that ignores the input, the unit of losses in observations and of the governor's limits.

        Args:
            targets: training targets.
            outputs: outputs of a host.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Classes(Objective):
    """Cross entropy and accuracy, of the class of a sample or the next token at each position."""

    score: ClassVar[str] = "accuracy"
    floor: ClassVar[float] = 0.0
    numbers: ClassVar[bool] = False

    def losses(self, outputs_MXK: Tensor, targets_MX: Tensor) -> Tensor:
        if outputs_MXK.device.type == "cpu" and outputs_MXK.shape[2] < VECTOR:
            return F.cross_entropy(outputs_MXK.transpose(1, 2).contiguous(), targets_MX, reduction="none")
        return F.cross_entropy(outputs_MXK.flatten(0, 1), targets_MX.flatten(), reduction="none").view_as(targets_MX)

    def num_targets(self, targets_MB: Tensor) -> Tensor:
        return (targets_MB >= 0).view(len(targets_MB), -1).sum(1).clamp_(min=1)

    def mean(self, targets: Tensor) -> float:
        return 0.0

    def points(self, outputs: Tensor, targets: Tensor, mean: float) -> Tensor:
        return (_most_probable(outputs).view_as(targets) == targets).double()

    def scale(self, targets: Tensor, mean: float) -> Tensor | None:
        return None

    def chance_loss(self, targets: Tensor, outputs: int) -> float:
        return math.log(outputs)


def _most_probable(outputs: Tensor) -> Tensor:
    """Return the index of the largest output, of the first if there are several; NumPy finds it up to five times as fast."""
    if outputs.device.type == "cpu" and outputs.dtype == torch.float32:
        return torch.from_numpy(outputs.detach().numpy().argmax(-1))
    return outputs.argmax(-1)


CLASSIFICATION = Classes()
"""The objective of classification and language modelling."""


class RegressionLoss(StrEnum):
    """Losses of numbers."""

    mse = "mse"
    huber = "huber"


@dataclass(frozen=True, slots=True)
class Numbers(Objective):
    """Squared error or Huber loss, and R2."""

    score: ClassVar[str] = "R2"
    floor: ClassVar[float] = -1.0
    numbers: ClassVar[bool] = True

    loss: RegressionLoss = RegressionLoss.mse
    delta: float = 1.0
    """Error where the Huber loss passes from a square to a line [units of the targets]."""

    def losses(self, outputs_MXK: Tensor, targets_MX: Tensor) -> Tensor:
        outputs_MX = outputs_MXK.view_as(targets_MX)
        if self.loss is RegressionLoss.mse:
            return F.mse_loss(outputs_MX, targets_MX, reduction="none")
        return F.huber_loss(outputs_MX, targets_MX, reduction="none", delta=self.delta)

    def num_targets(self, targets_MB: Tensor) -> Tensor:
        return targets_MB.new_full((len(targets_MB),), targets_MB[0].numel())

    def mean(self, targets: Tensor) -> float:
        return float(targets.double().mean())

    def points(self, outputs: Tensor, targets: Tensor, mean: float) -> Tensor:
        y = targets.double()
        return (y - mean).square() - (y - outputs.view_as(targets).double()).square()

    def scale(self, targets: Tensor, mean: float) -> Tensor | None:
        return (targets.double() - mean).square()

    def chance_loss(self, targets: Tensor, outputs: int) -> float:
        y = targets.double().flatten()
        return float(self.losses(y.mean().expand_as(y), y).mean())
