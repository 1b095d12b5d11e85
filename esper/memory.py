"""Errors for lack of memory, which arrive as several classes."""

import errno

import torch

_CPU = ("DefaultCPUAllocator", "not enough memory")
"""Parts of the messages of torch's RuntimeErrors for lack of memory on a CPU."""
_GPU = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""The same, on a GPU."""


def memory_shortage(error: BaseException) -> str | None:
    """Return where memory ran out, as in "out of memory on the CPU"; None for any other error."""
    text = str(error) if isinstance(error, RuntimeError) else ""
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:  # as when a process is started
        return "out of memory on the CPU"
    if isinstance(error, MemoryError) or any(part in text for part in _CPU):
        return "out of memory on the CPU"
    if isinstance(error, torch.OutOfMemoryError) or any(part in text for part in _GPU):
        return "out of memory on the GPU"
    return None
