"""Data on a device: images as floats or as bytes, or tokens; and how a batch of them becomes the input of a host."""

# n samples, C channels, T positions

import hashlib
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

IGNORED = -100
"""A target that is none, such as that of a padded position: it counts in no loss and no accuracy (torch's own number for it)."""


class TaskError(ValueError):
    """A task cannot be set up; the message says what is missing and how to get it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """Inputs and targets of the three parts: images `[n, C, H, W]` and classes `[n]`, or tokens and next tokens `[n, T]`.

    Hosts learn from `train`; rewards, counterfactuals and the governor see `valid`; `test` is touched once, by `evaluate`.
    """

    train_x: Tensor
    train_y: Tensor
    valid_x: Tensor
    valid_y: Tensor
    test_x: Tensor
    test_y: Tensor
    num_classes: int
    mean: Tensor | None = None
    """Of images kept as bytes: the mean of each colour `[C, 1, 1]`, from 0 to 255."""
    std: Tensor | None = None
    """Their standard deviation."""

    def to(self, device: torch.device) -> "Data":
        """The same data on a device, where it stays."""
        parts: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        parts |= {name: part.to(device) for name, part in parts.items() if isinstance(part, Tensor)}
        return Data(**parts)

    def inputs(self, samples: Tensor) -> Tensor:
        """Samples `[..., C, H, W]` or `[..., T]` as hosts take them: bytes become floats of mean 0 and deviation 1."""
        if self.mean is None or self.std is None:
            return samples
        return samples.float().sub_(self.mean).div_(self.std)

    def fingerprint(self) -> str:
        """16 hexadecimal digits that differ where the data do: what tells two runs on different versions of a data set apart."""
        digest = hashlib.sha256()
        for field in fields(self):
            part = getattr(self, field.name)
            if isinstance(part, Tensor):
                array: Any = part.cpu().contiguous().numpy()
                digest.update(array)
        return digest.hexdigest()[:16]

    @property
    def positions(self) -> int:
        """Targets of a sample: T of a sequence, 1 of an image."""
        return self.train_y[0].numel()
