"""Whether the axes of a submodule's output are those that seeds take them for: samples first, then channels or positions."""

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from esper.fusion.layout import Layout

TIME_LAST = (nn.Conv1d, nn.ConvTranspose1d, nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d)
"""Layers whose outputs `[B, C, T]` would be taken for sequences."""
TIME_LAST_OF_THREE = (nn.BatchNorm1d, nn.InstanceNorm1d, nn.Dropout1d)
"""Layers that take the second of three axes for the channels."""
CHANNELS_LAST = (nn.Linear, nn.LayerNorm, nn.RMSNorm)
"""Layers that take the last axis for the channels."""
IMAGES = (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
"""Layers of images."""
AXES_OF_SAMPLES: dict[tuple[type[nn.Module], ...], int] = {
    (nn.Conv1d, nn.ConvTranspose1d): 2,
    IMAGES: 3,
    (nn.Conv3d, nn.ConvTranspose3d, nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool3d): 4,
}
"""Number of axes in the outputs of layers if there is no batch."""


class Neighbours:
    """Notes which tensors layers of channels-last features read and return while a module runs."""

    def __init__(self, module: nn.Module, submodules: Iterable[nn.Module], example: Any) -> None:
        """
        Args:
            module: the whole network.
            submodules: those with a slot.
            example: what it is called with.
        """
        given = cast(Mapping[str, Any], example).values() if isinstance(example, Mapping) else example
        tensors = (one for one in (given if isinstance(given, Iterable) else ()) if isinstance(one, Tensor) and one.dim())
        first = example if isinstance(example, Tensor) else next(tensors, torch.empty(0))
        self.samples = len(first) if first.dim() else 0
        """Number of samples in the example, if its first axis is the batch."""
        self._kept: list[object] = []  # else another tensor could get the id of one that is gone
        self._last = set[int]()
        self._read: dict[nn.Module, Tensor] = {}
        layers = [layer for layer in module.modules() if is_channels_last(layer)]
        self.handles = [layer.register_forward_hook(self._note) for layer in layers]
        self.handles += [one.register_forward_hook(self._note_slot) for one in submodules]

    def _note(self, _: nn.Module, given: tuple[object, ...], output: object) -> None:
        tensors = [one for one in (*given[:1], output) if isinstance(one, Tensor) and one.dim() in (3, 4)]
        self._kept += tensors
        self._last |= {*map(id, tensors)}

    def _note_slot(self, submodule: nn.Module, given: tuple[object, ...], output: object) -> None:
        first = given[0] if given else None
        if not isinstance(first, Tensor) or not isinstance(output, Tensor) or any(submodule.children()):
            return
        if (first.shape, first.stride()) == (output.shape, output.stride()):
            self._read[submodule] = first

    def are_channels_last(self, submodule: nn.Module, output: object) -> bool:
        """Return whether such a layer reads the output of a submodule, or returned the input of one that has no parts and keeps
        shape and strides, as an activation does."""
        read = id(self._read[submodule]) if submodule in self._read else None
        return not isinstance(submodule, IMAGES) and (id(output) in self._last or read in self._last)


def is_channels_last(layer: nn.Module) -> bool:
    """Return whether a layer takes the last axis for the channels. A subclass may compute something else, and a norm over several
    axes says nothing."""
    if not any(isinstance(layer, kind) and type(layer).forward is kind.forward for kind in CHANNELS_LAST):
        return False
    return not isinstance(layer, nn.LayerNorm | nn.RMSNorm) or len(layer.normalized_shape) == 1


def check_axes(
    module: nn.Module, name: str, path: str, layout: Layout, output: object, shape: torch.Size, around: Neighbours
) -> None:
    """Raise ValueError if the output of a submodule has its axes in another order than its layout, and warn if it may.

    Args:
        module: the whole network.
        name: name of the slot.
        path: the submodule.
        layout: how seeds read its output.
        output: the output.
        shape: shape of its features.
        around: what the layers around it read and return.
    """
    submodule = module.get_submodule(path)
    if layout is Layout.SEQUENCES:
        _check_sequences(module, submodule, name, path, output, shape, around)
    elif layout is Layout.IMAGES:
        _check_images(submodule, name, path, output, shape, around)


def _remedy(name: str, order: str) -> str:
    return f"write axes={{{name!r}: {order!r}}}"


def refuse_time_last(submodule: nn.Module, name: str, path: str, kinds: tuple[type[nn.Module], ...] = TIME_LAST) -> None:
    """Raise ValueError if a submodule is of these kinds, whose second axis is the channels."""
    if isinstance(submodule, kinds):
        raise ValueError(
            f"slots: {path} is a {type(submodule).__name__}, whose output is channels-first [B, C, T], but seeds grow on "
            f"sequences [B, T, C]: {_remedy(name, 'BCT')}"
        )


def _check_sequences(
    module: nn.Module, submodule: nn.Module, name: str, path: str, output: object, shape: torch.Size, around: Neighbours
) -> None:
    refuse_time_last(submodule, name, path, TIME_LAST_OF_THREE)
    attention = (layer for layer in submodule.modules() if isinstance(layer, nn.MultiheadAttention))
    if _is_time_first(submodule) or any(map(_is_time_first, attention)):
        raise ValueError(
            f"slots: {path} is not batch-first (its output is [T, B, C]), but seeds grow on sequences [B, T, C]: build it with "
            f"batch_first=True, or {_remedy(name, 'TBC')}"
        )
    last = is_channels_last(submodule) or around.are_channels_last(submodule, output) or _width(submodule) == shape[-1]
    seconds = shape[0] != around.samples == shape[1]
    if not last and _has(module, TIME_LAST):
        _warn_of_order(name, path, "other layers of this module are channels-first [B, C, T]", "BCT")
    if seconds:
        _warn_of_order(name, path, f"its shape for {around.samples} samples, {tuple(shape)}, looks time-first [T, B, C]", "TBC")
    elif any(map(_is_time_first, module.modules())):
        _warn_of_order(name, path, "other layers of this module are time-first [T, B, C]", "TBC")


def _warn_of_order(name: str, path: str, but: str, order: str) -> None:
    """Warn of features that may have their axes in another order than sequences.

    Args:
        name: name of the slot.
        path: the submodule.
        but: what suggests it.
        order: this order.
    """
    warnings.warn(
        f"slot after {path}: its output is taken for sequences [B, T, C], but {but}: if it is, {_remedy(name, order)}, else "
        f"{_remedy(name, 'BTC')}",
        stacklevel=6,
    )


def _has(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> bool:
    return any(isinstance(layer, kinds) for layer in module.modules())


def _width(submodule: nn.Module) -> int | None:
    """Return the width of the features of the last layer of a submodule if that takes the last axis for the channels."""
    last = [layer for layer in submodule.modules() if not any(layer.children()) and any(True for _ in layer.parameters())][-1:]
    if not last or not is_channels_last(last[0]) or _has(submodule, TIME_LAST):
        return None
    return last[0].out_features if isinstance(last[0], nn.Linear) else cast(Any, last[0]).normalized_shape[-1]


def _is_time_first(layer: nn.Module) -> bool:
    return isinstance(layer, nn.RNNBase | nn.MultiheadAttention) and not layer.batch_first


def _check_images(submodule: nn.Module, name: str, path: str, output: object, shape: torch.Size, around: Neighbours) -> None:
    if is_channels_last(submodule):
        raise ValueError(
            f"slots: the output of {path}, a {type(submodule).__name__}, is channels-last [B, H, W, C], but seeds grow on images "
            f"[B, C, H, W]: {_remedy(name, 'BHWC')}, or 'BCHW' if it is not"
        )
    norms = [one for one in submodule.modules() if isinstance(one, nn.LayerNorm | nn.RMSNorm) and len(one.normalized_shape) == 1]
    widths = {layer.normalized_shape[-1] for layer in norms} | {
        layer.out_features for layer in submodule.modules() if isinstance(layer, nn.Linear)
    }
    square = shape[-1] == shape[1] and not any(isinstance(layer, IMAGES) for layer in submodule.modules())
    if around.are_channels_last(submodule, output) or (shape[-1] in widths and (square or shape[1] not in widths)):
        warnings.warn(
            f"slot after {path}: its output {tuple(shape)} is taken for images [B, C, H, W], but looks channels-last "
            f"[B, H, W, C], as the layers here are: if it is, {_remedy(name, 'BHWC')}, else {_remedy(name, 'BCHW')}",
            stacklevel=5,
        )
