"""Many networks of one architecture as one program.

Hosts and seeds are written once, as plain modules of ordinary layers. `fuse` takes M of them and swaps each leaf layer for its
stacked form: the same layer for M members at once, with parameters and buffers that carry a leading member axis. Where the
members lie in the features is told in `layout`. What lies between the leaf layers (activations, pooling, means over space) does
not look across members and so needs no stacked form.

A module with a layer that has no stacked form can still be a fleet of one, as it is: the way of `members_per_shard=1`.

The mathematics of each member is unchanged; only sums inside a kernel may be taken in another order.
"""

# M members, L chosen members, P parameters of one member

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from esper.fusion.stacked import STACKED, FusionError, StackedLayer

MIXES_MEMBERS = (
    nn.Softmax,
    nn.Softmax2d,
    nn.Softmin,
    nn.LogSoftmax,
    nn.GLU,
    nn.ChannelShuffle,
    nn.Unflatten,
    nn.RMSNorm,
    nn.InstanceNorm2d,
    nn.LocalResponseNorm,
)
"""Layers without parameters that look across the features."""

DRAWS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU)
"""Layers that draw from the global random stream."""


def fuse(modules: Sequence[nn.Module], path: str = "", *, tied: bool = False) -> nn.Module:
    """Makes one module that computes all of `modules`, which must have the same architecture.

    Args:
        modules: M modules; they are left as they are.
        tied: the caller ties what was one parameter in two places; without it that is refused.

    Returns:
        A module of the same structure with stacked leaf layers, for features as `layout` tells.

    Raises:
        FusionError: a layer has parameters or buffers and no stacked form, or looks across the features, or draws random
            numbers; the message names it.
    """
    first = modules[0]
    if not path:
        _refuse_chance(first)
    name = path or type(first).__name__
    if not path and not tied and len(list(first.parameters())) < len(list(first.named_parameters(remove_duplicate=False))):
        raise FusionError(f"{name} uses a parameter in two places: a Fleet ties them, a fused module alone cannot")
    stacked = STACKED.get(type(first))
    if stacked is not None:
        try:
            return stacked(modules)
        except FusionError as error:
            raise FusionError(f"{name}: {error}") from error
    own = [*dict(first.named_parameters(recurse=False)), *dict(first.named_buffers(recurse=False))]
    if own or isinstance(first, MIXES_MEMBERS):
        raise FusionError(
            f"{name} is a {type(first).__name__}, which has no stacked form: build it from "
            f"{', '.join(layer.__name__ for layer in STACKED)}, or set members_per_shard=1"
        )
    fused = copy.copy(first)
    fused.__dict__["_modules"] = {
        key: fuse([module.get_submodule(key) for module in modules], f"{path}.{key}" if path else key)
        for key, child in first.__dict__["_modules"].items()  # named_children would leave out a layer that is used twice
        if child is not None
    }
    return fused


def _refuse_chance(module: nn.Module) -> None:
    """Raises FusionError where a layer draws random numbers: torch has one stream for all, and a run could not be repeated."""
    for path, layer in module.named_modules():
        rate = getattr(layer, "dropout", 0.0)  # of recurrent layers and of attention
        if (isinstance(layer, DRAWS) and getattr(layer, "p", 1.0) > 0) or (isinstance(rate, float) and rate > 0):
            raise FusionError(
                f"{path or 'it'} is a {type(layer).__name__}, which draws from torch's global random stream, so that hosts would "
                "change each other's numbers: leave it out, or set its dropout to 0 where it has one"
            )


