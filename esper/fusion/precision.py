"""The precision in which hosts and seeds are computed.

Forward passes run under `torch.autocast`: convolutions, matrix products and attention take half precision, and so do the features
that they return. Weights, gradients of weights, optimiser state and batch statistics stay in single precision, and so do losses.
A norm computes its statistics in single precision, inside its kernel. The residual stream of sequences stays in single precision,
as the embedding returns it.
"""

from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum

import torch
from torch import Tensor


class Precision(StrEnum):
    """Precision of features and of products of weights and features."""

    fp32 = "fp32"
    """Single precision: 24 bits of mantissa, 8 bits of exponent."""
    bf16 = "bf16"
    """8 bits of mantissa, and the range of single precision."""
    fp16 = "fp16"
    """11 bits of mantissa, and numbers up to 65,504: gradients need a loss scale."""
    auto = "auto"
    """bf16, or else fp16, on a GPU and fp32 on a CPU; see `pool.devices.find_precision`."""


HALF = {Precision.bf16: torch.bfloat16, Precision.fp16: torch.float16}
"""Dtype of each half precision."""


def computed_in(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return a context for forward passes in this precision."""
    dtype = HALF.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def as_given(x: Tensor) -> AbstractContextManager[object]:
    """Return a context for a kernel that takes features in half precision as they are, where autocast on a GPU would convert
    them to single precision."""
    return torch.autocast(x.device.type, enabled=False) if x.dtype in HALF.values() else nullcontext()


def in_single(x: Tensor) -> Tensor:
    """Return a tensor in single precision if it is in half precision, else the tensor itself."""
    return x.float() if x.dtype in HALF.values() else x
