"""Copies of small arrays to a device."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def on_device(values: npt.NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """Return an array, or a tensor of the CPU, as a tensor on a device, without waiting for a GPU."""
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(np.ascontiguousarray(values))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
