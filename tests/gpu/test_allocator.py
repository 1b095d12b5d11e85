"""What a CUDA graph capture, or one that fails, leaves to torch's allocator. Each test has a process of its own: in some versions
of torch, a failed capture also leaves the generator of random numbers unusable."""

import gc
import subprocess
import sys
import time
from threading import Thread

import pytest
import torch

from esper.pool.lane import Lane

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device on this machine")

SHARE = 0.05
"""Share of the GPU's memory that a test may use, since other processes use it, too."""


def fill(share: float) -> torch.Tensor:
    """Allocate a share of the memory that the test may use."""
    total = torch.cuda.get_device_properties("cuda").total_memory
    return torch.empty(int(SHARE * share * total), dtype=torch.uint8, device="cuda")


def fails(x: torch.Tensor) -> None:
    """Copy a constant from the CPU, which cannot be captured."""
    x.add_(torch.tensor(0.5, device="cuda"))


def after_a_capture_that_failed() -> None:
    """Fill the memory after a capture that failed."""
    lane = Lane(torch.device("cuda", 0))
    with lane.issued():
        x = torch.ones(8, device="cuda")
        with pytest.raises(RuntimeError):
            lane.captured(lambda: fails(x))
    lane.disable_graphs()
    gc.collect()
    fill(0.5)  # freed at once, but cached
    fill(0.7)


def beside_a_capture() -> None:
    """Fill the memory on one lane while another one captures."""
    captures, other = (Lane(torch.device("cuda", 0)) for _ in range(2))
    fresh = torch.ones(8, device="cuda")
    fill(0.5)  # freed at once, but cached

    def capture() -> None:
        def slowly() -> None:
            fresh.add(1)
            time.sleep(2)

        with captures.issued():
            captures.captured(slowly)

    thread = Thread(target=capture)
    thread.start()
    time.sleep(1)
    with other.issued():
        fill(0.7)
    thread.join()


@pytest.mark.parametrize("case", [after_a_capture_that_failed, beside_a_capture])
def test_memory_is_still_released(case) -> None:
    code = f"import torch\nfrom {__name__} import {case.__name__} as case\n"
    code += f"torch.cuda.set_per_process_memory_fraction({SHARE})\ncase()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
