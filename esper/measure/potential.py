"""Growth potential: the first-order benefit of a newborn seed of each blueprint, for each host and slot.

Put a branch delta of a blueprint into a slot, y = h + delta(h), with an output of zero at birth. The host computes the same as
before, and the gradient of its loss L with respect to the branch's weights w is

    dL/dw = sum over samples and places of dL/dy(p) . d delta(h)(p) / dw

which needs only h and dL/dy. Training computes both: nothing is inserted, and the host is not touched. A step of plain gradient
descent at rate r would lower the loss by r |dL/dw|^2 + O(r^2).

The host can do much of that without a seed. Its own next layer applies a linear map of h at the same place anyhow, and early in
training a host gains more from its own weights than from any seed. So only the residual counts: dL/dy minus its least squares
fit by h and a constant, over the samples and places of each member. The **growth potential** is

    the squared norm of dL/dw with dL/dy - fit in the place of dL/dy     [nats per unit of the seed's learning rate]

One projection per slot suffices, since the fit could as well be subtracted from the features that the last map sees. Valuing a
new unit by its first gradient is from GradMax (Evci et al. 2022, https://arxiv.org/abs/2201.05125), counting only what the host
cannot do itself from TINY (Verbockhaven et al. 2024, https://arxiv.org/abs/2405.19816). First weights are one fixed draw for each
slot and blueprint, the same for all hosts, at all times and in all runs, so that the numbers of two hosts or two epochs can be
compared. Evidence: experiments/2026-11-21_growth_potential.

In a branch whose last map is zero at birth only that map has a gradient, so the rest of the branch is run forward only. Features
h are those that leave the slot: for an occupied slot the potential is that of one more seed on top. It is measured for an
additive seed with default first weights; other blends and informed weights are not accounted for.

Noise adds to a squared norm: for n samples whose gradients have covariance V it is too high by trace(V) / n, at any slot.

All members of a slot are measured at once, and blueprints share what they can: for tiny hosts a handful of samples costs next to
nothing, and the number of kernels is the whole cost.
"""

# M members, n samples a member, X samples and places, C channels, D channels and a constant, P parameters, S slots, K blueprints,
# J simple blueprints, F inputs of their last layers

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.fusion.layers import ChannelScale
from esper.fusion.layout import Layout
from esper.hosts.base import SlotSpec
from esper.seeding import torch_stream
from esper.seeds.bank import newborn
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.errors import seed_errors
from esper.seeds.slot_gradients import SlotGradients

SAMPLES = 4
"""Minimum number of samples per member, from the last batch of an epoch. Higher: less noise, more work; see
benchmarks/README.md."""
SPOTS = 4
"""Minimum number of vectors per feature of a slot, so that the fit leaves a residual."""


def by_place(x: Tensor) -> Tensor:
    """Return the samples of each member `[M, n, ...]` as vectors of channels `[M, X, C]`, one for each sample and place."""
    return (x.movedim(2, -1) if x.dim() == 5 else x).flatten(1, -2)


def residual(gradients: SlotGradients) -> SlotGradients:
    """Subtract from dL/dy its least squares fit by h and a constant, by member, over samples and places.

    A ridge of 1e-6 of each feature's square handles collinear features; dead features fit nothing.
    """
    h_MXC, grad_MXC = by_place(gradients.features), by_place(gradients.grad)
    h_MXD = torch.cat([h_MXC, torch.ones_like(h_MXC[:, :, :1])], 2)
    gram_MDD = h_MXD.mT @ h_MXD
    square_MD = gram_MDD.diagonal(dim1=1, dim2=2)
    square_MD += 1e-6 * square_MD + (square_MD == 0)
    fit_MDC, _ = torch.linalg.solve_ex(gram_MDD, h_MXD.mT @ grad_MXC)
    residual_MXC = torch.baddbmm(grad_MXC, h_MXD, fit_MDC, alpha=-1)
    if gradients.grad.dim() != 5:
        return SlotGradients(features=gradients.features, grad=residual_MXC.view(gradients.grad.shape))
    return SlotGradients(features=gradients.features, grad=residual_MXC.view(gradients.grad.movedim(2, -1).shape).movedim(-1, 2))


