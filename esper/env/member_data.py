"""Each member's view of the data: inputs, labels, and the samples it is measured on.

Shared data takes no extra memory: if no host has wrong labels there is no table of labels, and if all hosts have all classes
there are no weights.
"""

# M members, B batch, T targets of a sample (positions of a sequence, 1 of an image), K classes

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from esper.fusion.layout import repeated, side_by_side
from esper.task.augment import Augmentation
from esper.task.data import IGNORED, Data
from esper.task.instances import DataView


class MemberData:
    """The views of M members of one data set, on its device."""

    def __init__(self, data: Data, views: Sequence[DataView], augmentation: Augmentation | None, device: torch.device) -> None:
        """Stack the views of the members, one each; without views all members see the data unchanged."""
        self.data, self.augmentation = data, augmentation
        self.labels_M = self.classes_MK = self.rate_M1 = None
        if any(one.labels is not None for one in views):
            plain = data.train_y.cpu()
            labels = [plain if one.labels is None else one.labels for one in views]
            small = next(one.labels.dtype for one in views if one.labels is not None)
            self.labels_M = torch.stack([row.to(small) for row in labels]).to(device)
        if any(one.classes is not None for one in views):
            everything = np.ones(data.num_classes, dtype=np.bool_)
            rows = [everything if one.classes is None else one.classes for one in views]
            self.classes_MK = torch.from_numpy(np.stack(rows)).to(device)
        if any(one.rate_factor != 1.0 for one in views):
            self.rate_M1 = torch.tensor([[one.rate_factor] for one in views], device=device)
        self._member_M1 = torch.arange(len(views), device=device)[:, None]
        self._ragged = bool(torch.stack([(part == IGNORED).any() for part in (data.valid_y, data.test_y)]).any())

    def batch(self, index_MB: Tensor, draws_MB3: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return inputs in the layout of their kind, and targets `[M, B*T]`, of these training samples.

        Args:
            index_MB: samples of each member.
            draws_MB3: shift and flip of each image; None for no augmentation.
        """
        x = self.data.train_x[index_MB]
        if draws_MB3 is not None and self.augmentation is not None:
            moved = self.augmentation.apply(x.flatten(0, 1), draws_MB3.flatten(0, 1))
            x = moved.view(x.shape)
        y = self.data.train_y[index_MB] if self.labels_M is None else self.labels_M[self._member_M1, index_MB].long()
        return side_by_side(self.data.inputs(x)), y.flatten(1)

    def measured(self, samples: slice, *, test: bool, members: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return inputs of these samples for every member, targets `[B, T]`, and weights `[M, B, T]` (None: all 1)."""
        inputs, targets = (self.data.test_x, self.data.test_y) if test else (self.data.valid_x, self.data.valid_y)
        y_BT = targets[samples].view(len(targets[samples]), -1)
        weight = None
        if self.classes_MK is not None:
            weight = self.classes_MK[:, y_BT.clamp(min=0)]
        if self._ragged:
            weight = (y_BT != IGNORED) if weight is None else weight & (y_BT != IGNORED)
        x = repeated(self.data.inputs(inputs[samples]), members)
        return x, y_BT, None if weight is None else weight.double().expand(members, *y_BT.shape)

    def num_measured(self, *, test: bool) -> int:
        """Return the number of samples in the validation or test split."""
        return len(self.data.test_y if test else self.data.valid_y)
