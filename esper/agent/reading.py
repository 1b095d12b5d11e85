"""How controllers read observations: features by name and in their units, growth potentials, and choices of a seed."""

# N hosts, S slots, K blueprints

import numpy as np

from esper.env.actions import Head, Op, segments
from esper.env.observation import HOST_FEATURES, SLOT_FEATURES, RunScale, exp_potential
from esper.env.spec import EnvSpec, Observation
from esper.lifecycle.stages import OCCUPIED, BoolArray, FloatArray, IntArray, Stage

UNDERWAY = tuple(stage for stage in OCCUPIED if stage is not Stage.FOSSILIZED)
"""Stages of a seed that is neither kept nor gone."""


# ---- features


def feature_scale(name: str) -> float:
    """Return the scale of a feature, in its unit: the quantity that an observation encodes as 1. It must not depend on the
    run."""
    (scale,) = (feature.scale for feature in (*HOST_FEATURES, *SLOT_FEATURES) if feature.name == name)
    assert not isinstance(scale, RunScale), f"the scale of {name} differs from run to run"
    return scale


POINTS = feature_scale("contribution")
"""Contribution that an observation encodes as 1 [pp]."""
ERROR_POINTS = feature_scale("contribution_error")
"""Standard error of a contribution that an observation encodes as 1 [pp]."""
ACCURACY_POINTS = feature_scale("accuracy")
"""Accuracy that an observation encodes as 1 [%]."""


def features(observation: Observation, spec: EnvSpec, name: str) -> FloatArray:
    """Return a host feature by name `[N]`."""
    return observation.features[:, spec.feature_names.index(name)]


def slot_features(observation: Observation, spec: EnvSpec, name: str) -> FloatArray:
    """Return a slot feature by name `[N, S]`."""
    return observation.slots[:, :, spec.slot_feature_names.index(name)]


def underway(observation: Observation, spec: EnvSpec) -> BoolArray:
    """Return which slots hold a seed that is neither kept nor gone `[N, S]`."""
    return np.any([slot_features(observation, spec, f"stage_{stage.name.lower()}") > 0 for stage in UNDERWAY], axis=0)


def accuracy(observation: Observation, spec: EnvSpec) -> FloatArray:
    """Return the accuracy of each host `[N]` [%]."""
    return ACCURACY_POINTS * features(observation, spec, "accuracy")


def potentials(observation: Observation, spec: EnvSpec) -> FloatArray:
    """Return the growth potential of each slot and blueprint `[N, S, K]` [nats per unit of learning rate], 0 where unknown."""
    names = [f"potential_of_{name}" for name in spec.blueprint_names]
    return exp_potential(np.stack([slot_features(observation, spec, name) for name in names], axis=2))


def worthy(observation: Observation, spec: EnvSpec, errors: float) -> BoolArray:
    """Return where a seed's contribution exceeds `errors` times its standard error `[N, S]`."""
    worth_NS, error_NS, known_NS = (
        slot_features(observation, spec, name) for name in ("contribution", "contribution_error", "contribution_measured")
    )
    return (known_NS > 0) & (POINTS * worth_NS > errors * ERROR_POINTS * error_NS)


# ---- choices


def offered(observation: Observation, spec: EnvSpec) -> BoolArray:
    """Return which blueprints are available `[N, K]`."""
    return observation.legal_values[:, segments(spec.head_sizes)[Head.BLUEPRINT]]


def choice_names(spec: EnvSpec) -> list[str]:
    """Return the name of each choice `[1 + S * K]`: nothing, or a blueprint in a slot."""
    return ["nothing", *(f"{kind} in {slot}" for slot in spec.slot_names for kind in spec.blueprint_names)]


def legal_choices(observation: Observation, spec: EnvSpec) -> BoolArray:
    """Return which choices can be planted now `[N, 1 + S * K]`; planting nothing always is legal."""
    legal_NSK = observation.legal_slots[:, Op.GERMINATE, :, None] & offered(observation, spec)[:, None]
    return np.concatenate([np.ones((len(legal_NSK), 1), np.bool_), legal_NSK.reshape(len(legal_NSK), -1)], axis=1)


def step_number(observation: Observation, spec: EnvSpec) -> IntArray:
    """Return the number of completed host epochs of each host `[N]`."""
    left_N = observation.features[:, spec.feature_names.index("time_left")]
    return np.rint((1 - left_N) * spec.num_steps).astype(np.int64)
