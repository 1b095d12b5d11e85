"""What a CUDA graph capture, or one that fails, leaves to torch's allocator."""

import gc
import time
from threading import Thread

import pytest
import torch

from esper.pool.lane import Lane

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device on this machine")

DEVICE = "cuda"


def fill(share: float) -> torch.Tensor:
    """Allocate a share of the device's memory."""
    total = torch.cuda.get_device_properties(DEVICE).total_memory
    return torch.empty(int(share * total), dtype=torch.uint8, device=DEVICE)


def fails(x: torch.Tensor) -> None:
    """Copy a constant from the CPU, which cannot be captured."""
    x.add_(torch.tensor(0.5, device=DEVICE))


def test_after_a_capture_that_failed_memory_is_still_released() -> None:
    lane = Lane(torch.device(DEVICE, 0))
    with lane.issued():
        x = torch.ones(8, device=DEVICE)
        with pytest.raises(RuntimeError):
            lane.captured(lambda: fails(x))
    lane.disable_graphs()
    gc.collect()
    torch.cuda.empty_cache()
    fill(0.5)  # freed at once, but cached
    fill(0.7)


def test_beside_a_capture_memory_of_other_threads_is_still_released() -> None:
    lane, fresh = Lane(torch.device(DEVICE, 0)), torch.ones(8, device=DEVICE)
    torch.cuda.empty_cache()
    fill(0.5)  # freed at once, but cached

    def capture() -> None:
        def slowly() -> None:
            fresh.add(1)
            time.sleep(2)

        with lane.issued():
            lane.captured(slowly)

    thread = Thread(target=capture)
    thread.start()
    time.sleep(1)
    try:
        fill(0.7)
    finally:
        thread.join()
