"""Growth potential: the first-order benefit of a newborn seed of each blueprint, for each host and slot.

Put a branch delta of a blueprint into a slot, y = h + delta(h), with an output of zero at birth. The host computes the same as
before, and the gradient of its loss L with respect to the branch's weights w is

    dL/dw = sum over samples and places of dL/dy(p) . d delta(h)(p) / dw

which needs only h and dL/dy. Training computes both: nothing is inserted, and the host is not touched. A step of plain gradient
descent at rate r would lower the loss by r |dL/dw|^2 + O(r^2).

The host can achieve much of that without a seed: its own next layer applies a linear map of h at the same place, and early in
training a host gains more from its own weights than from any seed. So only the residual counts: dL/dy minus its least squares
fit by h and a constant, over the samples and places of each member. The **growth potential** is

    the squared norm of dL/dw with dL/dy - fit in the place of dL/dy     [nats per unit of the seed's learning rate]

One projection per slot suffices, since the fit could equally be subtracted from the features that the last map sees. Scoring a
new unit by its first gradient follows GradMax (Evci et al. 2022, https://arxiv.org/abs/2201.05125); counting only what the host
cannot do itself follows TINY (Verbockhaven et al. 2024, https://arxiv.org/abs/2405.19816). Initial weights are one fixed draw for
each slot and blueprint, the same for all hosts, at all times and in all runs, so that the numbers of two hosts can be compared.
Evidence: experiments/2026-11-21_growth_potential.

Two measurements differ. After an epoch, the potential is that of the last batch in training, from few samples (`SAMPLES`). At the
start of an episode, no batch is trained on: the network computes two batches in evaluation mode, and batch norms use their
running statistics, which in a newborn host are still 0 and 1. There, potentials of `digits` are smaller by a factor of 10 (last
slot) to 10,000 (first slot), so that the rank of the slots differs, too. Compare hosts at the same time only.

In a branch whose last map is zero at birth only that map has a gradient, so the rest of the branch is run forward only. Features
h are those that leave the slot: for an occupied slot the potential is that of one more seed on top. It is measured for an
additive seed with default initial weights; other blends and informed weights are not accounted for.

Noise adds to a squared norm: for n samples whose gradients have covariance V it is too high by trace(V) / n. With 4 samples, this
is most of it: in `digits` 4 to 25 times the potential of 256 samples, more in early slots.

All members of a slot are measured at once, and blueprints share what they can: for tiny hosts a few samples cost next to
nothing, and the number of kernels dominates.
"""

# M members, n samples per member, X samples and places, C channels, D channels and a constant, S slots, K blueprints,
# J simple blueprints, F inputs of their last layers, P products of an input and an output

import copy
import warnings
from collections.abc import Sequence
from typing import NamedTuple, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.fusion.layers import ChannelScale
from esper.fusion.layout import Layout
from esper.hosts.base import SlotSpec
from esper.seeding import borrowed_stream, torch_stream
from esper.seeds.bank import newborn
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.errors import seed_errors
from esper.seeds.slot_gradients import SlotGradients

SAMPLES = 4
"""Minimum number of samples per member, from the last batch of an epoch. Higher: less noise, more work; see
benchmarks/README.md."""
SPOTS = 4
"""Minimum number of vectors per feature of a slot, so that the fit leaves a residual. A batch may have fewer: then the potential
is too low, and unknown if there are no more vectors than features and a constant."""

CPU_FEATURES, GPU_FEATURES = 2**18, 2**25
"""Maximum number of captured features per measurement. Higher: fewer kernels, whose intermediates leave the caches of a CPU."""
FEWEST = 4
"""Members measured at once, at least."""


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


class NewbornBranch:
    """A newborn branch of one blueprint at one slot, never trained; all members share its weights.

    Raises:
        SeedError: the blueprint raised an error.
    """

    def __init__(self, blueprint: BlueprintConfig, slot: SlotSpec, device: torch.device | str) -> None:
        with seed_errors(blueprint, slot):
            row = newborn(blueprint, slot, torch_stream(0, "dormant", type(blueprint).__name__, slot.name, slot.channels))
            with borrowed_stream():
                self.branch = blueprint.branch(slot)
            nn.utils.vector_to_parameters(row, self.branch.parameters())
            names = _parameters_with_gradient(self.branch, slot)
            self.branch.requires_grad_(False).to(device)
            self.simple = _simple(self.branch, {name.rpartition(".")[0] for name in names}, _random(slot)[0].to(device))
        self.weights: dict[str, Tensor] = {name: self.branch.get_parameter(name) for name in names}
        """Parameters with a gradient at birth, by name."""

    def potential(self, gradients: SlotGradients) -> Tensor:
        """Return the squared norm of each member's first gradient `[M]` [nats per unit of learning rate], from a `residual`."""
        if not self.weights:
            return gradients.features.new_zeros(len(gradients.features))

        def product(weights: dict[str, Tensor], h: Tensor, grad: Tensor) -> Tensor:
            return (torch.func.functional_call(self.branch, weights, (h,)) * grad).sum()

        by_member = torch.func.vmap(torch.func.grad(product), in_dims=(None, 0, 0))
        rows: dict[str, Tensor] = by_member(self.weights, gradients.features, gradients.grad)
        return torch.cat([row.flatten(1) for row in rows.values()], 1).square().sum(1)


