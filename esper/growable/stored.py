"""What a checkpoint of a growing network holds besides parameters.

PyTorch lets a module save any object. But a file of safetensors, such as a checkpoint of Hugging Face's Trainer, holds tensors
only. So the state of the slots is saved as JSON, in a tensor of bytes.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from esper.lifecycle.stages import SlotState, empty

_NUMBER = re.compile(r"-?\d[\d.eE+-]*|NaN|-?Infinity|true|false")
_WIDTH = 24
"""Characters of the longest number in JSON."""


def encode(contents: Mapping[str, Any]) -> Tensor:
    """Return a mapping of numbers, strings, lists and such mappings as a tensor of bytes `[B]`.

    Its size does not depend on the numbers: averages of weights, such as those of timm, copy one state to another in place.
    """
    text = json.dumps(contents)
    text += " " * sum(max(0, _WIDTH - len(number)) for number in _NUMBER.findall(text))
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def decode(stored: Tensor | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what `encode` encoded. Earlier versions saved the mapping itself."""
    return json.loads(stored.cpu().numpy().tobytes()) if isinstance(stored, Tensor) else stored


def lasts(value: Any) -> bool:
    """Return whether a value is equal after it was encoded and decoded."""
    try:
        return decode(encode({"value": value}))["value"] == value
    except TypeError:
        return False


def as_lists(state: SlotState) -> dict[str, list[Any]]:
    """Return the arrays of a state as lists, with every bit of their numbers."""
    return {name: array.tolist() for name, array in state.arrays().items()}


def as_state(saved: Mapping[str, Any], slots: int) -> SlotState:
    """Return the state that `as_lists` returned, or the tensors of an earlier version; fields that are gone are left out."""
    arrays = empty(1, slots).arrays()
    return SlotState(**{name: np.array(_listed(saved[name]), array.dtype) for name, array in arrays.items()})


def _listed(values: Any) -> Any:
    return values.cpu().tolist() if isinstance(values, Tensor) else values
