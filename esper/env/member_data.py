"""Each member's view of the data: inputs, labels, and the samples it is measured on, which may change by a timetable.

Shared data takes no extra memory: if no host has wrong labels there is no table of labels, and if all hosts have all classes
there are no weights.
"""

# M members, B batch, T targets of a sample (positions of a sequence, 1 of an image), K classes, D domains

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from esper.fusion.layout import repeated, side_by_side
from esper.task.augment import Augmentation
from esper.task.data import IGNORED, Data
from esper.task.events import RATES, change, class_shares, pace
from esper.task.instances import DataView


class MemberData:
    """The views of M members of one data set, on its device."""

    def __init__(self, data: Data, views: Sequence[DataView], augmentation: Augmentation | None, device: torch.device) -> None:
        """Stack the views of the members, one each; without views all members see the data unchanged."""
        self.data, self.augmentation = data, augmentation
        self.labels_M = self.classes_MK = self.rate_M1 = self._share_MK = None
        if any(one.labels is not None for one in views):
            plain = data.train_y.cpu()
            labels = [plain if one.labels is None else one.labels for one in views]
            small = next(one.labels.dtype for one in views if one.labels is not None)
            self.labels_M = torch.stack([row.to(small) for row in labels]).to(device)
        if any(one.classes is not None for one in views):
            everything = np.ones(data.num_classes, dtype=np.bool_)
            rows = [everything if one.classes is None else one.classes for one in views]
            self.classes_MK = torch.from_numpy(np.stack(rows)).to(device)
        self._rates, self._timetables = [one.rate_factor for one in views], [one.timetable for one in views]
        self.paced = any(event.kind in RATES for events in self._timetables for event in events)
        """Whether learning rates change."""
        if any(rate != 1.0 for rate in self._rates):
            self.rate_M1 = torch.tensor(self._rates, device=device)[:, None]
        self._member_M1 = torch.arange(len(views), device=device)[:, None]
        self._domains = data.domains if any(self._timetables) else None
        self.at(0)
        measured = (data.valid_y, data.test_y) if self._domains is None else (self._domains.valid_y, self._domains.test_y)
        self._ragged = bool(torch.stack([(part == IGNORED).any() for part in measured]).any())

    def at(self, epoch: int) -> None:
        """Set the state of all events to that of a host epoch, which determines it."""
        if self._domains is None:
            return
        device, names = self._member_M1.device, self._domains.names
        state = [change(events, epoch, names) for events in self._timetables]
        old_M, new_M = ([names.index(getattr(one, end)) for one in state] for end in ("old", "new"))
        self._old_M1, self._new_M1 = (torch.tensor(end_M, device=device)[:, None] for end_M in (old_M, new_M))
        self._share_M1 = torch.tensor([[one.share] for one in state], dtype=torch.float64, device=device)
        shares = [class_shares(events, epoch, self.data.num_classes) for events in self._timetables]
        if any(one is not None for one in shares):
            ones = np.ones(self.data.num_classes)
            self._share_MK = torch.from_numpy(np.stack([ones if one is None else one for one in shares])).to(device)
        if self.paced:
            rates = [rate * pace(events, epoch) for rate, events in zip(self._rates, self._timetables, strict=True)]
            self.rate_M1 = torch.tensor(rates, device=device)[:, None]

    def _domain(self, rank: Tensor) -> Tensor:
        """Return the domain of each member's samples `[M, B]` from their ranks `[M, B]` or `[B]`."""
        return torch.where(rank < self._share_M1, self._new_M1, self._old_M1)

    def batch(self, index_MB: Tensor, draws_MB3: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return inputs in the layout of their kind, and targets `[M, B*T]`, of these training samples.

        Args:
            index_MB: samples of each member.
            draws_MB3: shift and flip of each image; None for no augmentation.
        """
        domains = self._domains
        domain_MB = None if domains is None else self._domain(domains.train_rank[index_MB])
        x = self.data.train_x[index_MB] if domains is None else domains.train_x[domain_MB, index_MB]
        if draws_MB3 is not None and self.augmentation is not None:
            moved = self.augmentation.apply(x.flatten(0, 1), draws_MB3.flatten(0, 1))
            x = moved.view(x.shape)
        y = self.data.train_y[index_MB] if self.labels_M is None else self.labels_M[self._member_M1, index_MB].long()
        if domains is not None:
            right = domains.train_y[domain_MB, index_MB]
            shifted = (right + y - self.data.train_y[index_MB]) % self.data.num_classes  # a wrong label stays as wrong as it was
            y = shifted if self.labels_M is not None else right
            y = torch.where(right == IGNORED, right, y)
        return side_by_side(self.data.inputs(x)), y.flatten(1)

    def measured(self, samples: slice, *, test: bool, members: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return inputs of these samples for every member, targets `[M, B, T]`, and weights `[M, B, T]` (None: all 1)."""
        data, domains, part = self.data, self._domains, "test" if test else "valid"
        y_BT = getattr(data, f"{part}_y")[samples].view(-1, data.positions)
        weight = None if self.classes_MK is None else self.classes_MK[:, y_BT.clamp(min=0)]
        if domains is None:
            x, y_MBT = repeated(data.inputs(getattr(data, f"{part}_x")[samples]), members), y_BT.expand(members, *y_BT.shape)
        else:
            rank_B = getattr(domains, f"{part}_rank")[samples]
            at = self._domain(rank_B), torch.arange(len(y_BT), device=rank_B.device)
            x = side_by_side(data.inputs(getattr(domains, f"{part}_x")[:, samples][at]))
            y_MBT = getattr(domains, f"{part}_y")[:, samples][at].view(members, *y_BT.shape)
            if self._share_MK is not None:
                present = rank_B[:, None] < self._share_MK[:, y_BT.clamp(min=0)]
                weight = present if weight is None else weight & present
        if self._ragged:
            weight = (y_MBT != IGNORED) if weight is None else weight & (y_MBT != IGNORED)
        return x, y_MBT, None if weight is None else weight.double()

    def num_measured(self, *, test: bool) -> int:
        """Return the number of samples in the validation or test split."""
        return len(self.data.test_y if test else self.data.valid_y)
