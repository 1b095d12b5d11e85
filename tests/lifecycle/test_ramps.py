"""Ramps of alpha: values of the specification, and properties of every curve."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.lifecycle.ramps import Curve, progress, ramp

TABLE = {
    (Curve.COSINE, 3): [0.25, 0.75, 1],
    (Curve.COSINE, 5): [0.0955, 0.3455, 0.6545, 0.9045, 1],
    (Curve.COSINE, 8): [0.0381, 0.1464, 0.3087, 0.5, 0.6913, 0.8536, 0.9619, 1],
    (Curve.SIGMOID_GENTLE, 3): [0.2447, 0.7553, 1],
    (Curve.SIGMOID_GENTLE, 5): [0.1043, 0.3391, 0.6609, 0.8957, 1],
    (Curve.SIGMOID_GENTLE, 8): [0.0529, 0.1491, 0.302, 0.5, 0.698, 0.8509, 0.9471, 1],
    (Curve.SIGMOID, 3): [0.1173, 0.8827, 1],
    (Curve.SIGMOID, 5): [0.0242, 0.2301, 0.7699, 0.9758, 1],
    (Curve.SIGMOID, 8): [0.0086, 0.0452, 0.1808, 0.5, 0.8192, 0.9548, 0.9914, 1],
    (Curve.SIGMOID_SHARP, 3): [0.018, 0.982, 1],
    (Curve.SIGMOID_SHARP, 5): [0.0007, 0.0832, 0.9168, 0.9993, 1],
    (Curve.SIGMOID_SHARP, 8): [0.0001, 0.0025, 0.0474, 0.5, 0.9526, 0.9975, 0.9999, 1],
    **{(Curve.LINEAR, n): [done / n for done in range(1, n + 1)] for n in (3, 5, 8)},
}
STEEP = {Curve.SIGMOID_GENTLE: 6, Curve.SIGMOID: 12, Curve.SIGMOID_SHARP: 24}
curves = st.sampled_from(Curve)
alphas = st.floats(0, 1, width=32)


def walk(start, target, total, curve, ticks=None):
    """Return alpha after each tick, from 0 on."""
    done = np.arange((total if ticks is None else ticks) + 1)
    low, high = (np.full(len(done), value, dtype=np.float32) for value in (start, target))
    return ramp(low, high, done, np.full(len(done), total), np.full(len(done), curve))


@pytest.mark.parametrize(("curve", "total"), TABLE)
def test_ramp_values_match_the_specification(curve, total):
    assert walk(0, 1, total, curve)[1:] == pytest.approx(TABLE[curve, total], abs=6e-5)


@pytest.mark.parametrize("curve", STEEP)
def test_sigmoids_are_logistic_functions_rescaled(curve):
    """The form of the specification, where it does not overflow."""
    t, k = np.linspace(0, 1, 101), STEEP[curve]

    def logistic(x):
        return 1 / (1 + np.exp(-x))

    wanted = (logistic(k * (t - 0.5)) - logistic(-k / 2)) / (logistic(k / 2) - logistic(-k / 2))
    np.testing.assert_allclose(progress(t, curve), wanted, atol=1e-14)


@given(start=alphas, target=alphas, total=st.integers(0, 40), curve=curves)
@settings(max_examples=200, deadline=None)
def test_ramps_are_monotone_and_end_exactly(start, target, total, curve):
    alpha = walk(start, target, total, curve, ticks=total + 5)
    assert alpha.dtype == np.float32
    assert (alpha[total:] == np.float32(target)).all()
    if total > 0:
        assert alpha[0] == np.float32(start)
    steps = np.diff(alpha) * np.sign(np.float32(target) - np.float32(start))
    assert (steps >= 0).all()
    assert ((alpha >= min(start, target)) & (alpha <= max(start, target))).all()


@given(t=st.floats(0.001, 0.999), curve=curves)
@settings(max_examples=200, deadline=None)
def test_curves_increase_and_are_point_symmetric(t, curve):
    """Increasing inside; convex before the middle and concave after it, except for the line."""
    h = 1e-4 * min(t, 1 - t)
    left, here, right = progress(np.array([t - h, t, t + h]), curve)
    assert right - left > 0
    assert here + progress(np.array([1 - t]), curve)[0] == pytest.approx(1, abs=1e-12)
    chord = here - t  # a convex curve lies below its chord, a concave one above
    if curve != Curve.LINEAR and abs(t - 0.5) > 1e-3:
        assert np.sign(chord) == np.sign(t - 0.5)


@pytest.mark.parametrize("curve", Curve)
def test_the_ends_are_exact(curve):
    assert progress(np.array([0.0, 0.5, 1.0]), curve).tolist() == [0.0, pytest.approx(0.5, abs=1e-15), 1.0]


def test_slots_with_different_ramps_are_independent():
    rng = np.random.default_rng(0)
    start, target = rng.random((2, 6, 5), dtype=np.float32)
    total = rng.integers(0, 9, (6, 5))
    done, curve = rng.integers(0, 12, (6, 5)), rng.integers(0, len(Curve), (6, 5))
    together = ramp(start, target, done, total, curve)
    for place in np.ndindex(6, 5):
        alone = ramp(*(array[place].reshape(1) for array in (start, target, done, total, curve)))
        assert together[place] == alone[0]


def test_steeper_sigmoids_start_later():
    early = [progress(np.array([0.25]), curve)[0] for curve in (Curve.LINEAR, *STEEP)]
    assert early == sorted(early, reverse=True)
    assert len(set(early)) == 4
