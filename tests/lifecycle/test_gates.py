"""Gates: every threshold has an effect at its value, and unmeasured values never pass."""

from dataclasses import fields, replace

import numpy as np
import pytest

from esper.lifecycle.gates import GatesConfig, StrictConfig, gate_open, gradient_ratio, may_blend, may_fossilize, may_hold
from esper.lifecycle.stages import Stage, empty

STRICT = StrictConfig()


def ready(stage, **changes):
    """Return a seed that just passes the strict gate of its stage, except for the changes."""
    state = empty(1, 1)
    values = {
        "stage": stage,
        "alpha": 1.0,
        "ramp_target": 1.0,
        "ramp_done": 10,
        "ramp_total": 3,
        "stage_age": 10,
        "seed_age": 20,
        "accuracy": 60.5,
        "accuracy_start": 60.0,
        "gradient_ratio": 0.1,
        "gradient_norm": 10.0,
        "contribution": 2.64,
        "contribution_error": 1.0,
        "measured": True,
        **changes,
    }
    for name, value in values.items():
        getattr(state, name)[:] = value
    return state


GATE = {Stage.TRAINING: may_blend, Stage.BLENDING: may_hold, Stage.HOLDING: may_fossilize}
EDGES = [
    (Stage.TRAINING, "min_training", {"stage_age": 9}),
    (Stage.TRAINING, "min_improvement", {"accuracy": 60.49}),
    (Stage.TRAINING, "min_improvement", {"accuracy_start": np.nan}),
    (Stage.TRAINING, "min_improvement", {"accuracy": np.nan}),
    (Stage.TRAINING, "min_gradient_ratio", {"gradient_ratio": 0.099}),
    (Stage.TRAINING, "min_gradient_ratio", {"gradient_ratio": np.nan}),
    (Stage.TRAINING, "min_gradient_ratio", {"gradient_ratio": np.inf}),
    (Stage.TRAINING, "max_gradient_norm", {"gradient_norm": 10.01}),
    (Stage.TRAINING, "max_gradient_norm", {"gradient_norm": np.nan}),
    (Stage.BLENDING, "min_blending", {"stage_age": 9}),
    (Stage.HOLDING, "min_contribution", {"contribution": 2.6}),
    (Stage.HOLDING, "contribution_z", {"contribution_error": 1.1}),
]
OFF = {
    "min_training": 1,
    "min_improvement": None,
    "min_gradient_ratio": None,
    "max_gradient_norm": None,
    "min_blending": 0,
    "min_contribution": None,
    "contribution_z": 0.0,
}


@pytest.mark.parametrize("stage", GATE)
def test_gates_are_open_at_their_thresholds(stage):
    state = ready(stage)
    assert GATE[stage](state, STRICT).all()
    assert [other for other in Stage if GATE[stage](ready(other), STRICT).any()] == [stage]


@pytest.mark.parametrize(("stage", "threshold", "change"), EDGES)
def test_gates_are_closed_beyond_their_thresholds(stage, threshold, change):
    state = ready(stage, **change)
    assert not GATE[stage](state, STRICT).any()
    without = {threshold: OFF[threshold]} | ({"contribution_z": 0.0} if threshold == "min_contribution" else {})
    assert GATE[stage](state, replace(STRICT, **without)).all()


def test_every_threshold_has_a_case():
    assert {threshold for _, threshold, _ in EDGES} == {entry.name for entry in fields(GatesConfig)} == set(OFF)


@pytest.mark.parametrize("gates", [GatesConfig(), STRICT])
def test_requirements_without_a_threshold(gates):
    assert not may_hold(ready(Stage.BLENDING, ramp_done=2), gates).any(), "alpha is still moving"
    assert not may_hold(ready(Stage.BLENDING, ramp_target=0.7), gates).any(), "only a seed at alpha 1 may hold"
    assert not may_fossilize(ready(Stage.HOLDING, measured=False), gates).any(), "the contribution was never measured"
    assert gate_open(ready(Stage.GERMINATED, stage_age=0), gates).all()
    assert not gate_open(ready(Stage.HOLDING), gates).any(), "fossilisation has its own gate"


def test_by_default_blending_requires_no_measurement():
    state = empty(1, 1)
    state.stage[:], state.stage_age[:] = Stage.TRAINING, 1
    assert may_blend(state, GatesConfig()).all()
    assert may_fossilize(ready(Stage.HOLDING, contribution=-50.0), GatesConfig()).all()


def test_gradient_ratio_is_per_parameter():
    """Equal mean square gradients give 1 for any sizes."""
    rng = np.random.default_rng(0)
    host, seed = rng.standard_normal(4000), rng.standard_normal(250)
    norms = np.float32([[np.linalg.norm(seed)]]), np.float32([np.linalg.norm(host)])
    wanted = np.sqrt((seed**2).mean() / (host**2).mean())
    assert gradient_ratio(*norms, np.array([[250]]), 4000)[0, 0] == pytest.approx(wanted, rel=1e-6)
    assert gradient_ratio(3 * norms[0], norms[1], np.array([[250]]), 4000)[0, 0] == pytest.approx(3 * wanted, rel=1e-6)


def test_unknown_gradient_ratio_is_nan():
    seed, host = np.float32([[1, np.nan, np.inf, 1]]), np.float32([2.0])
    ratio = gradient_ratio(seed, host, np.array([[4, 4, 4, 0]]), 16)
    assert ratio[0, 0] == 1.0
    assert np.isnan(ratio[0, 1:]).all()
    assert gradient_ratio(seed, np.float32([0.0]), np.array([[4, 4, 4, 0]]), 16)[0, 0] == 0.0
    assert np.isnan(gradient_ratio(seed, np.float32([np.nan]), np.array([[4, 4, 4, 0]]), 16)).all()


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"min_training": 0}, r"gates\.min_training must be at least 1, got 0"),
        ({"min_blending": -1}, r"gates\.min_blending must be at least 0, got -1"),
        ({"contribution_z": -1.0}, r"gates\.contribution_z must be finite and at least 0, got -1"),
        ({"min_gradient_ratio": -0.1}, r"gates\.min_gradient_ratio must be finite and at least 0"),
        ({"max_gradient_norm": 0.0}, r"gates\.max_gradient_norm must be finite and above 0"),
        ({"min_improvement": float("nan")}, r"gates\.min_improvement must be finite, got"),
        ({"min_contribution": float("inf")}, r"gates\.min_contribution must be finite, got"),
        ({"contribution_z": 1.0, "min_contribution": None}, r"gates\.contribution_z=1.0 has no effect without a threshold"),
    ],
)
@pytest.mark.parametrize("kind", [GatesConfig, StrictConfig])
def test_invalid_config_is_refused(kind, given, rule):
    with pytest.raises(ValueError, match=rule):
        kind(**given)
