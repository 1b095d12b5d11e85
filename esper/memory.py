"""Errors for lack of memory, which arrive as several classes."""

import torch

_SIGNS = ("DefaultCPUAllocator", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Parts of the messages of torch's RuntimeErrors for lack of memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that there is not enough memory, on a CPU or on a GPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)
