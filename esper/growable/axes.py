"""Whether the axes of a submodule's output are those that seeds take them for: samples first, then channels or positions."""

import warnings

import torch
from torch import nn

from esper.fusion.layout import Layout

TIME_LAST = (nn.Conv1d, nn.ConvTranspose1d, nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d)
"""Layers whose outputs `[B, C, L]` would be taken for sequences."""
TIME_LAST_OF_THREE = (nn.BatchNorm1d, nn.InstanceNorm1d, nn.Dropout1d)
"""Layers that take the second of three axes for the channels."""
CHANNELS_LAST = (nn.Linear, nn.LayerNorm, nn.RMSNorm)
"""Layers that take the last axis for the channels."""
IMAGES = (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
"""Layers whose outputs have three axes only if there is no batch."""


def check_axes(module: nn.Module, path: str, layout: Layout, shape: torch.Size) -> None:
    """Raise ValueError if the output of a submodule has its axes in another order than its layout, and warn if it may.

    Args:
        module: the whole network.
        path: the submodule.
        layout: how seeds read its output.
        shape: shape of the output.
    """
    submodule = module.get_submodule(path)
    if layout is Layout.SEQUENCES:
        _check_sequences(module, submodule, path)
    elif layout is Layout.IMAGES:
        _check_images(submodule, path, shape)


def refuse_time_last(submodule: nn.Module, path: str, kinds: tuple[type[nn.Module], ...] = TIME_LAST) -> None:
    """Raise ValueError if a submodule is of these kinds, whose second axis is the channels."""
    if isinstance(submodule, kinds):
        raise ValueError(
            f"slots: {path} is a {type(submodule).__name__}, whose output is channels-first [B, C, L], but seeds grow on "
            "sequences [B, T, C]: put the slot after a submodule whose last axis is the channels"
        )


def _check_sequences(module: nn.Module, submodule: nn.Module, path: str) -> None:
    refuse_time_last(submodule, path, TIME_LAST_OF_THREE)
    attention = (layer for layer in submodule.modules() if isinstance(layer, nn.MultiheadAttention))
    if _is_time_first(submodule) or any(map(_is_time_first, attention)):
        raise ValueError(
            f"slots: {path} is not batch-first (its output is [T, B, C]), but seeds grow on sequences [B, T, C]: build it with "
            "batch_first=True"
        )
    for order, others in (("channels-first [B, C, L]", TIME_LAST), ("time-first [T, B, C]", None)):
        if any(_is_time_first(layer) if others is None else isinstance(layer, others) for layer in module.modules()):
            warnings.warn(
                f"slot after {path}: its output is taken for sequences [B, T, C], but other layers of this module are {order}: "
                "make sure that this one is not",
                stacklevel=5,
            )


def _is_time_first(layer: nn.Module) -> bool:
    return isinstance(layer, nn.RNNBase | nn.MultiheadAttention) and not layer.batch_first


def _check_images(submodule: nn.Module, path: str, shape: torch.Size) -> None:
    remedy = "put the slot after a submodule whose second axis is the channels"
    if isinstance(submodule, CHANNELS_LAST):
        raise ValueError(
            f"slots: {path} is a {type(submodule).__name__}, whose output is channels-last [B, H, W, C], but seeds grow on "
            f"images [B, C, H, W]: {remedy}"
        )
    norms = [layer for layer in submodule.modules() if isinstance(layer, nn.LayerNorm | nn.RMSNorm)]
    widths = {layer.normalized_shape[-1] for layer in norms} | {
        layer.out_features for layer in submodule.modules() if isinstance(layer, nn.Linear)
    }
    if shape[-1] in widths and shape[1] not in widths:
        warnings.warn(
            f"slot after {path}: its output {tuple(shape)} is taken for images [B, C, H, W], but looks channels-last "
            f"[B, H, W, C], as its layers are: {remedy}",
            stacklevel=5,
        )
