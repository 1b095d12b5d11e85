"""A check of newborn seeds of the user's own blueprints, as strict as a training loop of the user's own permits."""

import torch

from esper.growth.probe import Flaw, check_features, flaws
from esper.hosts.base import SlotSpec
from esper.seeds.bank import seed_module
from esper.seeds.blueprints.base import BlueprintConfig


def check_newborn(blueprint: BlueprintConfig, slot: SlotSpec, features: torch.Tensor) -> None:
    """Check that a seed returns features of the same form, is the identity at birth, and leaves its buffers as they are.

    Args:
        features: features of the slot for two samples or more; only their form and signs matter.

    Raises:
        ValueError: it is otherwise.
    """
    with flaws(f"blueprint={type(blueprint).__name__}", f"the seed in slot {slot.name}", features.shape), torch.no_grad():
        branch = seed_module(blueprint, slot, gated=False)
        if not any(True for _ in branch.parameters()):
            raise Flaw("has no parameters and cannot learn: give it some")
        buffers = [buffer.clone() for buffer in branch.buffers()]
        delta = branch(features)
        check_features(delta, features.shape, features.dtype)
        if delta.any():
            raise Flaw("is not the identity at birth: end it in a layer initialised to zero (born_as_zero)")
        if not all(map(torch.equal, buffers, branch.buffers())):
            raise Flaw("changes its buffers, such as running statistics, and must not: use GroupNorm instead of BatchNorm")
