"""The observation: finite, in range, scaled by the table; unmeasured quantities differ from zero."""

# N hosts, S slots, K blueprints

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from esper.env import observation
from esper.env.observation import (
    HOST_FEATURES,
    SLOT_FEATURES,
    Feature,
    FeatureTable,
    RunScale,
    slot_table,
)
from esper.lifecycle.roles import Blend
from esper.lifecycle.stages import OCCUPIED, Op, SlotState, Stage, empty
from tests.env_fixtures import View

Array = npt.NDArray[Any]
N, S = 2, 3
NAMES = ("thin", "thick")
TABLE = slot_table(NAMES)
ALL = [*HOST_FEATURES, *TABLE]


def seen(view: View) -> dict[str, Array]:
    """Return the features by name."""
    hosts, slots = FeatureTable(HOST_FEATURES).values(view), FeatureTable(TABLE).values(view)
    named = {feature.name: hosts[:, rank] for rank, feature in enumerate(HOST_FEATURES)}
    return named | {feature.name: slots[:, :, rank] for rank, feature in enumerate(TABLE)}


def any_float(*shape: int) -> st.SearchStrategy[Array]:
    return arrays(np.float32, shape, elements=st.floats(width=32))


def any_int(low: int, high: int) -> st.SearchStrategy[Array]:
    return arrays(np.int64, (N, S), elements=st.integers(low, high))


def any_bool(*shape: int) -> st.SearchStrategy[Array]:
    return arrays(np.bool_, shape)


@st.composite
def views(draw: st.DrawFn) -> View:
    """Draw any view that fits the types: NaN, infinities, and unreachable combinations."""
    floats = [name for name, array in empty(N, S).arrays().items() if array.dtype == np.float32]
    state: dict[str, Array] = {name: draw(any_float(N, S)) for name in floats}
    ages = {name: draw(any_int(0, 2**40)) for name in ("stage_age", "seed_age", "ramp_done", "ramp_total")}
    state |= {**ages, "stage": draw(any_int(0, len(Stage) - 1)), "blend": draw(any_int(0, len(Blend) - 1))}
    state |= {"blueprint": draw(any_int(-1, 1)), "ramp_curve": draw(any_int(0, 4))}
    state |= {name: draw(any_bool(N, S)) for name in ("dying", "measured")}
    return View(
        time=draw(st.integers(0, 50)),
        num_steps=draw(st.integers(1, 50)),
        accuracy_NH=draw(any_float(N, observation.HISTORY + 1)),
        loss_N=draw(any_float(N)),
        chance_loss=draw(st.floats(0.1, 20)),
        state=SlotState(**state),
        potential_NSK=draw(any_float(N, S, len(NAMES))),
        params_NS=draw(any_int(0, 2**40)),
        host_params=draw(st.integers(1, 10**9)),
        max_seeds=draw(st.integers(1, 5)),
        op_N=draw(arrays(np.int64, N, elements=st.integers(0, len(Op) - 1))),
        refused_N=draw(any_bool(N)),
    )


@settings(max_examples=30, deadline=None)
@given(views())
def test_features_are_finite_and_in_range_for_any_view(view: View) -> None:
    named = seen(view)
    for feature in ALL:
        value = named[feature.name]
        assert value.dtype == np.float32
        assert np.isfinite(value).all(), feature.name
        assert (value >= np.float32(feature.low)).all(), feature.name
        assert (value <= np.float32(feature.high)).all(), feature.name
        assert feature.unit or np.isin(value, (0, 1)).all(), feature.name


