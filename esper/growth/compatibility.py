"""Compatibility of task, host and blueprints, checked before a run starts."""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from esper.fusion.fuse import Fleet
from esper.fusion.layout import Layout
from esper.fusion.stacked import FusionError
from esper.hosts.base import SlotSpec, slot_specs
from esper.seeds.bank import SeedBank, SGDConfig
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.blueprints.registry import check_blueprints

AXES = {Layout.IMAGES: (4, 1), Layout.VECTORS: (2, 1), Layout.SEQUENCES: (3, 2)}
"""Number of axes of the features in a slot, and the axis of the channels."""


def check_output(host: nn.Module, x: Tensor, wanted: tuple[int, ...], name: str) -> None:
    """Run a host on samples and compare its features and logits with its slots and the task.

    Args:
        host: one of the hosts; it is left in evaluation mode.
        x: samples.
        wanted: shape of their logits.
        name: task and host as options, for messages.

    Raises:
        ValueError: the host cannot read the samples, or a slot or the logits have another shape.
    """
    segments, slots = list(cast(nn.ModuleList, host.eval().segments)), slot_specs(host)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for index, segment in enumerate(segments):
            try:
                x = segment(x)
            except (RuntimeError, TypeError, ValueError, IndexError) as error:
                raise ValueError(f"{name}: segment {index} of the host fails on {tuple(x.shape)}: {error}") from error
            if index == len(slots):
                break
            slot = slots[index]
            axes, axis = AXES[slot.layout]
            if x.dim() != axes or x.shape[axis] != slot.channels:
                raise ValueError(
                    f"{name}: slot {slot.name} declares {slot.layout} with {slot.channels} channels, but its features have the "
                    f"shape {tuple(x.shape)}: correct its SlotSpec"
                )
    if tuple(x.shape) != wanted:
        raise ValueError(
            f"{name}: the host's output has the shape {tuple(x.shape)}, and the task needs {wanted}, one logit per "
            "class: correct the last segment"
        )


def check_fit(
    host: nn.Module, blueprints: Mapping[str, BlueprintConfig], slots: Sequence[SlotSpec], members: int, name: str
) -> None:
    """Build a host and every seed once, as a shard does. Torch's random stream is left unchanged.

    Args:
        host: one of the hosts.
        blueprints: the blueprints of the run, by name.
        slots: the slots in use.
        members: largest number of hosts per shard.
        name: task and host as options, for messages.

    Raises:
        ValueError: a blueprint cannot grow in a slot, or `members` hosts or seeds cannot be fused into one program; the message
            names the option and the remedy.
    """
    check_blueprints(blueprints, slots, name)
    few = min(2, members)
    with torch.random.fork_rng(devices=[]):
        _try(name, lambda: Fleet([host] * few))
        for blueprint_name, blueprint in blueprints.items():
            for slot in slots if blueprint.plantable else ():
                _try(f"blueprint={blueprint_name}", lambda b=blueprint, s=slot: SeedBank(b, s, few, SGDConfig(), "cpu"))


def _try(what: str, build: Callable[[], object]) -> None:
    try:
        build()
    except FusionError as error:
        raise ValueError(f"{what}: {error}") from error
