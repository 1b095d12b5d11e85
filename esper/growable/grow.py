"""`esper.grow`: slots in any PyTorch module."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from esper.growable.axes import AXES_OF_SAMPLES, Neighbours, check_axes, refuse_time_last
from esper.growable.features import check_orders, features_of, slot_spec
from esper.growable.module import GrowableModule
from esper.growable.refusal import check_settings
from esper.growable.slot import GrowingSlot, evaluating, slots_after
from esper.lifecycle.gates import GatesConfig
from esper.lifecycle.roles import Incubation
from esper.lifecycle.slots import SlotsConfig

UNMEASURED = ("min_gradient_ratio", "max_gradient_norm")
"""Gates whose values only Esper's own training loop measures."""


def grow(
    module: nn.Module,
    slots: Sequence[str] | Mapping[str, str],
    example: Any,
    *,
    axes: Mapping[str, str] | None = None,
    incubation: str = "none",
    rules: SlotsConfig | None = None,
    gates: GatesConfig | None = None,
) -> GrowableModule:
    """Give a module slots, in which seeds can grow. The module keeps its code, its parameters and its outputs.

    Args:
        module: any module. Hooks are added to the submodules of its slots.
        slots: paths of submodules, such as `["features.3", "layer2"]`; a slot follows each. Its output must be a tensor of
            images `[B, C, H, W]`, vectors `[B, C]` or sequences `[B, T, C]`; of a tuple, list or mapping, seeds grow on the
            first element. A mapping gives the slots names of their own.
        example: a batch of one sample or more, a tuple of the module's arguments, or a dict of its keyword arguments; it is run
            once, in evaluation mode.
        axes: order of the axes in a slot, by its name, where it is another one: `{"features.1": "BHWC"}` for channels-last
            images, `"BCT"` for sequences of `nn.Conv1d`, `"TBC"` for those that are not batch-first. Seeds grow on each frame of
            videos, `"BCTHW"`, and on each slice of volumes, `"BCDHW"`.
        incubation: training of a newborn seed: none (active at once, as the identity), closed_loop (behind the module, in a
            second pass; call `incubate` for each batch), or straight_through (behind it, with the gradient of its output).
        rules: further rules of the lifecycle. By default seeds may be pruned at any age, and a slot is free two epochs later.
        gates: conditions for a seed to advance. By default it must have trained for an epoch, and be measured before it is kept.

    Raises:
        ValueError: a slot is unknown or its output is not of these kinds, or a setting is invalid.
    """
    check_settings(module, rules, gates)
    slots = slots if isinstance(slots, str | Mapping) else list(slots)
    if isinstance(slots, str) or any(not isinstance(one, str) for one in slots):  # pyright: ignore[reportUnnecessaryIsInstance]
        meant = [str(one) for one in cast(Sequence[object], slots) if isinstance(one, int)] or ["features.3"]
        raise ValueError(f"slots must be a list of paths, got {slots!r}: write slots={meant}")
    places = dict(slots) if isinstance(slots, Mapping) else {path: path for path in slots}
    if len(places) < len(slots):
        raise ValueError(f"slots names a submodule twice: {', '.join(slots)}; name each once")
    if not places:
        raise ValueError("slots is empty: name submodules, as in slots=['features.3']")
    if rules is None:
        if incubation not in list(Incubation):
            raise ValueError(f"incubation={incubation!r} is not known: choose from {', '.join(Incubation)}")
        rules = SlotsConfig(min_prune_age=0, embargo=0, incubation=Incubation(incubation))
    elif incubation != "none":
        raise ValueError("incubation is given twice: set it in rules only")
    for name in UNMEASURED:
        if gates is not None and getattr(gates, name) is not None:
            raise ValueError(f"gates.{name} has no effect here, since the gradients are those of your loop: set it to None")
    axes = {} if axes is None else axes
    check_orders(axes, list(places))
    return GrowableModule(module, places, _slots(module, places, example, axes), rules, gates or GatesConfig())


