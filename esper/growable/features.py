"""The features on which seeds grow: where they are in the output of a submodule, and the order of their axes."""

# B batch, T positions or frames, D slices, C channels, H height, W width

import copy
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from esper.fusion.layout import Layout
from esper.growth.compatibility import AXES
from esper.hosts.base import SlotSpec

ORDERS = ("BCHW", "BC", "BTC", "BTCHW", "BDCHW")
"""Orders of the axes in which seeds read images, vectors, sequences, and the frames of videos and slices of volumes as images."""


def features_of(output: object) -> object:
    """Return the part of a submodule's output on which seeds grow: the output, or the first element of a tuple, list or mapping,
    such as the outputs of `nn.LSTM` and `nn.MultiheadAttention`, or a `ModelOutput` of Hugging Face."""
    if isinstance(output, Mapping):
        return next(iter(cast(Mapping[str, object], output).values()), None)
    if isinstance(output, tuple | list) and not isinstance(output, PackedSequence):
        return next(iter(cast(Sequence[object], output)), None)
    return output


def with_features(output: Any, features: Tensor) -> Any:
    """Return a copy of a submodule's output with other features in the place of `features_of(output)`."""
    if isinstance(output, Mapping):
        changed = {**output, next(iter(output)): features}
        kind: Any = type(output)
        if hasattr(kind, "__dataclass_fields__"):  # as a ModelOutput of Hugging Face
            return kind(**changed)
        if kind in (dict, OrderedDict):
            return kind(changed)
        copied: Any = copy.copy(output)
        copied.update(changed)
        return copied
    if isinstance(output, tuple | list):
        rest = [features, *output[1:]]
        return type(output)(*rest) if hasattr(output, "_fields") else type(output)(rest)
    return features


def check_orders(axes: Mapping[str, str], slots: Sequence[str]) -> None:
    """Raise ValueError unless all keys are names of slots, and all values orders of the axes that seeds know."""
    given = cast(object, axes)
    if not isinstance(given, Mapping) or any(not isinstance(one, str) for pair in cast(Any, given).items() for one in pair):
        raise ValueError(f"axes must be a dict of texts, got {axes!r}: write axes={{{slots[0]!r}: 'BHWC'}}")
    for name, order in axes.items():
        if name not in slots:
            raise ValueError(f"axes names {name!r}, which is no slot: choose from {', '.join(slots)}")
        if sorted(order) not in map(sorted, ORDERS):
            raise ValueError(
                f"axes: {order!r} of slot {name} is no order of B, C, H, W (images), B, C (vectors), B, T, C (sequences), "
                "B, C, T, H, W (videos) or B, C, D, H, W (volumes): write it as in 'BHWC'"
            )


def fits(h: object, order: str) -> bool:
    """Return whether features can be in an order: they have its axes, or all but the batch, as in `torch.vmap`."""
    return isinstance(h, Tensor) and h.dim() in (len(order), len(order) - 1)


def in_order_of_seeds(h: Tensor, order: str) -> Tensor:
    """Return features with their axes in the order of seeds. They may lack the batch, as in `torch.vmap`.

    Args:
        h: the features.
        order: letters of their axes, as in `BHWC`. The frames of videos, `BCTHW`, and the slices of volumes, `BCDHW`, become
            images `[B * T, C, H, W]`.
    """
    here, wanted = _letters(h, order)
    h = h.permute([here.index(letter) for letter in wanted])
    return h.flatten(0, 1) if len(wanted) == 5 else h


def in_own_order(h: Tensor, order: str, own: Tensor) -> Tensor:
    """Undo `in_order_of_seeds`. The result is contiguous, as code after the slot may expect.

    Args:
        h: features in the order of seeds.
        order: letters of the axes in their own order.
        own: features in their own order.
    """
    here, wanted = _letters(own, order)
    if len(wanted) == 5:
        h = h.unflatten(0, [own.shape[here.index(letter)] for letter in wanted[:2]])
    return h.permute([wanted.index(letter) for letter in here]).contiguous()


def _letters(h: Tensor, order: str) -> tuple[str, str]:
    """Return the letters of the axes of features, in their own order and in that of seeds."""
    wanted = next(one for one in ORDERS if sorted(one) == sorted(order))
    return (order, wanted) if h.dim() == len(order) else (order.replace("B", ""), wanted.replace("B", ""))


def slot_spec(name: str, output: object, order: str | None = None) -> tuple[SlotSpec, Tensor]:
    """Return the slot after a submodule with this output, and its features in the order of seeds.

    Args:
        name: name of the slot.
        output: the output.
        order: order of its axes, if it is not that of seeds.

    Raises:
        ValueError: no seed can grow on such an output.
    """
    features = features_of(output)
    refuse_nested(name, features)
    part = "output" if features is output else "first element of the output"
    if isinstance(features, Tensor) and features.is_floating_point():
        if order is not None and features.dim() != len(order):
            raise ValueError(f"axes: {order!r} does not fit the {part} of slot {name}, of the shape {tuple(features.shape)}")
        features = features if order is None else in_order_of_seeds(features, order)
        for layout in Layout:
            axes, axis = AXES[layout]
            if features.dim() == axes:
                return SlotSpec(name, features.shape[axis], layout), features
    found = f"is a {type(features).__name__}"
    if isinstance(features, Tensor):
        found = f"has the shape {tuple(features.shape)}" if features.is_floating_point() else f"holds {features.dtype}"
    remedy = "choose another submodule"
    if isinstance(features, Tensor) and features.dim() == 5:
        remedy = f"write axes={{{name!r}: 'BCTHW'}} for seeds on each frame of a video, 'BCDHW' for each slice of a volume"
    raise ValueError(
        f"slot {name}: the {part} of this submodule {found}, but seeds grow on floating-point images [B, C, H, W], vectors "
        f"[B, C] and sequences [B, T, C]: {remedy}"
    )


def refuse_nested(slot: str, features: object) -> None:
    """Raise ValueError for a nested tensor, on which most seeds cannot be computed."""
    if isinstance(features, Tensor) and features.is_nested:
        raise ValueError(
            f"slot {slot}: the output is a nested tensor, as nn.TransformerEncoder makes for a padding mask in evaluation mode: "
            "build it with enable_nested_tensor=False"
        )
