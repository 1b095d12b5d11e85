"""Observations as one vector, for libraries whose policies take a single array."""

# N hosts, S slots, K blueprints, D numbers of a flat observation

from collections.abc import Mapping
from typing import cast

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from esper.env.spec import Array, EnvSpec, observation_space

PARTS = ("features", "slots", "legal_slots", "legal_values")
"""Parts of an observation that enter as they are; blueprints follow, one-hot."""


def flat_space(spec: EnvSpec) -> spaces.Box:
    """Return the space of one host's flat observation."""
    parts = observation_space(spec)
    flags = np.ones(spec.num_slots * (len(spec.blueprint_names) + 1), np.float32)  # one-hot blueprints
    boxes = [cast(spaces.Box, parts[name]) for name in PARTS]
    low, high = ([np.ravel(getattr(box, end)) for box in boxes] for end in ("low", "high"))
    return spaces.Box(np.concatenate([*low, 0 * flags]), np.concatenate([*high, flags]), dtype=np.float32)


def flatten(arrays: Mapping[str, Array], spec: EnvSpec) -> npt.NDArray[np.float32]:
    """Return the observations of N hosts as vectors `[N, D]`: features, slots, masks, and the blueprint of each slot one-hot.

    The last entry of a one-hot blueprint means that the slot is empty.
    """
    one_hot_NSK = np.eye(len(spec.blueprint_names) + 1, dtype=np.float32)[arrays["blueprints"]]
    parts = [*(arrays[name] for name in PARTS), one_hot_NSK]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1).astype(np.float32, copy=False)
