"""Devices of hosts: their config, and what this machine has."""

import os
import platform
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from esper.fusion.precision import Precision
from esper.notices import UserNotice
from esper.options import Option
from esper.ranges import check_ranges
from esper.text import counted


@dataclass(kw_only=True, slots=True)
class DeviceConfig(Option):
    """How hosts train on a device; the device's name is its key in the config."""

    members_per_shard: int = 0
    """Hosts trained as one fused program, at least 0; 0 takes all of the device's hosts on a GPU, and on a CPU as many as fit the
    cache, at most 32 small hosts or 16 others; large hosts are dealt to two shards or more. Shards run in parallel threads.
    Results are the same for every value up to float rounding."""

    tune: bool = False
    """If true, time several shard sizes before training and use the fastest instead of `members_per_shard`; the run then keeps
    it. Two runs of the same command may use different sizes, and then differ by float rounding."""
    resident: bool | None = None
    """If true, the data is copied to the device; if false, a background thread reads each batch ahead of its use, from memory or
    from memory-mapped files. Null: resident where the data takes at most half of a GPU's free memory, and on a CPU unless it is
    mapped. Results are the same."""

    graphs: bool = True
    """If true, a GPU replays the training step of a shard from a CUDA graph, which is captured again if the stages or blend
    weights of seeds have changed and at least 4 batches of the epoch are left. Results are the same. Not used on a CPU or with
    more than 32 shards."""
    own_kernels: bool = True
    """If true, a CPU computes convolutional hosts of few channels with Esper's own kernels, which train them up to twice as fast
    as PyTorch's. Only in single precision. Results are the same up to float rounding."""
    precision: Precision = Precision.fp32
    """Precision in which hosts and seeds are computed: `fp32`; `bf16`, faster, with 2 to 3 significant digits; `fp16`, for GPUs
    without bf16, with a loss scale for each host; `auto` takes bf16 or else fp16 on a GPU, and fp32 on a CPU. Weights,
    optimisers, losses, batch statistics and the policy always use single precision."""

    @property
    def uses_own_kernels(self) -> bool:
        """Whether Esper's own kernels may compute hosts, if this is a CPU, unless Numba is told not to compile."""
        compiles = os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")
        return compiles and self.own_kernels and self.precision in (Precision.fp32, Precision.auto)

    def __post_init__(self) -> None:
        check_ranges("devices.<name>", self, {"[0, inf]": ["members_per_shard"]})
        if self.tune and self.members_per_shard:
            raise ValueError("devices.<name>.tune=true finds members_per_shard by timing: leave out one of the two")


_turn = 0
"""Number of this run among those that share the GPUs of the machine."""


def take_turn(number: int) -> None:
    """Set the GPU that `auto` and `cuda` mean from now on: this number, modulo the number of GPUs."""
    global _turn
    _turn = number


def current_turn() -> int:
    """Return the number that `take_turn` has set."""
    return _turn


def find_device(name: str) -> torch.device:
    """Return the torch device of this name. `auto` and `cuda` mean the first GPU, or the one dealt to this run; without a GPU,
    `auto` means the CPU.

    Raises:
        ValueError: this machine does not have the device.
    """
    if name == "auto" and not torch.cuda.is_available():
        return torch.device("cpu")
    if name in ("auto", "cuda") and (count := torch.cuda.device_count()):
        return torch.device("cuda", _turn % count)
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ValueError(
            f"devices=[{name}] is not on this machine, which has {counted(count, 'CUDA device')}: "
            "choose devices=[cpu], or leave devices out"
        )
    return device


def find_precision(name: str, precision: Precision) -> Precision:
    """Return the precision in which a device of this machine computes, and notify the user where it is slow.

    Raises:
        ValueError: the device does not compute in it, or this machine does not have the device.
    """
    device = find_device(name)
    # torch.cuda.is_bf16_supported asks the current GPU only.
    has_bf16 = device.type == "cuda" and (torch.version.hip or torch.cuda.get_device_properties(device).major >= 8)
    if precision is Precision.auto:
        half = Precision.bf16 if has_bf16 else Precision.fp16
        return half if device.type == "cuda" else Precision.fp32
    if precision is Precision.bf16 and device.type == "cuda" and not has_bf16:
        chip = torch.cuda.get_device_name(device)
        raise ValueError(f"devices.{name}.precision=bf16 needs a GPU that computes in it, and {chip} does not: choose fp16")
    if precision is Precision.fp16 and device.type == "cpu":
        slow = f"devices.{name}.precision=fp16 is up to twenty times slower than fp32 on a CPU: choose bf16, or a GPU"
        warnings.warn(slow, UserNotice, stacklevel=2)
    return precision


def compute_exactly(devices: Iterable[torch.device]) -> None:
    """Disable TF32 on GPUs: in convolutions, where it is torch's default, and in matrix products, where a script or a container's
    environment variable may have enabled it."""
    if any(device.type == "cuda" for device in devices):
        torch.backends.cudnn.allow_tf32 = False
        torch.set_float32_matmul_precision("highest")  # cuda.matmul.allow_tf32 = False would leave torch's own getter failing


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, or of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())
