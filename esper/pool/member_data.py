"""Each member's view of the data: inputs, labels, and the samples it is measured on, which may change by a timetable.

Shared data takes no extra memory: if no host has wrong labels there is no table of labels, and if all hosts have all classes
there are no weights.
"""

# M members, B batch, T targets of a sample (positions of a sequence, 1 of an image), K classes, D domains

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from esper.fusion.layout import repeated, side_by_side
from esper.pool.prefetch import Reader
from esper.task.augment import Augmentation
from esper.task.data import ROWS, Data, Domains, is_padding, target_values
from esper.task.events import RATES, change, class_shares, pace
from esper.task.instances import DataView

_ALL = slice(None)


class TrainedPart(NamedTuple):
    """Samples to train on."""

    index_MB: Tensor
    """Samples of each member, on the device of the data."""
    draws_MB3: Tensor | None = None
    """Shift and flip of each image; None for no augmentation."""
    members_M: Tensor | None = None
    """The members, on the device of the data, which may repeat; None for all."""

    def of(self, members_L: Tensor) -> "TrainedPart":
        """Return the samples of some members, from those of all."""
        draws = None if self.draws_MB3 is None else self.draws_MB3[members_L]
        return TrainedPart(self.index_MB[members_L], draws, members_L)


class MeasuredPart(NamedTuple):
    """Samples to measure."""

    rows: slice
    """Samples of the split."""
    test: bool
    """If true, samples of the test split; otherwise of the validation split."""
    members_L: Tensor | None = None
    """Members that are measured, on the device of the data; None for all."""


