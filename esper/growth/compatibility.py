"""Compatibility of hosts and seeds, checked before a run starts."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from esper.fusion.fuse import Fleet
from esper.fusion.stacked import FusionError
from esper.hosts.base import SlotSpec
from esper.seeds.bank import SeedBank, SGDConfig
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.blueprints.registry import check_blueprints


def check_fit(
    host: nn.Module, blueprints: Mapping[str, BlueprintConfig], slots: Sequence[SlotSpec], members: int, task: str
) -> None:
    """Build a host and every seed once, as a shard would. Torch's random stream is unchanged.

    Args:
        host: one of the hosts.
        blueprints: blueprints of the run, by name.
        slots: slots in use.
        members: hosts in the largest shard.
        task: the task as typed, for messages.

    Raises:
        ValueError: a blueprint cannot grow in a slot, or `members` hosts or seeds cannot be fused; the message names it and the
            remedy.
    """
    check_blueprints(blueprints, slots, task)
    few = min(2, members)
    with torch.random.fork_rng(devices=[]):
        _try(task, lambda: Fleet([host] * few))
        for name, blueprint in blueprints.items():
            for slot in slots if blueprint.plantable else ():
                _try(f"blueprint={name}", lambda b=blueprint, s=slot: SeedBank(b, s, few, SGDConfig(), "cpu"))


def _try(what: str, build: Callable[[], object]) -> None:
    try:
        build()
    except FusionError as error:
        raise ValueError(f"{what}: {error}") from error