class RecordedLayer(nn.Module):
    """A layer of a newborn branch that records its inputs, and at whose output the autograd graph starts."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.calls: list[tuple[Tensor, Tensor]] = []
        """Input and output of each call in the last pass."""
        dead = not any(parameter.any() for parameter in layer.parameters())
        self.zero_map = layer if dead and _is_map(layer) else None

    def forward(self, x: Tensor) -> Tensor:
        output = self.layer(x) if self.zero_map is None else _zeros(self.zero_map, x)
        output = output.requires_grad_() if output.is_leaf else output
        self.calls.append((x.detach(), output))
        return output


def _zeros(layer: nn.Linear | nn.Conv2d, x: Tensor) -> Tensor:
    """Return the output of a map whose weights are zero, without computing it."""
    if isinstance(layer, nn.Linear):
        return x.new_zeros(()).expand(*x.shape[:-1], layer.out_features)
    return x.new_zeros(()).expand(len(x), layer.out_channels, *x.shape[2:])


class NewbornBranch:
    """A newborn branch of one blueprint at one slot, never trained; all members share its weights.

    So the samples of all members run through it as one batch, forward only. Members differ in the gradients of the layers that
    have one at birth, which are computed from each layer's input and the gradient at its output.
    """

    def __init__(self, blueprint: BlueprintConfig, slot: SlotSpec, device: torch.device | str) -> None:
        row = newborn(blueprint, slot, torch_stream(0, "dormant", type(blueprint).__name__, slot.name, slot.channels))
        self.branch = blueprint.branch(slot)
        nn.utils.vector_to_parameters(row, self.branch.parameters())
        found = _layers_with_gradient(self.branch, slot)
        self.branch.requires_grad_(False)
        self.simple = _simple(self.branch, found, slot, device)
        self.recorded: list[RecordedLayer] = []
        for path, layer in found:
            self.recorded.append(RecordedLayer(layer))
            self.branch.set_submodule(path, self.recorded[-1])
        self.branch.to(device)

    def gradients(self, gradients: SlotGradients) -> Tensor:
        """Return the first gradients of all parameters that have one `[M, P]`."""
        members = len(gradients.features)
        if not self.recorded:
            return gradients.features.new_zeros(members, 1)
        for recorded in self.recorded:
            recorded.calls.clear()
        delta = self.branch(gradients.features.flatten(0, 1))
        uses = [(recorded.layer, given, output) for recorded in self.recorded for given, output in recorded.calls]
        grads = torch.autograd.grad(delta, [output for *_, output in uses], gradients.grad.flatten(0, 1))
        of_layer: dict[nn.Module, list[Tensor]] = {}
        for (layer, given, _), grad in zip(uses, grads, strict=True):
            parts = [part.flatten(1) for part in layer_gradient(layer, given, grad, members)]
            sofar = of_layer.get(layer)
            of_layer[layer] = parts if sofar is None else [a + b for a, b in zip(sofar, parts, strict=True)]
        return torch.cat([part for parts in of_layer.values() for part in parts], 1)

    def potential(self, gradients: SlotGradients) -> Tensor:
        """Return the squared norm of each member's first gradient `[M]` [nats per unit of learning rate], from a `residual`."""
        return self.gradients(gradients).square().sum(1)


