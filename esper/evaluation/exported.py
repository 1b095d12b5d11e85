"""Files of a grown network that need no Esper: PyTorch source with weights, `torch.export`, safetensors, and ONNX."""

# B batch

import io
import json
import os
import warnings
from collections.abc import Callable, Mapping
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx.graph import CodeGen

from esper.config import ConfigError
from esper.files import write_whole

ABOUT = "topology.json"
"""File that describes the others."""
TOLERANCE = 1e-5
"""Largest difference of outputs, relative to their largest magnitude, between a network and its files."""
SOURCE = '''"""A network grown by Esper. It needs PyTorch only: `network = load(); network(x)`, with x as `topology.json` says."""

from pathlib import Path

import torch
from torch import device, nn

BUFFERS = @BUFFERS@


def load(folder=Path(__file__).parent):
    """Return the network in evaluation mode."""
    return Network(torch.load(Path(folder) / "weights.pt", weights_only=True)).eval()


class Network(nn.Module):
    def __init__(self, state):
        super().__init__()
        for path, tensor in state.items():
            *parents, name = path.split(".")
            module = self
            for parent in parents:
                if parent not in module._modules:
                    module.add_module(parent, nn.Module())
                module = module._modules[parent]
            if path in BUFFERS:
                module.register_buffer(name, tensor)
            else:
                module.register_parameter(name, nn.Parameter(tensor))

'''


def captured(network: nn.Module, example: Tensor) -> ExportedProgram:
    """Return the network as an exported program for batches of any size, at least 1.

    Args:
        example: a batch of at least two samples.
    """
    with torch.no_grad():
        return torch.export.export(network, (example,), dynamic_shapes=({0: Dim("batch", min=1)},))


def source(program: ExportedProgram) -> tuple[str, dict[str, Tensor]]:
    """Return Python source that computes an exported program, and its weights by name."""
    module: Any = program.module()
    graph = module.graph
    for node in list(graph.nodes):
        if node.op == "call_module" and "guard" in str(node.target):
            graph.erase_node(node)
    (output,) = (node for node in graph.nodes if node.op == "output")
    (output.args,) = output.args  # the program returns a tuple of one
    graph.eliminate_dead_code()
    graph.set_codegen(CodeGen())
    graph.lint()
    buffers = dict(module.named_buffers(remove_duplicate=False))
    held = dict(module.named_parameters(remove_duplicate=False)) | buffers
    first: dict[int, str] = {}
    for name, tensor in held.items():
        first.setdefault(id(tensor), name)
    constants = [node for node in graph.nodes if node.op == "get_attr"]
    for name in {str(node.target) for node in constants}.difference(held):  # a tensor that is neither parameter nor buffer
        held[name] = buffers[name] = _constant(module, name)
        first.setdefault(id(held[name]), name)
    for node in constants:  # a weight that two layers share stays one weight
        node.target = first[id(held[str(node.target)])]
    used = {str(node.target) for node in constants}
    state = {name: held[name].detach().clone().contiguous() for name in sorted(used)}
    lines = graph.python_code("self").src.strip().split("\n")
    text = SOURCE.replace("@BUFFERS@", repr(tuple(name for name in state if name in buffers)))
    return text + "\n".join(f"    {line}" if line.strip() else "" for line in lines) + "\n", state


def _constant(module: nn.Module, path: str) -> Tensor:
    """Return a tensor that an exported program reads.

    Raises:
        ConfigError: it reads a program of its own instead.
    """
    found: Any = reduce(getattr, path.split("."), module)
    if not isinstance(found, Tensor):
        raise ConfigError(
            "this network has a nested program (torch.autocast, torch.cond), which Python source cannot hold: "
            "choose format=export"
        )
    return found


def _written(text: str, folder: Path) -> dict[str, Any]:
    """Write the source of a network as `network.py`, and return what it defines."""
    write_whole(folder / "network.py", text)
    names: dict[str, Any] = {"__file__": str(folder / "network.py")}
    exec(compile(text, str(folder / "network.py"), "exec"), names)
    return names


def write_pytorch(program: ExportedProgram, folder: Path) -> Callable[[Tensor], Tensor]:
    """Write `network.py` and `weights.pt`, and return the network as these files give it."""
    text, state = source(program)
    weights = io.BytesIO()  # torch reports a full disk as an internal error
    torch.save(state, weights)
    write_whole(folder / "weights.pt", weights.getvalue())
    return _written(text, folder)["load"](folder)


