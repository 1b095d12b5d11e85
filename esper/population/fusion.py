"""Many networks of one architecture as one program.

Hosts and seeds are written once, as plain modules of ordinary layers. `fuse` takes M of them and swaps each leaf layer for its
stacked twin: the same layer for M members at once, with parameters and buffers that carry a leading member axis. Where the
members lie in the features is told in `layout`. What lies between the leaf layers (activations, pooling, means over space) does
not look across members and so needs no twin.

The mathematics of each member is unchanged; only sums inside a kernel may be taken in another order.
"""

# M members, L chosen members, B batch, C channels of one member, P parameters of one member

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FusionError(ValueError):
    """A module cannot be fused; the message names the layer and the remedy."""


class MaskedConv2d(nn.Conv2d):
    """A convolution whose kernel is multiplied by a fixed 0/1 mask of the kernel's height and width."""

    mask: Tensor

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, mask: Tensor, *, padding: int) -> None:
        super().__init__(in_channels, out_channels, kernel_size, padding=padding, bias=False)
        self.register_buffer("mask", mask.clone())

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(input, self.weight * self.mask, None, self.stride, self.padding, self.dilation, self.groups)


class ChannelScale(nn.Module):
    """Multiplies each channel by a learnt factor; born as zero (LayerScale, Touvron et al. 2021)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.view(1, -1, *[1] * (x.dim() - 2))


class StackedLayer(nn.Module):
    """Base of all twins: parameters and buffers of M layers on a leading member axis.

    While a `Fleet` holds the layer, its parameters are views of the fleet's flat tensor and are bound before each forward.
    """

    members: int
    weight: Tensor
    bias: Tensor | None

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = len(layers)
        for name, _ in layers[0].named_parameters(recurse=False):
            self.register_parameter(name, nn.Parameter(torch.stack([layer.get_parameter(name) for layer in layers])))
        for name, _ in layers[0].named_buffers(recurse=False):
            self.register_buffer(name, torch.stack([layer.get_buffer(name) for layer in layers]))


class StackedConv2d(StackedLayer):
    """Twin of `Conv2d` and `MaskedConv2d`: one grouped convolution. Input `[B, M*I, H, W]`, weight `[M, O, I, k, k]`."""

    mask: Tensor | None

    def __init__(self, layers: Sequence[nn.Conv2d]) -> None:
        super().__init__(layers)
        first = layers[0]
        if first.padding_mode != "zeros" or isinstance(first.padding, str):
            raise FusionError(
                f"a convolution with padding={first.padding!r} and padding_mode={first.padding_mode!r} has no stacked "
                "twin: give the padding as numbers with zeros, or set members_per_shard=1"
            )
        self.stride, self.padding, self.dilation, self.groups = (
            first.stride,
            first.padding,
            first.dilation,
            first.groups,
        )
        if not isinstance(first, MaskedConv2d):
            self.mask = None
        if first.bias is None:
            self.bias = None

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight if self.mask is None else self.weight * self.mask[:, None, None]
        bias = None if self.bias is None else self.bias.flatten()
        groups = self.members * self.groups
        return F.conv2d(x, weight.flatten(0, 1), bias, self.stride, self.padding, self.dilation, groups)


class StackedBatchNorm2d(StackedLayer):
    """Twin of `BatchNorm2d`: statistics are per channel, so M layers are one wider layer. Running statistics `[M, C]`."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, layers: Sequence[nn.BatchNorm2d]) -> None:
        super().__init__(layers)
        first = layers[0]
        if first.momentum is None or not (first.affine and first.track_running_stats):
            raise FusionError(
                "a BatchNorm2d without momentum, affine parameters or running statistics has no stacked twin: "
                "use the defaults, or set members_per_shard=1"
            )
        self.momentum, self.eps = first.momentum, first.eps

    def forward(self, x: Tensor) -> Tensor:
        assert self.bias is not None
        mean, var = self.running_mean.view(-1), self.running_var.view(-1)
        weight, bias = self.weight.flatten(), self.bias.flatten()
        return F.batch_norm(x, mean, var, weight, bias, self.training, self.momentum, self.eps)


class StackedGroupNorm(StackedLayer):
    """Twin of `GroupNorm`: M layers of G groups are one layer of M*G groups."""

    def __init__(self, layers: Sequence[nn.GroupNorm]) -> None:
        super().__init__(layers)
        if not layers[0].affine:
            raise FusionError(
                "a GroupNorm without affine parameters has no stacked twin: use the defaults, or set members_per_shard=1"
            )
        self.num_groups, self.eps = layers[0].num_groups, layers[0].eps

    def forward(self, x: Tensor) -> Tensor:
        assert self.bias is not None
        return F.group_norm(x, self.members * self.num_groups, self.weight.flatten(), self.bias.flatten(), self.eps)


