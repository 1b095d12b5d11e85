"""Many networks of one architecture as one program.

Hosts and seeds are plain modules of ordinary layers. `fuse` replaces each leaf layer of M modules by its stacked form: the same
layer for M members at once, with parameters and buffers that have a leading member axis. See `layout` for the members' place in
the features. Operations between the leaf layers (activations, pooling, means over space) do not mix members and need no stacked
form. A module with other layers can still be a fleet of one, with `devices.<name>.members_per_shard=1`.

The mathematics of each member is unchanged; only the order of sums inside a kernel may differ.
"""

# M members, L chosen members, P parameters of one member

import copy
from collections.abc import Sequence
from functools import partial
from itertools import repeat
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from esper.fusion.sequential import StackedSequential, is_hooked
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
"""Layers without parameters that mix features across members, or complain of the members' channels."""

SETTINGS = (bool, int, float, str, type(None))
"""Types of values that are compared as they are."""
TORCH = vars(nn.Module()).keys()
"""Attributes of every module: those that hold its parameters, buffers, layers and hooks, and its mode."""
DRAWS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU)
"""Layers that draw from torch's global random stream."""


def fuse(modules: Sequence[nn.Module], path: str = "", *, tied: bool = False) -> nn.Module:
    """Return one module that computes all of `modules`, which must have the same architecture.

    Args:
        modules: M modules; they are not changed.
        tied: if true, the caller ties parameters that are used in two places; if false, they raise an error.

    Returns:
        A module of the same structure with stacked leaf layers, for features in the form of `layout`.

    Raises:
        FusionError: a layer has parameters or buffers and no stacked form, mixes features across members, or draws random
            numbers; the message names it.
    """
    first = modules[0]
    if not path:
        _refuse_randomness(first)
    name = path or type(first).__name__
    _refuse_unlike(modules, name)
    if not path:
        _refuse_shared_buffers(first)
    if not path and not tied and len(list(first.parameters())) < len(list(first.named_parameters(remove_duplicate=False))):
        raise FusionError(f"{name} uses a parameter in two places: a Fleet ties them, a fused module alone cannot")
    stacked = STACKED.get(type(first))
    if stacked is not None:
        if is_hooked(first):
            raise FusionError(
                f"{name} has a hook, which its stacked form would not call: remove it, or set devices.<name>.members_per_shard=1"
            )
        try:
            return stacked(modules)
        except FusionError as error:
            raise FusionError(f"{name}: {error}") from error
    own = [*dict(first.named_parameters(recurse=False)), *dict(first.named_buffers(recurse=False))]
    if own or isinstance(first, MIXES_MEMBERS):
        beside = f" with {own[0]} beside its layers" if own and any(True for _ in first.children()) else ""
        raise FusionError(
            f"{name} is a {type(first).__name__}{beside}, which has no stacked form: build it from "
            f"{', '.join(layer.__name__ for layer in STACKED)}, or set devices.<name>.members_per_shard=1"
        )
    fused = copy.copy(first)
    fused.__dict__["_modules"] = {
        key: fuse([module.get_submodule(key) for module in modules], f"{path}.{key}" if path else key)
        for key, child in first.__dict__["_modules"].items()  # named_children omits the second use of a layer
        if child is not None
    }
    return StackedSequential(fused) if type(fused) is nn.Sequential else fused


def _refuse_unlike(modules: Sequence[nn.Module], name: str) -> None:
    """Raise FusionError if members differ in more than parameters and buffers: all would be computed as the first."""
    first = modules[0]
    kind, settings = type(first), _settings(first)
    for other in modules:
        if other is first:
            continue
        what, theirs = f"a {type(other).__name__} in another host", _settings(other)
        if type(other) is kind:
            keys = (key for key in settings | theirs if not _same(key, settings.get(key), theirs.get(key)))
            if (changed := next(keys, None)) is None:
                continue
            what = f"another {changed} in another host"
        raise FusionError(
            f"{name} is a {kind.__name__} in one host, with {what}, and hosts of one program may differ in parameters and "
            "buffers only: use MaskedConv2d or MaskedLinear of esper.fusion.layers, or set devices.<name>.members_per_shard=1"
        )


