"""Measures growth potential (see `potential`) of every slot and blueprint, at the end of each epoch of training.

Of tiny hosts a handful of samples cost next to nothing, and the number of kernels all. So every slot is measured for all members
at once, and its blueprints share what they can.
"""

# M members, S slots, K blueprints, J the simple ones of them, X samples and places, C channels, F inputs of their last layers

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.fusion.layers import ChannelScale
from esper.hosts.base import SlotSpec
from esper.measure.potential import Dormant, beyond, by_place
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.errors import seed_errors
from esper.seeds.slot_gradients import SlotGradients

SAMPLES = 4
"""Samples of each member in an epoch's last batch, at least. More: steadier and dearer, see benchmarks/README.md."""
SPOTS = 4
"""Vectors for each feature of a slot, at least, so that the fit leaves something."""


class SlotSensor:
    """Measures all blueprints at one slot.

    Most branches end in the only layer that has a gradient at birth: a map of zeros, or a scale of zeros for each channel. The
    inputs of all these layers are laid side by side, so that one product with dL/dy holds the gradients of all, the scales' on a
    diagonal.
    """

    def __init__(self, blueprints: Sequence[BlueprintConfig], slot: SlotSpec, device: torch.device | str) -> None:
        self.blueprints, self.slot = tuple(blueprints), slot
        self.dormant = [_dormant(blueprint, slot, device) for blueprint in blueprints]
        ranked = [(rank, one) for rank, one in enumerate(self.dormant) if one is not None]
        self.others = [(rank, one) for rank, one in ranked if one.simple is None]
        simple = [(rank, one.simple) for rank, one in ranked if one.simple is not None]
        self.trunks = [one.trunk for _, one in simple]
        self.ranks = [rank for rank, _ in simple]
        self.ranks_J = torch.tensor(self.ranks, dtype=torch.long, device=device)
        self.mask_PJ = _weights([one.last for _, one in simple], slot.channels).to(device) if simple else None

    def measure(self, felt: SlotGradients) -> Tensor:
        """Growth potential `[M, K]`, NaN where the blueprint cannot grow.

        Raises:
            SeedError: the branch of a blueprint raised an error.
        """
        left = beyond(felt)
        members = len(felt.features)
        potential_MK = torch.full((members, len(self.dormant)), torch.nan, device=felt.grad.device)
        if self.mask_PJ is not None:
            h = felt.features.flatten(0, 1)
            wide = torch.cat([self._through(j, h) for j in range(len(self.trunks))], 1 if h.dim() == 4 else -1)
            wide_MXF = F.pad(by_place(wide.unflatten(0, (members, -1))), (0, 1), value=1.0)
            product_MFC = wide_MXF.mT @ by_place(left.grad)
            potential_MK.index_copy_(1, self.ranks_J, product_MFC.square().flatten(1) @ self.mask_PJ)
        for rank, one in self.others:
            with seed_errors(self.blueprints[rank], self.slot):
                potential_MK[:, rank] = one.potential(left)
        return potential_MK

    def _through(self, j: int, h: Tensor) -> Tensor:
        """What the j-th of the simple branches makes of the features before its last layer."""
        with seed_errors(self.blueprints[self.ranks[j]], self.slot):
            return self.trunks[j](h)


def _weights(layers: Sequence[nn.Linear | nn.Conv2d | ChannelScale], channels: int) -> Tensor:
    """Which products of an input, the last of which is 1, and an output are weights of which layer: 0/1 `[F * C, J]`."""
    widths = [layer.weight.shape[1] if layer.weight.dim() > 1 else channels for layer in layers]
    weights_FCJ = torch.zeros(sum(widths) + 1, channels, len(layers))
    for j, (layer, rows_FC) in enumerate(zip(layers, weights_FCJ[:-1].split(widths), strict=True)):
        rows_FC[:, :, j] = torch.eye(channels) if isinstance(layer, ChannelScale) else 1.0
        weights_FCJ[-1, :, j] = float(getattr(layer, "bias", None) is not None)
    return weights_FCJ.flatten(0, 1)


class PotentialSensor:
    """Measures every slot and blueprint."""

    def __init__(self, blueprints: Sequence[BlueprintConfig], slots: Sequence[SlotSpec], device: torch.device | str) -> None:
        self.slots = [SlotSensor(blueprints, slot, device) for slot in slots]

    def measure(self, felt: Sequence[SlotGradients]) -> Tensor:
        """Growth potential `[M, S, K]` from what each slot felt, NaN where the blueprint cannot grow."""
        return torch.stack([sensor.measure(one) for sensor, one in zip(self.slots, felt, strict=True)], 1)


def _dormant(blueprint: BlueprintConfig, slot: SlotSpec, device: torch.device | str) -> Dormant | None:
    if not blueprint.plantable or blueprint.obstacle(slot) is not None:
        return None
    with seed_errors(blueprint, slot):
        return Dormant(blueprint, slot, device)
