"""A GPU that exists only in this process: its tensors are computed on the CPU, but belong to a device of their own.

    python -m tests.emulated cnn cuda:0 cuda:1

An operation on tensors of two devices is refused, as CUDA does, and every wait of the CPU for the device is counted with the line
that asked: a copy to the CPU, or a value for Python. So code runs here as on a GPU, without one: what is left untested is CUDA's
own, such as streams, graphs, kernels and memory. torch keeps such a device for the rest of a process, hence the command, which
prints JSON.
"""

import json
import os
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils import backend_registration

import esper
from tests.worlds import environment, grown, in_a_loop

NAME = "emulated"
ESPER = f"{Path(esper.__file__).parent}{os.sep}"
COPIES = {"aten::_to_copy", "aten::copy_"}
"""Operations that may read one device and write another."""
READS = {"aten::_local_scalar_dense", "aten::equal", "aten::nonzero"}
"""Operations whose result, or its shape, Python needs."""

emulates = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"), reason="this version of torch is too old"
)
"""Mark of tests on the device."""
waits: Counter[str] = Counter()
"""Waits of the CPU for the device, by the line of Esper that asked."""


class EmulatedTensor(Tensor):
    """A tensor of the device."""

    on_cpu: Tensor
    """Its values."""
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportPrivateUsage]

    @staticmethod
    def __new__(cls, on_cpu: Tensor, device: torch.device) -> "EmulatedTensor":
        layout = {"strides": on_cpu.stride(), "storage_offset": on_cpu.storage_offset(), "dtype": on_cpu.dtype}
        made = Tensor._make_wrapper_subclass(cls, on_cpu.shape, **layout, device=device)  # pyright: ignore[reportPrivateUsage]
        made.on_cpu = on_cpu
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.cpu().tolist()


def compute(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute an operation on the CPU, and return its results as tensors of the device that its arguments are on."""
    name, given = func._schema.name, pytree.tree_leaves((args, kwargs))
    device = _device_of(name, given)
    target = kwargs.get("device")
    leaves = name == "aten::_to_copy" and target is not None and torch.device(target).type != NAME
    if leaves or name in READS or (name == "aten::copy_" and not isinstance(args[0], EmulatedTensor)):
        asked = [frame for frame in traceback.extract_stack() if frame.filename.startswith(ESPER)]
        waits[f"{asked[-1].filename.removeprefix(ESPER)}: {asked[-1].line}" if asked else "elsewhere"] += 1
    out = func(*pytree.tree_map(_to_cpu, args), **pytree.tree_map(_to_cpu, kwargs))
    if leaves:
        return out
    same = {id(one.on_cpu): one for one in given if isinstance(one, EmulatedTensor)}  # of an operation in place, its argument

    def wrapped(one: Any) -> Any:
        if not isinstance(one, Tensor):
            return one
        return same[id(one)] if id(one) in same else EmulatedTensor(one, device)

    return pytree.tree_map(wrapped, out)


def _device_of(name: str, given: list[Any]) -> torch.device:
    """Return the device of an operation's results.

    Raises:
        RuntimeError: its tensors are on several devices; a CPU scalar may be among them, as on a GPU.
    """
    tensors = [one for one in given if isinstance(one, Tensor)]
    named = [one for one in given if isinstance(one, torch.device) and one.type == NAME]
    found = {one.device for one in tensors if isinstance(one, EmulatedTensor) or one.dim()}
    if len(found) > 1 and name not in COPIES:
        raise RuntimeError(f"{name}: expected all tensors on one device, got {', '.join(sorted(map(str, found)))}")
    (device, *_) = [*named, *(one.device for one in tensors if isinstance(one, EmulatedTensor))]
    return torch.device(NAME, device.index or 0)


def _to_cpu(one: Any) -> Any:
    if isinstance(one, EmulatedTensor):
        return one.on_cpu
    return torch.device("cpu") if isinstance(one, torch.device) and one.type == NAME else one


def emulate() -> list[torch.library.Library]:
    """Let the names of GPUs mean emulated ones in this process.

    Returns:
        What torch knows of the devices, as long as it exists.
    """
    backend_registration._setup_privateuseone_for_python_backend(NAME)  # pyright: ignore[reportPrivateUsage]
    users = [module for name, module in sys.modules.items() if name.startswith("esper.") and hasattr(module, "find_device")]
    for module in users:
        module.find_device = lambda name: torch.device(name.replace("cuda", NAME))  # pyright: ignore[reportAttributeAccessIssue]
    everything, own = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    everything.fallback(lambda func, *args, **kwargs: compute(func, args, kwargs), "PrivateUse1")
    for name in ("_to_copy", "copy_"):  # a tensor of the CPU that is copied to the device does not reach the fallback
        func = getattr(torch.ops.aten, name).default
        own.impl(name, _computing(func), "PrivateUse1")
    return [everything, own]


def _computing(func: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: compute(func, args, kwargs)


def main(*given: str) -> None:
    """Print what is found in each world: `given` are their names, each with its devices and overrides, with `--` between them."""
    kept, worlds = emulate(), [world.split() for world in " ".join(given).split("--")]
    print(json.dumps([in_world(*world) for world in worlds]))
    del kept


def in_world(world: str, *given: str) -> dict[str, Any]:
    """Return the losses of an episode, the waits of all steps but the first and the last, and what is said of tensors on two
    devices; `given` are devices and overrides. Or, with `loop`, what `in_a_loop` returns."""
    names, more = ([one for one in given if ("=" in one) == override] for override in (False, True))
    with TemporaryDirectory() as folder:
        if world == "loop":
            return {"found": in_a_loop(torch.device(NAME), Path(folder))}
        with closing(environment(world, Path(folder), names, *more)) as env:
            until: list[Counter[str]] = []
            losses = grown(world, env, lambda: until.append(waits.copy()))
    found = {"losses": losses.tolist(), "waits": until[-2] - until[0]}  # the last step also starts the next episode
    try:
        torch.ones(2, device=NAME) + torch.ones(2)
    except RuntimeError as error:
        found["refused"] = str(error)
    return found


def on_emulated_gpu(*worlds: Sequence[str]) -> list[dict[str, Any]]:
    """Return what the command prints of these worlds, each with its devices and overrides."""
    given = " -- ".join(" ".join(world) for world in worlds).split()
    command = [sys.executable, "-m", "tests.emulated", *given]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
