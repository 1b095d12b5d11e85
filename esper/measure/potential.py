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

Noise adds to a squared norm: of n samples whose gradients have the covariance V it is too high by trace(V) / n, at any slot.
"""

# M members, n samples a member, X samples and places, C channels, D channels and a constant, P parameters

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from esper.fusion.layers import ChannelScale
from esper.fusion.layout import Layout
from esper.hosts.base import SlotSpec
from esper.seeding import torch_stream
from esper.seeds.bank import newborn
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.slot_gradients import SlotGradients


def by_place(x: Tensor) -> Tensor:
    """Samples of each member `[M, n, ...]` as vectors of channels `[M, X, C]`, one for each sample and place."""
    return (x.movedim(2, -1) if x.dim() == 5 else x).flatten(1, -2)


def beyond(felt: SlotGradients) -> SlotGradients:
    """The same with dL/dy less its least squares fit by h and a constant, by member, over samples and places.

    A ridge of 1e-6 of each feature's square takes care of features that repeat each other; those that are dead fit nothing.
    """
    h_MXC, grad_MXC = by_place(felt.features), by_place(felt.grad)
    h_MXD = torch.cat([h_MXC, torch.ones_like(h_MXC[:, :, :1])], 2)
    gram_MDD = h_MXD.mT @ h_MXD
    square_MD = gram_MDD.diagonal(dim1=1, dim2=2)
    square_MD += 1e-6 * square_MD + (square_MD == 0)
    fit_MDC, _ = torch.linalg.solve_ex(gram_MDD, h_MXD.mT @ grad_MXC)
    left_MXC = torch.baddbmm(grad_MXC, h_MXD, fit_MDC, alpha=-1)
    if felt.grad.dim() != 5:
        return SlotGradients(features=felt.features, grad=left_MXC.view(felt.grad.shape))
    return SlotGradients(features=felt.features, grad=left_MXC.view(felt.grad.movedim(2, -1).shape).movedim(-1, 2))


class Watched(nn.Module):
    """A layer of a dormant branch that remembers what it was given, and at whose output the graph of gradients starts."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.calls: list[tuple[Tensor, Tensor]] = []
        """Input and output of each use in the last pass."""
        dead = not any(parameter.any() for parameter in layer.parameters())
        self.silent = layer if dead and _is_map(layer) else None

    def forward(self, x: Tensor) -> Tensor:
        output = self.layer(x) if self.silent is None else _zeros(self.silent, x)
        output = output.requires_grad_() if output.is_leaf else output
        self.calls.append((x.detach(), output))
        return output


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
        found = _awake(self.branch, slot)
        self.branch.requires_grad_(False)
        self.simple = _simple(self.branch, found, slot, device)
        self.awake: list[Watched] = []
        for path, layer in found:
            self.awake.append(Watched(layer))
            self.branch.set_submodule(path, self.awake[-1])
        self.branch.to(device)

    def gradients(self, felt: SlotGradients) -> Tensor:
        """First gradients of all parameters that have one `[M, P]`."""
        members = len(felt.features)
        if not self.awake:
            return felt.features.new_zeros(members, 1)
        for watched in self.awake:
            watched.calls.clear()
        delta = self.branch(felt.features.flatten(0, 1))
        uses = [(watched.layer, given, output) for watched in self.awake for given, output in watched.calls]
        grads = torch.autograd.grad(delta, [output for *_, output in uses], felt.grad.flatten(0, 1))
        of_layer: dict[nn.Module, list[Tensor]] = {}
        for (layer, given, _), grad in zip(uses, grads, strict=True):
            parts = [part.flatten(1) for part in layer_gradient(layer, given, grad, members)]
            sofar = of_layer.get(layer)
            of_layer[layer] = parts if sofar is None else [a + b for a, b in zip(sofar, parts, strict=True)]
        return torch.cat([part for parts in of_layer.values() for part in parts], 1)

    def potential(self, felt: SlotGradients) -> Tensor:
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


class Simple(NamedTuple):
    """A branch that ends in the only layer with a gradient at birth, whose gradient is had from products of channels."""

    trunk: nn.Module
    """The branch without that layer: makes its input."""
    last: nn.Linear | nn.Conv2d | ChannelScale


def _simple(
    branch: nn.Module, awake: Sequence[tuple[str, nn.Module]], slot: SlotSpec, device: torch.device | str
) -> Simple | None:
    """The branch in two, if it is of that kind."""
    if len(awake) != 1:
        return None
    [(path, last)] = awake
    if not isinstance(last, ChannelScale) and not _is_map(last):
        return None
    made: list[Tensor] = []

    def keep(_: nn.Module, __: tuple[Any, ...], output: Tensor) -> None:
        made.append(output)

    handle = last.register_forward_hook(keep)
    delta = branch(_chance(slot)[0])
    handle.remove()
    if len(made) != 1 or delta is not made[0]:
        return None
    trunk = nn.Sequential(copy.deepcopy(branch))
    trunk.set_submodule(f"0.{path}" if path else "0", nn.Identity())
    return Simple(trunk.to(device), last)


def _chance(slot: SlotSpec) -> tuple[Tensor, Tensor]:
    """Features of chance at a slot, and as much again."""
    shape = {
        Layout.IMAGES: (8, slot.channels, 8, 8),
        Layout.VECTORS: (64, slot.channels),
        Layout.SEQUENCES: (8, 8, slot.channels),
    }
    generator = torch_stream(0, "dormant", "awake")
    h, grad = (torch.randn(shape[slot.layout], generator=generator) for _ in range(2))
    return h, grad


def _awake(branch: nn.Module, slot: SlotSpec) -> list[tuple[str, nn.Module]]:
    """The layers with a gradient at birth, by path, found on features of chance."""
    h, grad = _chance(slot)
    with torch.enable_grad():
        delta: Tensor = branch(h)
        if delta.requires_grad:
            delta.backward(grad)
    return [
        (path, layer)
        for path, layer in branch.named_modules()
        if any(parameter.grad is not None and parameter.grad.any() for parameter in layer.parameters(recurse=False))
    ]