def _settings(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of a module that are none of torch's own."""
    return {key: value for key, value in vars(module).items() if key not in TORCH}


def _same(key: str, one: Any, other: Any) -> bool:
    """Return whether two values of an attribute compute alike.

    Objects that cannot be compared do, and so does a private attribute that only one module has: it may come from a call.
    """
    if one is other or (key.startswith("_") and (one is None or other is None)):
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, SETTINGS):
        return one == other
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and one.equal(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same("", one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, repeat(""), one, other))
    if isinstance(one, FunctionType):
        parts = [(it.__defaults__, [cell.cell_contents for cell in it.__closure__ or ()]) for it in (one, other)]
        return one.__code__ == other.__code__ and _same("", *parts)
    if isinstance(one, partial):
        return all(_same("", getattr(one, part), getattr(other, part)) for part in ("func", "args", "keywords"))
    return not isinstance(one, BuiltinFunctionType)


def _runs_own_code(module: nn.Module) -> bool:
    """Return whether a module from outside, with layers inside, has a forward of its own. It may hold on to these layers in a
    list, or read their weights."""
    inside = (layer for layer in module.modules() if any(True for _ in layer.children()))
    return any(type(layer).__module__.partition(".")[0] not in ("torch", "esper") for layer in inside)


def _refuse_shared_buffers(module: nn.Module) -> None:
    """Raise FusionError if a layer with buffers is used in two places: its stacked forms would keep one set for each."""
    first: dict[nn.Module, str] = {}
    for path, layer in module.named_modules(remove_duplicate=False):
        if first.setdefault(layer, path) != path and any(True for _ in layer.buffers(recurse=False)):
            raise FusionError(
                f"{first[layer]} and {path} are one {type(layer).__name__}, and stacked forms do not share buffers: use two "
                "layers, or set devices.<name>.members_per_shard=1"
            )


def _refuse_randomness(module: nn.Module) -> None:
    """Raise FusionError if a layer draws random numbers: torch has one stream for all, so a run would not be reproducible."""
    for path, layer in module.named_modules():
        rate = getattr(layer, "dropout", 0.0)  # of recurrent layers and of attention
        if (isinstance(layer, DRAWS) and getattr(layer, "p", 1.0) > 0) or (isinstance(rate, float) and rate > 0):
            name = f"layer {path}" if path else "the module"
            raise FusionError(
                f"{name} is a {type(layer).__name__}, which draws from torch's global random stream, so that "
                "hosts would depend on each other: remove it, or set its rate to 0"
            )


