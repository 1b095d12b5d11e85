"""Growth potential: how much would a newborn seed of each blueprint help a host, here and now, at first order?

Put a branch delta of a blueprint into a slot, y = h + delta(h), born as nothing. The host computes what it computed, and the
gradient of its loss L with respect to the branch's weights w is

    dL/dw = sum over samples and places of dL/dy(p) . d delta(h)(p) / dw

which needs h and dL/dy only, and training has both at hand: nothing is inserted, and the host is not touched. A step of plain
gradient descent at rate r would lower the loss by r |dL/dw|^2 + O(r^2).

Much of that the host can do without a seed. A linear map of h at the same place is what its own next layer applies anyhow,
and early in training a host has more to gain from its own weights than from any seed. So only what is beyond such a map
counts: dL/dy is taken less its least squares fit by h and a constant, over the samples and places of each member. The
**growth potential** is

    the squared norm of dL/dw with dL/dy - fit in the place of dL/dy     [nats per unit of the seed's learning rate]

It needs no more than that one projection a slot, since the fit could as well be taken off the features that the last map
sees. That a new unit is worth its first gradient is from GradMax (Evci et al. 2022, https://arxiv.org/abs/2201.05125), to
count only what the host cannot do itself from TINY (Verbockhaven et al. 2024, https://arxiv.org/abs/2405.19816). Here both
make a sensor: for each host, slot and blueprint, of seeds with one fixed draw of first weights for each slot and blueprint,
the same for all hosts, at all times and in all runs, so that the numbers of two hosts or two epochs can be compared. What it
is worth: experiments/2026-11-21_growth_potential.

Of a branch that is born as nothing by a last map of zeros only that map has a gradient, so the rest of the branch is run
forward only. Features h are those behind whatever the slot holds: for an occupied slot the potential says what one more seed
on top would bring. It is measured for an additive seed with default first weights; what another blend or informed weights
make of it is not in it.

Noise adds to a squared norm: of n samples whose gradients have the covariance V it is too high by trace(V) / n, at any slot. So
the gradient is averaged over samples of several batches first, and squared then.
"""

# M members, S slots, K blueprints, n samples a member, X samples and places, C channels, D channels and a constant, P parameters

from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor, nn

from esper.population.bank import newborn
from esper.population.blueprints import BlueprintConfig
from esper.population.evidence import Evidence
from esper.population.hosts import SlotSpec
from esper.population.layers import ChannelScale
from esper.population.layout import Layout
from esper.seeding import torch_stream

BATCHES = 2
"""Batches at the end of an epoch from which potential is measured. More: steadier, and of weights longer ago."""
SAMPLES = 4
"""Samples of each of them, at least. More: steadier and dearer; eight in all cost too much already: benchmarks/README.md."""
SPOTS = 2
"""Vectors for each feature of a slot in each batch, at least, so that the fit leaves something."""


def beyond(felt: Evidence) -> Evidence:
    """The same with dL/dy less its least squares fit by h and a constant, by member, over samples and places.

    A ridge of 1e-6 of each feature's square takes care of features that repeat each other; those that are dead fit nothing.
    """
    h, grad = (x.movedim(2, -1) if x.dim() == 5 else x for x in (felt.features, felt.grad))
    h_MXC, grad_MXC = h.flatten(1, -2), grad.flatten(1, -2)
    h_MXD = torch.cat([h_MXC, torch.ones_like(h_MXC[:, :, :1])], 2)
    gram_MDD = h_MXD.mT @ h_MXD
    square_MD = gram_MDD.diagonal(dim1=1, dim2=2)
    ridge_MD = 1e-6 * square_MD + (square_MD == 0)
    fit_MDC, _ = torch.linalg.solve_ex(gram_MDD + torch.diag_embed(ridge_MD), h_MXD.mT @ grad_MXC)
    left = (grad_MXC - h_MXD @ fit_MDC).view(grad.shape)
    return Evidence(features=felt.features, grad=left.movedim(-1, 2).contiguous() if felt.grad.dim() == 5 else left)


class Watched(nn.Module):
    """A layer of a dormant branch that remembers what it was given, and at whose output the graph of gradients starts."""

    given: Tensor
    output: Tensor

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        dead = not any(parameter.any() for parameter in layer.parameters())
        self.silent = layer if dead and _is_map(layer) else None

    def forward(self, x: Tensor) -> Tensor:
        self.given = x.detach()
        self.output = (self.layer(x) if self.silent is None else _zeros(self.silent, x)).requires_grad_()
        return self.output


def _zeros(layer: nn.Linear | nn.Conv2d, x: Tensor) -> Tensor:
    """The output of a map whose weights are zero, without the work."""
    if isinstance(layer, nn.Linear):
        return x.new_zeros(()).expand(*x.shape[:-1], layer.out_features)
    return x.new_zeros(()).expand(len(x), layer.out_channels, *x.shape[2:])