def save_program(program: ExportedProgram, path: Path) -> None:
    """Write a program for `torch.export.load`.

    Raises:
        DiskError: writing failed.
    """
    written = io.BytesIO()
    torch.export.save(program, written)
    write_whole(path, written.getvalue())


def write_export(program: ExportedProgram, folder: Path) -> Callable[[Tensor], Tensor]:
    """Write `network.pt2`, for `torch.export.load`, and return the network as it gives it."""
    save_program(program, folder / "network.pt2")
    module: Any = torch.export.load(folder / "network.pt2").module()
    return module


def write_safetensors(program: ExportedProgram, folder: Path) -> Callable[[Tensor], Tensor]:
    """Write `network.py` and `weights.safetensors`, and return the network with these weights."""
    from safetensors.torch import load_file, save

    text, state = source(program)
    write_whole(folder / "weights.safetensors", save(state))
    return _written(text, folder)["Network"](load_file(folder / "weights.safetensors")).eval()


def write_onnx(program: ExportedProgram, folder: Path) -> Callable[[Tensor], Tensor]:
    """Write `network.onnx`, with a batch of any size, and return the network as ONNX Runtime computes it."""
    import onnxruntime

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecated calls within its libraries
        made = torch.onnx.export(
            program,
            (),
            input_names=["x"],
            output_names=["outputs"],
            dynamic_shapes=({0: "batch"},),  # the name of the dimension
            verbose=False,
        )
    assert made is not None
    write_whole(folder / "network.onnx", made.model_proto.SerializeToString())
    session: Any = onnxruntime.InferenceSession(str(folder / "network.onnx"), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


FORMATS = {"pytorch": write_pytorch, "export": write_export, "safetensors": write_safetensors, "onnx": write_onnx}
"""Function that writes a format and returns the network as the files give it."""
NEEDS = {"safetensors": ("safetensors",), "onnx": ("onnx", "onnxscript", "onnxruntime")}
"""Libraries that a format needs beside PyTorch."""


def check_libraries(form: str) -> None:
    """Raise ConfigError if a library of a format is not installed."""
    if lacks := [name for name in NEEDS.get(form, ()) if find_spec(name) is None]:
        raise ConfigError(f"format={form} needs {' and '.join(lacks)}: pip install -c constraints.txt -e '.[export]'")


def write(network: nn.Module, samples: Tensor, folder: Path, form: str, about: Mapping[str, Any]) -> float:
    """Write a network in one format, with `topology.json`, and return the largest relative difference of its outputs.

    Args:
        network: module in evaluation mode, on the CPU.
        samples: samples to compare outputs on.
        folder: folder of the files, created if it is missing; not left behind empty.
        form: name of the format.
        about: content of `topology.json`.

    Raises:
        ConfigError: a library is missing, or the outputs differ by more than `TOLERANCE`.
    """
    check_libraries(form)
    missing = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with TemporaryDirectory(dir=folder) as place:  # what is refused leaves no file, and no earlier file changed
            again = FORMATS[form](captured(network, samples[[0, -1]]), Path(place))
            worst = _error(network, again, samples)
            if not worst <= TOLERANCE:
                raise ConfigError(f"format={form} changes the outputs by a relative error of {worst:.1e}: choose another format")
            write_whole(Path(place) / ABOUT, json.dumps(about, indent=1) + "\n")
            for path in sorted(Path(place).iterdir(), key=lambda one: one.name == ABOUT):  # which tells that the others are whole
                os.replace(path, folder / path.name)
    except BaseException:
        if missing and not any(folder.iterdir()):
            folder.rmdir()
        raise
    return worst


def _error(network: nn.Module, again: Callable[[Tensor], Tensor], samples: Tensor) -> float:
    """Return the largest relative difference of the outputs of a network, in whole batches and alone."""
    with torch.no_grad():
        pairs = [(network(part), again(part)) for part in (samples, samples[:1])]
    errors = [float((one - other).abs().max() / one.abs().max().clamp(min=1e-12)) for one, other in pairs]
    return float(np.max(errors))  # NaN if any is