def layer_gradient(layer: nn.Module, given: Tensor, grad: Tensor, groups: int) -> list[Tensor]:
    """Return the gradient of each parameter of a layer `[G, ...]`, for each of G consecutive groups of samples.

    Args:
        given: the layer's input `[G*n, ...]`.
        grad: gradient at its output, for the same samples.
    """
    if isinstance(layer, ChannelScale):
        by_channel = (given * grad).sum(tuple(range(2, given.dim()))) if given.dim() == 4 else (given * grad).flatten(0, -2)
        return [by_channel.unflatten(0, (groups, -1)).sum(1)]
    if _is_map(layer):
        x, dy = (part.movedim(1, -1) if isinstance(layer, nn.Conv2d) else part for part in (given, grad))
        x_GRI, dy_GRO = x.reshape(groups, -1, x.shape[-1]), dy.reshape(groups, -1, dy.shape[-1])
        weight_GOI = dy_GRO.transpose(1, 2) @ x_GRI
        return [weight_GOI] if layer.bias is None else [weight_GOI, dy_GRO.sum(1)]  # pyright: ignore[reportUnnecessaryComparison]
    parameters = list(layer.parameters(recurse=False))
    rows: list[Sequence[Tensor]] = []
    with torch.enable_grad():
        leaves = [parameter.detach().requires_grad_() for parameter in parameters]
        names = [name for name, _ in layer.named_parameters(recurse=False)]
        for x, dy in zip(given.chunk(groups), grad.chunk(groups), strict=True):
            y = torch.func.functional_call(layer, dict(zip(names, leaves, strict=True)), (x,))
            rows.append(torch.autograd.grad(y, leaves, dy))
    return [torch.stack(row) for row in zip(*rows, strict=True)]


def _is_map(layer: nn.Module) -> TypeGuard[nn.Linear | nn.Conv2d]:
    """Return whether the layer maps the channels of each sample and place by one matrix."""
    return isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and _pointwise(layer))


def _pointwise(layer: nn.Conv2d) -> bool:
    return layer.kernel_size == layer.stride == (1, 1) and layer.padding == (0, 0) and layer.groups == 1


class Simple(NamedTuple):
    """A branch that ends in its only layer with a gradient at birth, a map or a scale of channels."""

    trunk: nn.Module
    """The branch without its last layer."""
    last: nn.Linear | nn.Conv2d | ChannelScale


def _simple(
    branch: nn.Module, learning: Sequence[tuple[str, nn.Module]], slot: SlotSpec, device: torch.device | str
) -> Simple | None:
    """Split a branch into trunk and last layer; None where it is not of that kind."""
    if len(learning) != 1:
        return None
    [(path, last)] = learning
    if not isinstance(last, ChannelScale) and not _is_map(last):
        return None
    made: list[Tensor] = []

    def keep(_: nn.Module, __: tuple[Any, ...], output: Tensor) -> None:
        made.append(output)

    handle = last.register_forward_hook(keep)
    delta = branch(_random(slot)[0])
    handle.remove()
    if len(made) != 1 or delta is not made[0]:
        return None
    trunk = nn.Sequential(copy.deepcopy(branch))
    trunk.set_submodule(f"0.{path}" if path else "0", nn.Identity())
    return Simple(trunk.to(device), last)


def _random(slot: SlotSpec) -> tuple[Tensor, Tensor]:
    """Return random features and random gradients for a slot."""
    shape = {
        Layout.IMAGES: (8, slot.channels, 8, 8),
        Layout.VECTORS: (64, slot.channels),
        Layout.SEQUENCES: (8, 8, slot.channels),
    }
    generator = torch_stream(0, "dormant", "awake")
    h, grad = (torch.randn(shape[slot.layout], generator=generator) for _ in range(2))
    return h, grad


def _layers_with_gradient(branch: nn.Module, slot: SlotSpec) -> list[tuple[str, nn.Module]]:
    """Return the layers with a gradient at birth, by path, found on random features."""
    h, grad = _random(slot)
    with torch.enable_grad():
        delta: Tensor = branch(h)
        if delta.requires_grad:
            delta.backward(grad)
    return [
        (path, layer)
        for path, layer in branch.named_modules()
        if any(parameter.grad is not None and parameter.grad.any() for parameter in layer.parameters(recurse=False))
    ]