class Fleet:
    """M fused modules whose parameters are one flat tensor `[M, P]`, so that a member is a row.

    Copying, resetting or saving a member is copying a row, and an optimiser step for all of them is a handful of operations
    whatever the number of layers. `split` has one backward (a concatenation), so the flat tensor costs no more than leaves.

    A fleet of one takes any module: where a layer has no stacked form the module stays plain, its parameters are views of row 0,
    and its buffers are shown with a leading axis of 1. It must read its parameters by their names when it computes, as modules
    do, and change its buffers in place.

    Raises:
        FusionError: more than one module cannot be fused, or even one draws random numbers.
    """

    def __init__(self, modules: Sequence[nn.Module], device: torch.device | str = "cpu") -> None:
        self.members = len(modules)
        try:
            self.module, self.stacked = fuse(modules, tied=True).to(device), True
        except FusionError:
            _refuse_chance(modules[0])
            if len(modules) > 1:
                raise
            self.module, self.stacked = copy.deepcopy(modules[0]).to(device), False
        self._template = copy.deepcopy(modules[0])
        self._layers = [layer for layer in self.module.modules() if isinstance(layer, StackedLayer)]
        places: dict[int, list[tuple[nn.Module, str]]] = {}  # a parameter may be used in several places
        rows: dict[int, Tensor] = {}
        for layer in self.module.modules():
            for name, parameter in layer.named_parameters(recurse=False):
                origin = layer.origin[name] if isinstance(layer, StackedLayer) else id(parameter)
                rows[origin] = parameter.detach() if self.stacked else parameter.detach()[None]
                places.setdefault(origin, []).append((layer, name))
        for layer, name in [place for several in places.values() for place in several]:
            delattr(layer, name)
        self._slots = [(several, rows[origin].shape) for origin, several in places.items()]
        values = [rows[origin].flatten(1) for origin in places]
        none = torch.zeros(self.members, 0, device=device)
        self.flat = torch.cat(values or [none], 1).contiguous().requires_grad_()
        self._sizes = [value.shape[1] for value in values]
        self.buffers = {name: buffer if self.stacked else buffer[None] for name, buffer in self.module.named_buffers()}
        self._buffer_slots = [
            (layer, name, buffer if self.stacked else buffer[None])
            for layer in self.module.modules()
            for name, buffer in layer.named_buffers(recurse=False)
        ]
        self._whole = True

    def bind(self, flat: Tensor | None = None, members: int | None = None) -> nn.Module:
        """Lays views of `flat` (default: all members) into the layers and returns the module, ready for one forward.

        Args:
            flat: `[L, P]` rows of any members.
            members: L, where it differs from M.
        """
        flat = self.flat if flat is None else flat
        return self._lay(flat, flat.shape[0] if members is None else members)

    def bind_some(self, chosen_L: Tensor, part: nn.Module | None = None) -> nn.Module:
        """The same for some members as they are now: copies of their parameters, without gradient, and of their buffers.

        Args:
            chosen_L: the members, each as often as it is named.
            part: a part of the module, if the others need not be bound.
        """
        inside = None if part is None else set(part.modules())
        return self._lay(self.flat.detach(), len(chosen_L), chosen_L, inside)

    def _lay(self, flat: Tensor, rows: int, chosen_L: Tensor | None = None, inside: set[nn.Module] | None = None) -> nn.Module:
        """Lays `[L, P]` into the layers. Of the buffers, copies of the chosen members' are laid, or those of all."""
        if not self.stacked and rows != 1:
            raise FusionError(
                f"{type(self.module).__name__} has a layer without a stacked form: it computes one member, not {rows}"
            )
        if chosen_L is not None or not self._whole:
            for layer, name, buffer in self._buffer_slots:
                if inside is None or layer in inside:
                    several = buffer if chosen_L is None else buffer.index_select(0, chosen_L)
                    layer.register_buffer(name, several if self.stacked else several[0])
            self._whole = chosen_L is None
        for layer in self._layers:
            if inside is None or layer in inside:
                layer.members = rows
        for (several, shape), row in zip(self._slots, flat.split(self._sizes, 1), strict=True):
            here = several if inside is None else [place for place in several if place[0] in inside]
            if not here:
                continue
            chosen = row if chosen_L is None else row.index_select(0, chosen_L)
            for layer, name in here:
                if self.stacked:
                    layer.__dict__[name] = chosen.view(rows, *shape[1:])
                else:
                    setattr(layer, name, chosen.view(shape[1:]))  # recurrent layers take note of what is set
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
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()] or [torch.zeros(0)])