def _slots(module: nn.Module, places: Mapping[str, str], example: Any, axes: Mapping[str, str]) -> list[GrowingSlot]:
    """Return the slots after these submodules, from their outputs for an example."""
    outputs: dict[str, list[object]] = {name: [] for name in places}
    known = dict(module.named_modules(remove_duplicate=False))  # one module may have several names
    for name, path in places.items():
        if not path or path not in known:
            raise ValueError(f"slots: the module has no submodule {path!r}: {_choices(path, [one for one in known if one])}")
        parents = path.split(".")[:-1]
        if any(_is_compiled(known[".".join(parents[:depth])]) for depth in range(len(parents) + 1)):
            raise ValueError(f"slots: {path} is inside a compiled module: call esper.grow first, then torch.compile its result")
        if slots_after(known[path]):
            raise ValueError(f"slots: submodule {path!r} has a slot already: use the network that esper.grow returned")
        if name not in axes:
            refuse_time_last(known[path], name, path)
    if len({known[path] for path in places.values()}) < len(places):
        raise ValueError(f"slots names a submodule twice: {', '.join(places.values())}; name each once")
    handles = [
        known[path].register_forward_hook(lambda _, __, output, name=name: outputs[name].append(output), prepend=True)
        for name, path in places.items()
    ]
    around = Neighbours(module, [known[path] for path in places.values()], example)
    handles += around.handles
    kinds = tuple(kind for kinds in AXES_OF_SAMPLES for kind in kinds)
    handles += [layer.register_forward_hook(_refuse_single) for layer in module.modules() if isinstance(layer, kinds)]
    try:
        with torch.no_grad(), evaluating(module):
            _run(module, example)
    finally:
        for handle in handles:
            handle.remove()
        for part in module.modules():
            if hasattr(part, "reshard"):  # FSDP keeps its parameters gathered after a pass without gradients
                cast(Any, part).reshard()
    for name, found in outputs.items():
        if not found:
            raise ValueError(
                f"slots: {places[name]} is not called for the example in evaluation mode: choose one that is, not a mere "
                "container such as an nn.ModuleList"
            )
        if len(found) > 1:
            raise ValueError(
                f"slots: {places[name]} runs {len(found)} times per forward pass: choose one that runs once, such as one that "
                "contains the loop"
            )
    slots = list[GrowingSlot]()
    for name, (output,) in outputs.items():
        spec, features = slot_spec(name, output, axes.get(name))
        if name not in axes:
            check_axes(module, name, places[name], spec.layout, features_of(output), features.shape, around)
        slots.append(GrowingSlot(spec, features, axes.get(name)))
    return slots


def _choices(path: str, known: list[str]) -> str:
    """Return the end of a sentence that names the submodules closest to a path that is unknown, or else the first ones."""
    inner = [one for one in known if f".{one}".endswith(f".{path}")]
    if close := inner[:3] or get_close_matches(path, known, n=3):
        return f"did you mean {' or '.join(close)}? module.named_modules() lists all"
    if not known:
        return "wrap it in nn.Sequential, and name '0'"
    return f"choose from {', '.join(known[:12])}, ... (module.named_modules())"


def _run(module: nn.Module, example: Any) -> None:
    """Call a module with an example."""
    try:
        if isinstance(example, Mapping):
            module(**example)
        else:
            module(*(example if isinstance(example, tuple) else (example,)))
    except (RuntimeError, TypeError, AttributeError, AssertionError, LookupError) as error:
        if isinstance(example, np.ndarray):
            raise ValueError("the example is a NumPy array: give a tensor, as in torch.from_numpy(example)") from error
        reason = " ".join(str(error).split(", but expected one of")[0].split())
        raise ValueError(
            f"the module cannot be called with this example ({type(error).__name__}: {reason}): give the module's input alone, "
            "without targets; a tuple holds several arguments, a dict keyword arguments"
        ) from error


def _refuse_single(layer: nn.Module, _: object, output: object) -> None:
    """Raise ValueError if a layer of images, sequences or volumes got a sample without a batch."""
    axes = next((axes for kinds, axes in AXES_OF_SAMPLES.items() if isinstance(layer, kinds)), None)
    if isinstance(output, torch.Tensor) and output.dim() == axes:
        raise ValueError(
            f"example is a sample without a batch, since a {type(layer).__name__} returns {tuple(output.shape)} for it: give a "
            "batch of one sample or more, as in sample[None]"
        )


def _is_compiled(module: nn.Module) -> bool:
    """Return whether `torch.compile` made a module. Its programs ignore hooks that were added later."""
    return type(module).__name__ == "OptimizedModule"  # not imported: that takes a second