def _is_map(layer: nn.Module) -> TypeGuard[nn.Linear | nn.Conv2d]:
    """Return whether the layer maps the channels of each sample and place by one matrix."""
    if isinstance(layer, nn.Conv2d):
        return layer.kernel_size == layer.stride == (1, 1) and layer.padding == (0, 0) and layer.groups == 1
    return isinstance(layer, nn.Linear)


class Simple(NamedTuple):
    """A branch that ends in its only layer with a gradient at birth, a map or a scale of channels."""

    trunk: nn.Module
    """The branch without its last layer."""
    last: nn.Linear | nn.Conv2d | ChannelScale


def _simple(branch: nn.Module, learning: set[str], h: Tensor) -> Simple | None:
    """Split a branch into trunk and last layer, or return None if it is not of that kind.

    Args:
        learning: paths of the layers with a gradient at birth.
        h: any features.
    """
    path = next(iter(learning), "")
    last = branch.get_submodule(path)
    if len(learning) != 1 or not (isinstance(last, ChannelScale) or _is_map(last)):
        return None
    outputs: list[Tensor] = []

    def keep(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> None:
        outputs.append(output)

    handle = last.register_forward_hook(keep)
    delta = branch(h)
    handle.remove()
    if len(outputs) != 1 or delta is not outputs[0]:
        return None
    trunk = nn.Sequential(copy.deepcopy(branch))
    trunk.set_submodule(f"0.{path}" if path else "0", nn.Identity())
    return Simple(trunk, last)


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


def _parameters_with_gradient(branch: nn.Module, slot: SlotSpec) -> list[str]:
    """Return the names of the parameters with a gradient at birth, found on random features."""
    h, grad = _random(slot)
    with torch.enable_grad():
        delta: Tensor = branch(h)
        if delta.requires_grad:
            (delta * grad).sum().backward()  # of a scalar: for other outputs, PyTorch imports sympy
    return [name for name, weight in branch.named_parameters() if weight.grad is not None and weight.grad.any()]


class SlotSensor:
    """Measures all blueprints at one slot.

    Most branches end in their only layer that has a gradient at birth: a map of zeros, or a scale of zeros for each channel. The
    inputs of all these layers are concatenated, so that one product with dL/dy holds the gradients of all, those of scales on a
    diagonal. Other branches are measured one by one.
    """

    def __init__(self, blueprints: Sequence[BlueprintConfig], slot: SlotSpec, device: torch.device | str) -> None:
        self.blueprints, self.slot, self._warned = tuple(blueprints), slot, False
        able = [(k, one) for k, one in enumerate(blueprints) if one.obstacle(slot) is None]
        branches = {k: NewbornBranch(blueprint, slot, device) for k, blueprint in able}
        self.others = {k: branch for k, branch in branches.items() if branch.simple is None}
        simple = {k: branch.simple for k, branch in branches.items() if branch.simple is not None}
        self.trunks = {k: one.trunk for k, one in simple.items()}
        self.index_J = torch.tensor(list(simple), dtype=torch.long, device=device)
        self.mask_PJ = _weights([one.last for one in simple.values()], slot.channels).to(device) if simple else None

    def measure(self, gradients: SlotGradients) -> Tensor:
        """Return the growth potential `[M, K]` [nats per unit of learning rate], NaN if a seed cannot grow or the fit is exact.

        Raises:
            SeedError: the branch of a blueprint raised an error.
        """
        vectors = gradients.grad[0].numel() // self.slot.channels
        if vectors <= self.slot.channels + 1:
            self._warn(vectors)
            return torch.full((len(gradients.grad), len(self.blueprints)), torch.nan, device=gradients.grad.device)
        most = CPU_FEATURES if gradients.grad.device.type == "cpu" else GPU_FEATURES
        count = max(FEWEST, most // max(1, gradients.grad[0].numel()))
        return torch.cat([self._measure(part) for part in gradients.split(count)])

    def _warn(self, vectors: int) -> None:
        if not self._warned:
            warnings.warn(
                f"growth potential is unknown in slot {self.slot.name}: a batch has {vectors} vectors there, and it takes more "
                f"than {self.slot.channels + 1}, one per feature and one for the constant: use a larger batch (in a run, raise "
                "task.batch_size, or lower optimiser.micro_batches)",
                stacklevel=2,
            )
        self._warned = True

    def _measure(self, gradients: SlotGradients) -> Tensor:
        """Return the growth potential of some members."""
        rest = residual(gradients)
        members = len(gradients.features)
        potential_MK = torch.full((members, len(self.blueprints)), torch.nan, device=gradients.grad.device)
        if self.mask_PJ is not None:
            h = gradients.features.flatten(0, 1)
            wide = torch.cat([self._through(k, h) for k in self.trunks], 1 if h.dim() == 4 else -1)
            wide_MXF = F.pad(by_place(wide.unflatten(0, (members, -1))), (0, 1), value=1.0)
            product_MFC = wide_MXF.mT @ by_place(rest.grad)
            potential_MK.index_copy_(1, self.index_J, product_MFC.square().flatten(1) @ self.mask_PJ)
        for k, branch in self.others.items():
            with seed_errors(self.blueprints[k], self.slot):
                potential_MK[:, k] = branch.potential(rest)
        return potential_MK

    def _through(self, k: int, h: Tensor) -> Tensor:
        """Return the input of the last layer of a simple branch."""
        with seed_errors(self.blueprints[k], self.slot):
            return self.trunks[k](h)


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
        """Return the growth potential `[M, S, K]` of all slots [nats per unit of learning rate], as `SlotSensor.measure`."""
        return torch.stack([sensor.measure(one) for sensor, one in zip(self.slots, gradients, strict=True)], 1)