def ordinary(seed: int = 0) -> View:
    """Return growing hosts with everything measured and no value at the end of its range."""
    rng = np.random.default_rng(seed)

    def draw(low: float, high: float, *shape: int) -> Array:
        return rng.uniform(low, high, shape or (N, S)).astype(np.float32)

    state = replace(
        empty(N, S),
        stage=rng.choice([int(Stage.BLENDING), int(Stage.HOLDING), int(Stage.TRAINING)], (N, S)),
        blend=rng.integers(0, len(Blend), (N, S)),
        alpha=draw(0, 1),
        ramp_start=draw(0, 0.4),
        ramp_target=draw(0.5, 1),
        ramp_done=rng.integers(0, 4, (N, S)),
        ramp_total=np.full((N, S), 7),
        dying=rng.random((N, S)) < 0.5,
        stage_age=rng.integers(0, 9, (N, S)),
        seed_age=rng.integers(9, 19, (N, S)),
        accuracy=draw(50, 90),
        accuracy_start=draw(20, 70),
        contribution=draw(-20, 20),
        contribution_error=draw(0.5, 5),
        measured=np.ones((N, S), np.bool_),
        gradient_ratio=draw(0.1, 9),
    )
    return View(
        time=7,
        num_steps=20,
        accuracy_NH=draw(10, 90, N, observation.HISTORY + 1),
        loss_N=draw(0.1, 4, N),
        chance_loss=1.7,
        state=state,
        potential_NSK=draw(1e-6, 1e-3, N, S, len(NAMES)),
        params_NS=rng.integers(5, 900, (N, S)),
        host_params=531,
        max_seeds=4,
        op_N=rng.integers(0, len(Op), N),
        refused_N=np.array([True, False]),
    )


def log10ths(potential: Array) -> Array:
    return np.log(1 + potential.astype(np.float64) / 1e-8) / 10


def relative(v: View) -> Array:
    logs = 10 * log10ths(v.potential_NSK.max(axis=2))
    return logs - logs.mean(axis=1, keepdims=True)


BLENDING = Stage.BLENDING
MEANT: dict[str, Callable[[View], Array]] = {
    "time_left": lambda v: np.full(N, 13 / 20),
    "accuracy": lambda v: v.accuracy_NH[:, 0] / 100,
    "loss": lambda v: v.loss_N / 1.7,
    **{f"accuracy_{ago}_ago": lambda v, ago=ago: v.accuracy_NH[:, ago] / 100 for ago in (1, 2, 3)},
    **{f"accuracy_{ago}_ago_known": lambda v: np.ones(N) for ago in (1, 2, 3)},
    "seeds_left": lambda v: np.full(N, 1 / 4),
    **{f"last_op_{op.name.lower()}": lambda v, op=op: v.op_N == op for op in Op},
    "last_refused": lambda v: np.array([1, 0]),
    **{f"stage_{stage.name.lower()}": lambda v, stage=stage: v.state.stage == stage for stage in Stage},
    "alpha": lambda v: v.state.alpha,
    "alpha_target": lambda v: v.state.ramp_target,
    "alpha_up": lambda v: v.state.stage == BLENDING,
    "alpha_down": lambda v: np.zeros((N, S)),
    "time_to_target": lambda v: (v.state.stage == BLENDING) * (7 - v.state.ramp_done) / 8,
    "dying": lambda v: v.state.dying,
    **{f"blend_{blend.name.lower()}": lambda v, blend=blend: v.state.blend == blend for blend in Blend},
    "stage_age": lambda v: v.state.stage_age / 20,
    "seed_age": lambda v: v.state.seed_age / 20,
    "contribution": lambda v: v.state.contribution / 50,
    "contribution_error": lambda v: v.state.contribution_error / 5,
    "contribution_measured": lambda v: np.ones((N, S)),
    "improvement": lambda v: (v.state.accuracy - v.state.accuracy_start) / 50,
    "gradient_ratio": lambda v: v.state.gradient_ratio / 10,
    "gradient_measured": lambda v: np.ones((N, S)),
    "potential": lambda v: log10ths(v.potential_NSK.max(axis=2)),
    "potential_relative": relative,
    "potential_measured": lambda v: np.ones((N, S)),
    "params": lambda v: v.params_NS / 531,
    "potential_of_thin": lambda v: log10ths(v.potential_NSK[..., 0]),
    "potential_of_thick": lambda v: log10ths(v.potential_NSK[..., 1]),
}
"""An independent formula of each feature."""


@pytest.mark.parametrize("seed", range(5))
def test_features_match_an_independent_formula(seed: int) -> None:
    view = ordinary(seed)
    named = seen(view)
    assert set(MEANT) == {feature.name for feature in ALL}
    for name, value in named.items():
        np.testing.assert_allclose(value, np.asarray(MEANT[name](view), np.float64), rtol=2e-6, atol=2e-6, err_msg=name)