class Fleet:
    """M fused modules whose parameters are the rows of one flat tensor `[M, P]`.

    Copying, resetting or saving a member is copying a row, and an optimiser step for all members is a handful of operations
    for any number of layers. `split` has one backward (a concatenation), so the flat tensor costs no more than separate leaf
    tensors.

    A fleet of one takes any module: if a layer has no stacked form, or the module is a class from outside with a forward of its
    own, it stays plain, its parameters are views of row 0, and its buffers are exposed with a leading axis of 1. The module must
    read its parameters by name when it computes, as usual, and change its buffers in place.

    Raises:
        FusionError: several modules cannot be fused, or a module draws random numbers.
    """

    def __init__(self, modules: Sequence[nn.Module], device: torch.device | str = "cpu") -> None:
        self.members = len(modules)
        plain = len(modules) == 1 and _runs_own_code(modules[0])
        try:
            if not plain:
                self.module, self.stacked = fuse(modules, tied=True).to(device), True
        except FusionError:
            plain = len(modules) == 1
            if not plain:
                raise
        if plain:
            _refuse_randomness(modules[0])
            self.module, self.stacked = copy.deepcopy(modules[0]).to(device), False
            for layer in self.module.modules():
                if isinstance(layer, nn.GroupNorm):
                    layer.register_forward_pre_hook(_with_gradient)
        self._template = copy.deepcopy(modules[0])
        self._layers = [layer for layer in self.module.modules() if isinstance(layer, StackedLayer)]
        places: dict[int, list[tuple[nn.Module, str]]] = {}  # a parameter may be used in several places
        rows: dict[int, Tensor] = {}
        for layer in self.module.modules():
            for name, parameter in layer.named_parameters(recurse=False, remove_duplicate=False):
                origin = layer.origin[name] if isinstance(layer, StackedLayer) else id(parameter)
                rows[origin] = parameter.detach() if self.stacked else parameter.detach()[None]
                places.setdefault(origin, []).append((layer, name))
        for layer, name in [place for several in places.values() for place in several]:
            delattr(layer, name)
        self._slots = [(several, rows[origin].shape) for origin, several in places.items()]
        values = [rows[origin].reshape(self.members, -1) for origin in places]  # also scalars
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

    def columns(self) -> dict[tuple[nn.Module, str], tuple[slice, tuple[int, ...]]]:
        """Return the columns of `flat`, and the shape for one member, of each parameter of each layer."""
        found, start = dict[tuple[nn.Module, str], tuple[slice, tuple[int, ...]]](), 0
        for (several, shape), size in zip(self._slots, self._sizes, strict=True):
            found |= dict.fromkeys(several, (slice(start, start + size), tuple(shape[1:])))
            start += size
        return found

    def bind(self, flat: Tensor | None = None) -> nn.Module:
        """Bind views of `flat` (default: all members) to the layers, and return the module, ready for one forward.

        Args:
            flat: `[L, P]` rows of any members.
        """
        flat = self.flat if flat is None else flat
        return self._bind_views(flat, flat.shape[0])

    def bind_some(self, chosen_L: Tensor, part: nn.Module | None = None) -> nn.Module:
        """Bind copies of the parameters, without gradient, and of the buffers of some members.

        Args:
            chosen_L: the members, which may repeat.
            part: part of the module to bind; None binds all of it.
        """
        inside = None if part is None else set(part.modules())
        return self._bind_views(self.flat.detach(), len(chosen_L), chosen_L, inside)

    def _bind_views(
        self, flat: Tensor, rows: int, chosen_L: Tensor | None = None, inside: set[nn.Module] | None = None
    ) -> nn.Module:
        """Bind `[L, P]` to the layers, with copies of the chosen members' buffers, or the buffers of all members."""
        if not self.stacked and rows != 1:
            raise FusionError(
                f"{type(self.module).__name__} has a layer without a stacked form: it computes one member, not {rows}"
            )
        if chosen_L is not None or not self._whole:
            self._whole = False  # until all are replaced, in case of an error
            for layer, name, buffer in self._buffer_slots:
                if inside is None or layer in inside:
                    several = buffer if chosen_L is None else buffer.index_select(0, chosen_L)
                    layer.register_buffer(name, several if self.stacked else several[0])
            self._whole = chosen_L is None
        for layer in self._layers:
            if inside is None or layer in inside:
                layer.__dict__["members"] = rows  # nn.Module.__setattr__ would take ten times as long
        for (several, shape), row in zip(self._slots, flat.split_with_sizes(self._sizes, 1), strict=True):
            here = several if inside is None else [place for place in several if place[0] in inside]
            if not here:
                continue
            chosen = row if chosen_L is None else row.index_select(0, chosen_L)
            for layer, name in here:
                if self.stacked:
                    layer.__dict__[name] = chosen.view(rows, *shape[1:])
                else:
                    setattr(layer, name, chosen.view(shape[1:]))  # recurrent layers track assignments
        return self.module

    def member(self, index: int) -> nn.Module:
        """Return a plain module with the parameters and buffers of one member, the inverse of fusing."""
        module = copy.deepcopy(self._template)
        with torch.no_grad():
            for parameter, part in zip(module.parameters(), self.flat[index].split(self._sizes), strict=True):
                parameter.copy_(part.view(parameter.shape))
            for name, buffer in module.named_buffers():
                buffer.copy_(self.buffers[name][index])
        return module


def _with_gradient(layer: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the input of a group norm, with a gradient if the layer learns: see `StackedGroupNorm`."""
    weight, (x, *_) = getattr(layer, "weight", None), given
    if weight is None or not weight.requires_grad or x.requires_grad or not torch.is_grad_enabled():
        return given
    return x.detach().requires_grad_(), *given[1:]


def flatten_parameters(module: nn.Module) -> Tensor:
    """Return the parameters of a plain module as one row `[P]`, in the order of a `Fleet`."""
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()] or [torch.zeros(0)])