class Dormant:
    """A branch of one blueprint at one slot, born and never trained, of which all members share the weights.

    So the samples of all members run through it as one batch, and forward only. What tells the members apart is the gradient of
    the layers that have one at birth, made from each layer's input and the gradient at its output.
    """

    def __init__(self, blueprint: BlueprintConfig, slot: SlotSpec, device: torch.device | str) -> None:
        row = newborn(blueprint, slot, torch_stream(0, "dormant", type(blueprint).__name__, slot.name, slot.channels))
        self.branch = blueprint.branch(slot)
        nn.utils.vector_to_parameters(row, self.branch.parameters())
        self.awake: list[Watched] = []
        for path, layer in _awake(self.branch, slot):
            self.awake.append(Watched(layer))
            self.branch.set_submodule(path, self.awake[-1])
        self.branch.to(device).requires_grad_(False)

    def gradients(self, felt: Evidence) -> Tensor:
        """First gradients of all parameters that have one `[M, P]`."""
        members = len(felt.features)
        if not self.awake:
            return felt.features.new_zeros(members, 1)
        delta = self.branch(felt.features.flatten(0, 1))
        grad, outputs = felt.grad.flatten(0, 1), [watched.output for watched in self.awake]
        grads = (grad,) if delta is outputs[0] else torch.autograd.grad(delta, outputs, grad)
        parts = [
            part.flatten(1)
            for watched, grad in zip(self.awake, grads, strict=True)
            for part in layer_gradient(watched.layer, watched.given, grad, members)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def potential(self, felt: Evidence) -> Tensor:
        """Squared norm of the first gradient of each member `[M]` [nats per unit of learning rate]; see `beyond` for `felt`."""
        return self.gradients(felt).square().sum(1)


def layer_gradient(layer: nn.Module, given: Tensor, grad: Tensor, groups: int) -> list[Tensor]:
    """Gradient of each parameter of a layer `[G, ...]`, for each of G groups of samples that lie one after another.

    Args:
        given: the layer's input `[G*n, ...]`.
        grad: gradient at its output, the same samples.
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
    """Does it map each sample's channels at each place by one matrix?"""
    return isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and _pointwise(layer))


def _pointwise(layer: nn.Conv2d) -> bool:
    return layer.kernel_size == layer.stride == (1, 1) and layer.padding == (0, 0) and layer.groups == 1


def _awake(branch: nn.Module, slot: SlotSpec) -> list[tuple[str, nn.Module]]:
    """The layers with a gradient at birth, by path, found on features of chance."""
    shape = {
        Layout.IMAGES: (8, slot.channels, 8, 8),
        Layout.VECTORS: (64, slot.channels),
        Layout.SEQUENCES: (8, 8, slot.channels),
    }
    generator = torch_stream(0, "dormant", "awake")
    h, grad = (torch.randn(shape[slot.layout], generator=generator) for _ in range(2))
    with torch.enable_grad():
        delta: Tensor = branch(h)
        if delta.requires_grad:
            delta.backward(grad)
    return [
        (path, layer)
        for path, layer in branch.named_modules()
        if any(parameter.grad is not None and parameter.grad.any() for parameter in layer.parameters(recurse=False))
    ]


class PotentialSensor:
    """Measures every slot and blueprint of M hosts."""

    def __init__(
        self, blueprints: Sequence[BlueprintConfig], slots: Sequence[SlotSpec], members: int, device: torch.device | str
    ) -> None:
        self.members, self.device = members, torch.device(device)
        self.dormant = [[_dormant(blueprint, slot, device) for blueprint in blueprints] for slot in slots]

    def measure(self, batches: Sequence[Sequence[Evidence]]) -> Tensor:
        """Growth potential `[M, S, K]`, NaN where the blueprint cannot grow.

        Args:
            batches: what each slot felt, batch by batch; without any all is NaN.
        """
        nowhere = torch.full((self.members,), torch.nan, device=self.device)
        if not batches:
            return nowhere.view(-1, 1, 1).repeat(1, len(self.dormant), len(self.dormant[0]))
        slots: list[Tensor] = []
        for felt, row in zip(zip(*batches, strict=True), self.dormant, strict=True):
            whole = beyond(Evidence.joined(felt))
            slots.append(torch.stack([nowhere if one is None else one.potential(whole) for one in row], 1))
        return torch.stack(slots, 1)


def _dormant(blueprint: BlueprintConfig, slot: SlotSpec, device: torch.device | str) -> Dormant | None:
    if not blueprint.plantable or blueprint.obstacle(slot) is not None:
        return None
    return Dormant(blueprint, slot, device)