class StackedLinear(StackedLayer):
    """Twin of `Linear` on vectors: a batch of matrix products. `[B, M*I]` to `[B, M*O]`, weight `[M, O, I]`."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__(layers)
        if layers[0].bias is None:  # pyright: ignore[reportUnnecessaryComparison]  (bias=False makes it None)
            self.bias = None

    def forward(self, x: Tensor) -> Tensor:
        x_MBI = x.view(x.shape[0], self.members, -1).transpose(0, 1)
        weight_MIO = self.weight.transpose(1, 2)
        y_MBO = torch.bmm(x_MBI, weight_MIO) if self.bias is None else torch.baddbmm(self.bias[:, None], x_MBI, weight_MIO)
        return y_MBO.transpose(0, 1).reshape(x.shape[0], -1)


class StackedChannelScale(StackedLayer):
    """Twin of `ChannelScale`."""

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.reshape(1, -1, *[1] * (x.dim() - 2))


TWINS: dict[type[nn.Module], type[StackedLayer]] = {
    nn.Conv2d: StackedConv2d,
    MaskedConv2d: StackedConv2d,
    nn.BatchNorm2d: StackedBatchNorm2d,
    nn.GroupNorm: StackedGroupNorm,
    nn.Linear: StackedLinear,
    ChannelScale: StackedChannelScale,
}
"""Leaf layer to stacked twin; a new twin is one line here and one class above."""

MIXES_MEMBERS = (
    nn.Softmax,
    nn.Softmax2d,
    nn.Softmin,
    nn.LogSoftmax,
    nn.GLU,
    nn.ChannelShuffle,
    nn.Flatten,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.InstanceNorm2d,
    nn.LocalResponseNorm,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    nn.RReLU,
)
"""Layers without parameters that look across the features or draw from the global random stream."""


def fuse(modules: Sequence[nn.Module], path: str = "") -> nn.Module:
    """Makes one module that computes all of `modules`, which must have the same architecture.

    Args:
        modules: M modules; they are left as they are.

    Returns:
        A module of the same structure with stacked leaf layers, for features `[B, M*C, ...]`.

    Raises:
        FusionError: a layer has parameters or buffers and no stacked twin, or looks across the features; the message names it.
    """
    first = modules[0]
    name = path or type(first).__name__
    if not path and len(list(first.parameters())) < len(list(first.named_parameters(remove_duplicate=False))):
        raise FusionError(f"{name} uses a parameter in two places, which cannot be stacked: give each place its own")
    twin = TWINS.get(type(first))
    if twin is not None:
        return twin(modules)
    own = [*dict(first.named_parameters(recurse=False)), *dict(first.named_buffers(recurse=False))]
    if own or isinstance(first, MIXES_MEMBERS):
        raise FusionError(
            f"{name} is a {type(first).__name__}, which has no stacked twin: build it from "
            f"{', '.join(layer.__name__ for layer in TWINS)}, or set members_per_shard=1"
        )
    fused = copy.copy(first)
    fused.__dict__["_modules"] = {
        key: fuse([module.get_submodule(key) for module in modules], f"{path}.{key}" if path else key)
        for key, child in first.__dict__["_modules"].items()  # named_children would leave out a layer that is used twice
        if child is not None
    }
    return fused


class Fleet:
    """M fused modules whose parameters are one flat tensor `[M, P]`, so that a member is a row.

    Copying, resetting or saving a member is copying a row, and an optimiser step for all of them is a handful of operations
    whatever the number of layers. `split` has one backward (a concatenation), so the flat tensor costs no more than leaves.
    """

    def __init__(self, modules: Sequence[nn.Module], device: torch.device | str = "cpu") -> None:
        self.members = len(modules)
        self.module = fuse(modules).to(device)
        self._template = copy.deepcopy(modules[0])
        self._slots: list[tuple[StackedLayer, str, torch.Size]] = []
        values: list[Tensor] = []
        for layer in self.module.modules():
            if isinstance(layer, StackedLayer):
                for name, parameter in list(layer.named_parameters(recurse=False)):
                    self._slots.append((layer, name, parameter.shape))
                    values.append(parameter.detach().flatten(1))
                    delattr(layer, name)
        self.flat = torch.cat(values, 1).contiguous().requires_grad_()
        self._sizes = [value.shape[1] for value in values]
        self.buffers: dict[str, Tensor] = dict(self.module.named_buffers())

    @property
    def num_parameters(self) -> int:
        """P, the parameters of one member."""
        return self.flat.shape[1]

    def bind(self, flat: Tensor | None = None, members: int | None = None) -> nn.Module:
        """Lays views of `flat` (default: all members) into the layers and returns the module, ready for one forward.

        Args:
            flat: `[L, P]` rows of any members.
            members: L, where it differs from M.
        """
        flat = self.flat if flat is None else flat
        rows = flat.shape[0] if members is None else members
        for (layer, name, shape), part in zip(self._slots, flat.split(self._sizes, 1), strict=True):
            layer.members = rows
            layer.__dict__[name] = part.view(rows, *shape[1:])
        return self.module

    def member(self, index: int) -> nn.Module:
        """A plain module with the parameters and buffers of one member: fusing undone."""
        module = copy.deepcopy(self._template)
        with torch.no_grad():
            for parameter, part in zip(module.parameters(), self.flat[index].split(self._sizes), strict=True):
                parameter.copy_(part.view(parameter.shape))
            for name, buffer in module.named_buffers():
                buffer.copy_(self.buffers[name][index])
        return module


def flatten_parameters(module: nn.Module) -> Tensor:
    """The parameters of a plain module as one row `[P]`, in the order a `Fleet` of such modules uses."""
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