def unmeasured(view: View) -> View:
    """Return the same hosts with nothing measured, but with stale numbers of an earlier seed."""
    accuracy_NH = view.accuracy_NH.copy()
    accuracy_NH[:, 1:] = np.nan
    never, unknown = np.zeros((N, S), np.bool_), np.full((N, S), np.nan, np.float32)
    state = replace(view.state, measured=never, gradient_ratio=unknown)
    return replace(view, accuracy_NH=accuracy_NH, state=state, potential_NSK=np.full_like(view.potential_NSK, np.nan))


def measured_as_nothing(view: View) -> View:
    """Return the same hosts with every measurement 0."""
    names = ("contribution", "contribution_error", "gradient_ratio")
    state = replace(view.state, **{name: np.zeros((N, S), np.float32) for name in names})
    accuracy_NH = np.zeros_like(view.accuracy_NH)
    return replace(view, accuracy_NH=accuracy_NH, state=state, potential_NSK=np.zeros_like(view.potential_NSK))


def seedless(view: View) -> View:
    return replace(view, state=replace(view.state, stage=np.full((N, S), Stage.DORMANT)))


def idle(view: View) -> View:
    """Return hosts without improvement since their seeds entered their stages."""
    return replace(view, state=replace(view.state, accuracy_start=view.state.accuracy))


@pytest.mark.parametrize("feature", [one for one in ALL if one.indicators], ids=lambda one: one.name)
def test_unmeasured_differs_from_zero(feature: Feature) -> None:
    without, zero = (seedless, idle) if feature.name == "improvement" else (unmeasured, measured_as_nothing)
    never, nothing = seen(without(ordinary())), seen(zero(ordinary()))
    np.testing.assert_array_equal(never[feature.name], np.float32(feature.fill))
    np.testing.assert_array_equal(nothing[feature.name], 0)
    differs = np.array([never[name] != nothing[name] for name in feature.indicators])
    assert differs.any(axis=0).all()


def test_a_nan_loss_takes_the_upper_bound() -> None:
    view = replace(ordinary(), loss_N=np.array([np.nan, 0.0], np.float32))
    assert seen(view)["loss"].tolist() == [5, 0]


@pytest.mark.parametrize("feature", [one for one in ALL if isinstance(one.scale, RunScale)], ids=lambda one: one.name)
def test_run_scales_come_from_the_run(feature: Feature) -> None:
    assert isinstance(feature.scale, RunScale)
    view = ordinary()
    if feature.name in ("time_left", "seeds_left"):  # counts down from its scale
        full = {"time": 0} if feature.name == "time_left" else {"state": empty(N, S)}
        assert (seen(replace(view, **full))[feature.name] == 1).all()
        return
    longer = replace(view, **{feature.scale.name: 2 * getattr(view, feature.scale.name)})
    np.testing.assert_allclose(seen(longer)[feature.name], seen(view)[feature.name] / 2, rtol=1e-6)


def test_feature_names_are_unique_and_ranges_valid() -> None:
    for features in (HOST_FEATURES, TABLE):
        names = [feature.name for feature in features]
        assert len(set(names)) == len(names)
        assert all(name in names for feature in features for name in feature.indicators)
    for feature in ALL:
        assert -np.inf < feature.low <= feature.fill <= feature.high < np.inf, feature.name
        assert feature.unit or (feature.scale, feature.low, feature.high) == (1, 0, 1), feature.name
        assert isinstance(feature.scale, RunScale) or feature.scale > 0
    assert all(hasattr(ordinary(), scale.name) for scale in RunScale)
    assert tuple(TABLE[: len(SLOT_FEATURES)]) == SLOT_FEATURES
    assert {f"stage_{stage.name.lower()}" for stage in OCCUPIED} <= {feature.name for feature in SLOT_FEATURES}


def test_features_of_a_trained_host_are_in_range(make_env, plan_actions) -> None:
    env = make_env(2, 3)
    arrays_ = env.reset(seed=3)[0]
    for _ in range(3):
        assert arrays_["features"].shape == (2, len(HOST_FEATURES))
        assert arrays_["slots"].shape == (2, 3, len(env.layout.slot_feature_names))
        for value, features in ((arrays_["features"], HOST_FEATURES), (arrays_["slots"], slot_table(env.layout.blueprint_names))):
            low, high = (np.array([getattr(one, key) for one in features], np.float32) for key in ("low", "high"))
            assert ((low <= value) & (value <= high)).all()
        arrays_ = env.step(plan_actions((Op.GERMINATE, 0, 1), (Op.WAIT, 0, 0)))[0]
