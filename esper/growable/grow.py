"""`esper.grow`: slots in any PyTorch module."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from esper.fusion.layout import Layout
from esper.growable.module import GrowableModule
from esper.growable.refusal import check_settings
from esper.growable.slot import evaluating, has_slot, slot_spec
from esper.hosts.base import SlotSpec
from esper.lifecycle.gates import GatesConfig
from esper.lifecycle.roles import Incubation
from esper.lifecycle.slots import SlotsConfig

UNMEASURED = ("min_gradient_ratio", "max_gradient_norm")
"""Gates whose values only Esper's own training loop measures."""

NOT_SEQUENCES = (nn.BatchNorm1d, nn.InstanceNorm1d, nn.Dropout1d)
"""Layers that take the second of three axes for the channels."""
CHANNELS_FIRST = (nn.Conv1d, nn.ConvTranspose1d, nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d)
"""Layers whose outputs `[B, C, L]` would be taken for sequences."""


def grow(
    module: nn.Module,
    slots: Sequence[str] | Mapping[str, str],
    example: Any,
    *,
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
        incubation: training of a newborn seed: none (active at once, as the identity), closed_loop (behind the module, in a
            second pass; call `incubate` for each batch), or straight_through (behind it, with the gradient of its output).
        rules: further rules of the lifecycle. By default seeds may be pruned at any age, and a slot is free two epochs later.
        gates: conditions for a seed to advance. By default it must have trained for an epoch, and be measured before it is kept.

    Raises:
        ValueError: a slot is unknown or its output is not of these kinds, or a setting is invalid.
    """
    check_settings(module, rules, gates)
    if isinstance(slots, str) or any(not isinstance(one, str) for one in slots):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"slots must be a list of paths, got {slots!r}: write slots=['features.3']")
    places = dict(slots) if isinstance(slots, Mapping) else {path: path for path in slots}
    if not places:
        raise ValueError("slots is empty: name submodules, as in slots=['features.3']")
    if len(set(places.values())) < len(slots):
        raise ValueError(f"slots names a submodule twice: {', '.join(slots)}")
    if rules is None:
        if incubation not in list(Incubation):
            raise ValueError(f"incubation={incubation!r} is not known: choose from {', '.join(Incubation)}")
        rules = SlotsConfig(min_prune_age=0, embargo=0, incubation=Incubation(incubation))
    elif incubation != "none":
        raise ValueError("incubation is given twice: set it in rules only")
    for name in UNMEASURED:
        if gates is not None and getattr(gates, name) is not None:
            raise ValueError(f"gates.{name} has no effect here, since the gradients are those of your loop: set it to None")
    return GrowableModule(module, places, _specs(module, places, example), rules, gates or GatesConfig())


def _specs(module: nn.Module, places: Mapping[str, str], example: Any) -> list[SlotSpec]:
    """Return the slots after these submodules, from their outputs for an example."""
    outputs: dict[str, list[object]] = {name: [] for name in places}
    known = dict(module.named_modules())
    for path in places.values():
        if not path or path not in known:
            some = ", ".join([path for path in known if path][:12])
            remedy = f"choose from {some}, ... (module.named_modules())" if some else "wrap it in nn.Sequential, and name '0'"
            raise ValueError(f"slots: the module has no submodule {path!r}: {remedy}")
        parents = path.split(".")[:-1]
        if any(_is_compiled(known[".".join(parents[:depth])]) for depth in range(len(parents) + 1)):
            raise ValueError(f"slots: {path} is inside a compiled module: call esper.grow first, then torch.compile its result")
        if has_slot(known[path]):
            raise ValueError(f"slots: submodule {path!r} has a slot already: use the network that esper.grow returned")
        if isinstance(known[path], CHANNELS_FIRST):
            kind = type(known[path]).__name__
            raise ValueError(
                f"slots: {path} is a {kind}, whose output is channels-first [B, C, L], but seeds grow on sequences [B, T, C]: "
                "put the slot after a submodule whose last axis is the channels"
            )
    handles = [
        known[path].register_forward_hook(lambda _, __, output, name=name: outputs[name].append(output))
        for name, path in places.items()
    ]
    try:
        with torch.no_grad(), evaluating(module):
            if isinstance(example, Mapping):
                module(**example)
            else:
                module(*(example if isinstance(example, tuple) else (example,)))
    finally:
        for handle in handles:
            handle.remove()
    for name, found in outputs.items():
        if len(found) != 1:
            raise ValueError(f"slots: {places[name]} runs {len(found)} times per forward pass: choose one that runs once")
    specs = [slot_spec(name, found[0]) for name, found in outputs.items()]
    for spec in (spec for spec in specs if spec.layout is Layout.SEQUENCES):
        _check_sequences(module, places[spec.name])
    return specs


def _is_compiled(module: nn.Module) -> bool:
    """Return whether `torch.compile` made a module. Its programs ignore hooks that were added later."""
    return type(module).__name__ == "OptimizedModule"  # not imported: that takes a second


def _check_sequences(module: nn.Module, path: str) -> None:
    """Raise ValueError if the output `[B, T, C]` of a submodule has its axes in another order, and warn if it may."""
    layers = list(module.get_submodule(path).modules())
    if isinstance(layers[0], NOT_SEQUENCES):
        raise ValueError(
            f"slots: {path} is a {type(layers[0]).__name__}, whose output is channels-first [B, C, L], but seeds grow on "
            "sequences [B, T, C]: put the slot after a submodule whose last axis is the channels"
        )
    rows_first = isinstance(layers[0], nn.RNNBase) and not layers[0].batch_first
    if rows_first or any(isinstance(layer, nn.MultiheadAttention) and not layer.batch_first for layer in layers):
        raise ValueError(
            f"slots: {path} is not batch-first (its output is [T, B, C]), but seeds grow on sequences [B, T, C]: build it with "
            "batch_first=True"
        )
    if any(isinstance(layer, CHANNELS_FIRST) for layer in module.modules()):
        warnings.warn(
            f"slot after {path}: its output is taken for sequences [B, T, C], but other layers of this module are channels-first "
            "[B, C, L]: make sure that this one is not",
            stacklevel=4,
        )