class MemberData:
    """The views of M members of one data set.

    Data that lies on their device is used in place. Data that lies elsewhere, or in files, is streamed: a background thread reads
    the samples of the next batches into pinned memory, from which they are copied to the device.
    """

    def __init__(
        self,
        data: Data,
        views: Sequence[DataView],
        augmentation: Augmentation | None,
        device: torch.device,
        *,
        samples_last: bool = False,
    ) -> None:
        """Stack the views of the members, one each; without views all members see the data unchanged.

        Args:
            samples_last: return images in batch-last memory; see `batch_last`.
        """
        self.data, self.augmentation, self.device = data, augmentation, device
        self._samples_last = samples_last
        self.home = data.train_y.device
        """The device of the samples."""
        self._batches, self._parts = Reader(self._batch, ahead=data.mapped), Reader(self._measured, ahead=data.mapped)
        self._inputs = replace(data, mean=_on(data.mean, device), std=_on(data.std, device)).inputs
        self._pinned = data.mapped and device.type == "cuda"
        self.labels_M = self.classes_MK = self.rate_M1 = self._share_MK = None
        if any(one.labels is not None for one in views):
            plain = data.train_y.cpu()
            labels = [plain if one.labels is None else one.labels for one in views]
            small = next(one.labels.dtype for one in views if one.labels is not None)
            self.labels_M = torch.stack([row.to(small) for row in labels]).to(self.home)
        if any(one.classes is not None for one in views):
            everything = np.ones(data.num_classes, dtype=np.bool_)
            rows = [everything if one.classes is None else one.classes for one in views]
            self.classes_MK = torch.from_numpy(np.stack(rows)).to(self.home)
        self._rates, self._timetables = [one.rate_factor for one in views], [one.timetable for one in views]
        self.paced = any(event.kind in RATES for events in self._timetables for event in events)
        """Whether learning rates change."""
        if any(rate != 1.0 for rate in self._rates):
            self.rate_M1 = torch.tensor(self._rates, device=device)[:, None]
        self._member_M1 = torch.arange(len(views), device=self.home)[:, None]
        self._domains = data.domains if any(self._timetables) else None
        self._states: list[Hashable] = [None] * len(views)
        self.at(0)
        measured = (data.valid_y, data.test_y) if self._domains is None else (self._domains.valid_y, self._domains.test_y)
        self._ragged = any(bool(is_padding(rows).any()) for part in measured for rows in part.split(ROWS))

    def at(self, epoch: int) -> None:
        """Set the state of all events to that of a host epoch, which determines it."""
        if self._domains is None:
            return
        home, names = self.home, self._domains.names
        state = [change(events, epoch, names) for events in self._timetables]
        old_M, new_M = ([names.index(getattr(one, end)) for one in state] for end in ("old", "new"))
        self._old_M1, self._new_M1 = (torch.tensor(end_M, device=home)[:, None] for end_M in (old_M, new_M))
        self._share_M1 = torch.tensor([[one.share] for one in state], dtype=torch.float64, device=home)
        shares = [class_shares(events, epoch, self.data.num_classes) for events in self._timetables]
        self._states = [(one, None if share is None else share.tobytes()) for one, share in zip(state, shares, strict=True)]
        if any(one is not None for one in shares):
            ones = np.ones(self.data.num_classes)
            self._share_MK = torch.from_numpy(np.stack([ones if one is None else one for one in shares])).to(home)
        if self.paced:
            rates = [rate * pace(events, epoch) for rate, events in zip(self._rates, self._timetables, strict=True)]
            self.rate_M1 = torch.tensor(rates, device=self.device)[:, None]

    def _domain(self, rank: Tensor, members: slice | Tensor = _ALL) -> Tensor:
        """Return the domain of the samples of these members `[M, B]` from their ranks `[M, B]` or `[B]`."""
        return torch.where(rank < self._share_M1[members], self._new_M1[members], self._old_M1[members])

    def states(self, members: int) -> list[Hashable]:
        """Return the current state of each of M members' data; equal states mean equal samples."""
        return self._states or [None] * members

    def batches(self, batches: Sequence[TrainedPart]) -> AbstractContextManager[None]:
        """Announce the batches that will be read within the context, in order; streamed data is then read ahead."""
        return self._batches.announced(batches)

    def parts(self, samples: Sequence[MeasuredPart]) -> AbstractContextManager[None]:
        """Announce the samples that will be measured within the context."""
        return self._parts.announced(samples)

    def batch(self, samples: TrainedPart) -> tuple[Tensor, Tensor]:
        """Return `micro_batches` for a single part."""
        return self.micro_batches(samples, 1)[0]

    def micro_batches(self, samples: TrainedPart, count: int) -> list[tuple[Tensor, Tensor]]:
        """Return the samples as `count` micro-batches: inputs in the layout of their kind, and targets `[M, B*T]`."""
        x, y = (part.to(self.device, non_blocking=True) for part in self._batches.read(samples))
        draws = [None] * count if samples.draws_MB3 is None else samples.draws_MB3.tensor_split(count, 1)
        return [self._host_inputs(*part) for part in zip(x.tensor_split(count, 1), y.tensor_split(count, 1), draws, strict=True)]

    def _batch(self, samples: TrainedPart) -> tuple[Tensor, Tensor]:
        """Read training samples `[M, B, ...]` and their targets `[M, B]` or `[M, B, T]`."""
        (index_MB, _, chosen), data, domains = samples, self.data, self._domains
        members = _ALL if chosen is None else chosen
        labels = None if self.labels_M is None else self.labels_M[self._member_M1[members], index_MB]
        y = target_values(data.train_y[index_MB] if labels is None else labels)
        if domains is None:
            return self._pin(_rows(data.train_x, index_MB)), self._pin(y)
        domain_MB = self._domain(domains.train_rank[index_MB], members)
        right = target_values(domains.train_y[domain_MB, index_MB])
        if labels is not None:  # keep the offset between a wrong label and the right one
            y = torch.where(is_padding(right), right, (right + y - data.train_y[index_MB].long()) % data.num_classes)
        else:
            y = right
        x = _rows(domains.train_x.flatten(0, 1), domain_MB * domains.train_x.shape[1] + index_MB)
        return self._pin(x), self._pin(y)

    def _pin(self, part: Tensor) -> Tensor:
        return part.pin_memory() if self._pinned else part

    def _host_inputs(self, x: Tensor, y: Tensor, draws_MB3: Tensor | None) -> tuple[Tensor, Tensor]:
        if draws_MB3 is not None and self.augmentation is not None:
            resident = draws_MB3.device == x.device
            draws = draws_MB3 if resident else draws_MB3.pin_memory().to(x.device, non_blocking=True)
            x = self.augmentation.apply(x.flatten(0, 1), draws.flatten(0, 1)).view(x.shape)
        return side_by_side(self._inputs(x), samples_last=self._samples_last), y.flatten(1)

    def measured(self, samples: MeasuredPart, members: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return inputs of these samples for M members, targets `[M, B, T]`, and weights `[M, B, T]` (None: all 1).

        Args:
            samples: the samples.
            members: M, the number of measured members.
        """
        x, y, weight = (part if part is None else part.to(self.device, non_blocking=True) for part in self._parts.read(samples))
        assert x is not None
        assert y is not None
        y_MBT = y.expand(members, *y.shape[-2:])
        given, last = self._inputs(x), self._samples_last
        same = self._domains is None
        inputs = repeated(given, members, samples_last=last) if same else side_by_side(given, samples_last=last)
        return inputs, y_MBT, None if weight is None else weight.expand_as(y_MBT)

    def _measured(self, samples: MeasuredPart) -> tuple[Tensor, Tensor, Tensor | None]:
        """Read samples `[B, ...]` and targets `[B, T]`, or `[M, B, ...]` and `[M, B, T]` if members differ; and weights."""
        (rows, test, chosen), data, domains = samples, self.data, self._domains
        part, members = "test" if test else "valid", _ALL if chosen is None else chosen
        y_BT = target_values(getattr(data, f"{part}_y")[rows]).view(-1, data.positions)
        weight = None if self.classes_MK is None else self.classes_MK[members][:, y_BT.clamp(min=0)]
        if domains is None:
            x, y = getattr(data, f"{part}_x")[rows], y_BT
            x = x.clone() if data.mapped and not self._pinned else x  # read ahead of its use
        else:
            rank_B = getattr(domains, f"{part}_rank")[rows]
            at = self._domain(rank_B, members), torch.arange(len(y_BT), device=rank_B.device)
            x = getattr(domains, f"{part}_x")[:, rows][at]
            y = target_values(getattr(domains, f"{part}_y")[:, rows][at]).view(-1, *y_BT.shape)
            if self._share_MK is not None:
                present = rank_B[:, None] < self._share_MK[members][:, y_BT.clamp(min=0)]
                weight = present if weight is None else weight & present
        if self._ragged:
            weight = ~is_padding(y) if weight is None else weight & ~is_padding(y)
        return self._pin(x), self._pin(y), None if weight is None else self._pin(weight.double())

    def num_measured(self, *, test: bool) -> int:
        """Return the number of samples in the validation or test split."""
        return len(self.data.test_y if test else self.data.valid_y)


def _rows(samples: Tensor, index_MB: Tensor) -> Tensor:
    """Return `samples[index_MB]`, up to twenty times as fast on a CPU."""
    return samples.index_select(0, index_MB.flatten()).unflatten(0, index_MB.shape)


def _on(part: Tensor | None, device: torch.device) -> Tensor | None:
    return None if part is None else part.to(device)


def _cloned(part: Data | Domains) -> dict[str, Any]:
    """Return copies of the tensors of some data by field."""
    tensors = {one.name: getattr(part, one.name) for one in fields(part)}
    return {name: tensor.clone() for name, tensor in tensors.items() if isinstance(tensor, Tensor)}


def is_resident(data: Data, resident: bool | None, free: float | None) -> bool:
    """Return whether to keep the data on a device with `free` bytes of free memory (None: a CPU); see `DeviceConfig`."""
    if resident is not None:
        return resident
    return not data.mapped if free is None else 2 * data.packed_bytes() <= free


def place_data(data: Data, device: torch.device, resident: bool | None) -> Data:
    """Return the data on the device if it is kept there; otherwise leave it in place and set `mapped`, so that it is streamed."""
    packed = data if data.mapped else data.packed()
    resident = is_resident(data, resident, torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None)
    if resident and data.mapped and device.type == "cpu":  # `to` would leave the samples in their files
        packed = replace(packed, **_cloned(packed), domains=packed.domains and replace(packed.domains, **_cloned(packed.domains)))
    return replace(packed.to(device) if resident else packed, mapped=not resident)
