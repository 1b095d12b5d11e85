"""What an environment shows: sizes and names, observations, and their spaces."""

# N hosts, S slots, O operations, K blueprints, D features of a host, F features of a slot, V values of all parameter heads

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from esper.env.actions import VALUES, Head, Op
from esper.lifecycle.stages import BoolArray, FloatArray, IntArray

Array = npt.NDArray[Any]
Ranges = tuple[tuple[float, float], ...]
"""Lowest and highest value of each feature."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvSpec:
    """Sizes and names of an environment's observations and actions."""

    num_hosts: int
    """N."""
    num_steps: int
    """T, host epochs of an episode."""
    slot_names: tuple[str, ...]
    """S names in forward order."""
    blueprint_names: tuple[str, ...]
    """K names in the order of the blueprint head."""
    seed_params: tuple[tuple[int, ...], ...]
    """[K][S], number of parameters of a seed of each blueprint in each slot."""
    feature_names: tuple[str, ...]
    """D names of `Observation.features`."""
    slot_feature_names: tuple[str, ...]
    """F names of the last axis of `Observation.slots`."""
    max_seeds: int = 0
    """Maximum number of seeds in a host at a time; 0 for no limit but the slots."""
    feature_ranges: Ranges = ()
    """Of `Observation.features`; empty if they are unknown."""
    slot_feature_ranges: Ranges = ()
    """Of the last axis of `Observation.slots`; empty if they are unknown."""

    @property
    def num_slots(self) -> int:
        return len(self.slot_names)

    @property
    def head_sizes(self) -> tuple[int, ...]:
        """Number of values of each head, in the order of `Head`."""
        return (len(Op), self.num_slots, len(self.blueprint_names), *map(len, VALUES.values()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """Observation of N hosts. All features are of order one; "never measured" has a feature of its own."""

    features: FloatArray
    """[N, D] features of the host."""
    slots: FloatArray
    """[N, S, F] features of each slot."""
    blueprints: IntArray
    """[N, S] index of the blueprint in the slot, K where the slot is empty."""
    legal_slots: BoolArray
    """[N, O, S]: True where the op is legal on the slot now. The row of WAIT is all True."""
    legal_values: BoolArray
    """[N, V]: legality of the values of the parameter heads, concatenated in the order of `PARAMETER_HEADS`."""

    @property
    def legal_ops(self) -> BoolArray:
        """[N, O]: True where the op is legal on some slot; WAIT always is."""
        return np.asarray(self.legal_slots.any(axis=2))


def observation_space(spec: EnvSpec) -> spaces.Dict:
    """Return the space of one host's observation, by the names of `Observation`."""
    slots, blueprints = spec.num_slots, len(spec.blueprint_names)
    host_D2 = _bounds(spec.feature_ranges, spec.feature_names)
    slot_S2F = np.tile(_bounds(spec.slot_feature_ranges, spec.slot_feature_names).T, (slots, 1, 1))
    return spaces.Dict(
        {
            "features": spaces.Box(host_D2[:, 0], host_D2[:, 1], dtype=np.float32),
            "slots": spaces.Box(slot_S2F[:, 0], slot_S2F[:, 1], dtype=np.float32),
            "blueprints": spaces.Box(0, blueprints, (slots,), np.int64),
            "legal_slots": spaces.Box(0, 1, (len(Op), slots), np.int8),
            "legal_values": spaces.Box(0, 1, (sum(spec.head_sizes[Head.BLUEPRINT :]),), np.int8),
        }
    )


def _bounds(ranges: Ranges, names: tuple[str, ...]) -> FloatArray:
    """Return the bounds of each feature `[F, 2]`; infinite if they are unknown."""
    return np.array(ranges or [(-np.inf, np.inf)] * len(names), np.float32).reshape(-1, 2)


def one_each(arrays: Mapping[str, Array], which_N: npt.NDArray[np.bool_]) -> Array:
    """Return the observations of the marked hosts `[N]`, one dict each and None elsewhere, as Gymnasium's wrappers expect."""
    single = np.full(len(which_N), None, dtype=object)
    for host in np.flatnonzero(which_N):
        single[host] = {name: array[host] for name, array in arrays.items()}
    return single


def as_observation(arrays: Mapping[str, Array]) -> Observation:
    """Return the dict of arrays of `reset` and `step` as an `Observation`."""
    return Observation(
        features=arrays["features"].astype(np.float32, copy=False),
        slots=arrays["slots"].astype(np.float32, copy=False),
        blueprints=arrays["blueprints"].astype(np.int64, copy=False),
        legal_slots=arrays["legal_slots"].astype(np.bool_),
        legal_values=arrays["legal_values"].astype(np.bool_),
    )