class SlotSensor:
    """Measures all blueprints at one slot.

    Most branches end in their only layer that has a gradient at birth: a map of zeros, or a scale of zeros for each channel. The
    inputs of all these layers are concatenated, so that one product with dL/dy holds the gradients of all, those of scales on a
    diagonal.
    """

    def __init__(self, blueprints: Sequence[BlueprintConfig], slot: SlotSpec, device: torch.device | str) -> None:
        self.blueprints, self.slot = tuple(blueprints), slot
        self.branches = [_newborn_branch(blueprint, slot, device) for blueprint in blueprints]
        ranked = [(rank, one) for rank, one in enumerate(self.branches) if one is not None]
        self.others = [(rank, one) for rank, one in ranked if one.simple is None]
        simple = [(rank, one.simple) for rank, one in ranked if one.simple is not None]
        self.trunks = [one.trunk for _, one in simple]
        self.ranks = [rank for rank, _ in simple]
        self.ranks_J = torch.tensor(self.ranks, dtype=torch.long, device=device)
        self.mask_PJ = _weights([one.last for _, one in simple], slot.channels).to(device) if simple else None

    def measure(self, gradients: SlotGradients) -> Tensor:
        """Return the growth potential `[M, K]`, NaN where the blueprint cannot grow.

        Raises:
            SeedError: the branch of a blueprint raised an error.
        """
        rest = residual(gradients)
        members = len(gradients.features)
        potential_MK = torch.full((members, len(self.branches)), torch.nan, device=gradients.grad.device)
        if self.mask_PJ is not None:
            h = gradients.features.flatten(0, 1)
            wide = torch.cat([self._through(j, h) for j in range(len(self.trunks))], 1 if h.dim() == 4 else -1)
            wide_MXF = F.pad(by_place(wide.unflatten(0, (members, -1))), (0, 1), value=1.0)
            product_MFC = wide_MXF.mT @ by_place(rest.grad)
            potential_MK.index_copy_(1, self.ranks_J, product_MFC.square().flatten(1) @ self.mask_PJ)
        for rank, one in self.others:
            with seed_errors(self.blueprints[rank], self.slot):
                potential_MK[:, rank] = one.potential(rest)
        return potential_MK

    def _through(self, j: int, h: Tensor) -> Tensor:
        """Return the input of the last layer of the j-th simple branch."""
        with seed_errors(self.blueprints[self.ranks[j]], self.slot):
            return self.trunks[j](h)


def _weights(layers: Sequence[nn.Linear | nn.Conv2d | ChannelScale], channels: int) -> Tensor:
    """Return which products of an input (the last is the constant 1) and an output are weights of each layer: 0/1 `[F*C, J]`."""
    widths = [layer.weight.shape[1] if layer.weight.dim() > 1 else channels for layer in layers]
    weights_FCJ = torch.zeros(sum(widths) + 1, channels, len(layers))
    for j, (layer, rows_FC) in enumerate(zip(layers, weights_FCJ[:-1].split(widths), strict=True)):
        rows_FC[:, :, j] = torch.eye(channels) if isinstance(layer, ChannelScale) else 1.0
        weights_FCJ[-1, :, j] = float(getattr(layer, "bias", None) is not None)
    return weights_FCJ.flatten(0, 1)


class PotentialSensor:
    """Measures all blueprints at every slot."""

    def __init__(self, blueprints: Sequence[BlueprintConfig], slots: Sequence[SlotSpec], device: torch.device | str) -> None:
        self.slots = [SlotSensor(blueprints, slot, device) for slot in slots]

    def measure(self, gradients: Sequence[SlotGradients]) -> Tensor:
        """Return the growth potential `[M, S, K]` from the gradients of each slot, NaN where the blueprint cannot grow."""
        return torch.stack([sensor.measure(one) for sensor, one in zip(self.slots, gradients, strict=True)], 1)


def _newborn_branch(blueprint: BlueprintConfig, slot: SlotSpec, device: torch.device | str) -> NewbornBranch | None:
    if not blueprint.plantable or blueprint.obstacle(slot) is not None:
        return None
    with seed_errors(blueprint, slot):
        return NewbornBranch(blueprint, slot, device)
