"""Bayesian regression: against the formulas of a Gaussian process with the same prior."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.agent.bayesian import RATIOS, fit


def sample(seed: int, count: int, features: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, features))
    return x, 50 + x @ rng.standard_normal(features) + rng.standard_normal(count)


def log_evidence(x: np.ndarray, y: np.ndarray, ratio: float) -> float:
    """The log density of the values at the most probable variance, up to a constant, computed from their covariance."""
    covariance = np.eye(len(y)) + x @ x.T / ratio
    variance = y @ np.linalg.solve(covariance, y) / (len(y) - 1)
    return -(len(y) - 1) * np.log(variance) - np.linalg.slogdet(covariance)[1]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(2, 30), features=st.integers(1, 40))
def test_the_posterior_is_that_of_a_gaussian_process(seed: int, count: int, features: int) -> None:
    x, y = sample(seed, count, features)
    found, centred = fit(x, y), y - y.mean()
    ratio = max(RATIOS, key=lambda one: log_evidence(x, centred, one))
    covariance = np.eye(count) + x @ x.T / ratio
    variance = centred @ np.linalg.solve(covariance, centred) / (count - 1)
    assert found.noise**2 == pytest.approx(variance, rel=1e-6)
    new = np.random.default_rng(seed + 1).standard_normal((5, features))
    gain = np.linalg.solve(covariance, x @ new.T / ratio).T
    np.testing.assert_allclose(found.predict(new), y.mean() + gain @ centred, rtol=1e-6)
    expected = variance * (new @ new.T / ratio - gain @ (x @ new.T / ratio))
    root = new @ found.root_FF
    np.testing.assert_allclose(root @ root.T, expected, rtol=1e-5, atol=1e-8 * variance)


def test_draws_have_the_moments_of_the_posterior() -> None:
    x, y = sample(0, 30, 3)
    found = fit(x, y)
    drawn = found.sample(x, np.random.default_rng(0), 20_000)
    root = x @ found.root_FF
    np.testing.assert_allclose(drawn.mean(axis=0), found.predict(x), atol=0.02)
    np.testing.assert_allclose(np.cov(drawn.T), root @ root.T, atol=0.02)


@pytest.mark.parametrize("values", [[], [3.0], [3.0, 3.0]])
def test_too_little_to_learn_from_leaves_the_prior_of_variance_one(values: list[float]) -> None:
    found = fit(np.zeros((len(values), 2)), np.array(values))
    np.testing.assert_allclose(found.predict(np.eye(2)), np.mean(values) if values else 0.0)
    np.testing.assert_allclose(found.root_FF @ found.root_FF.T, np.eye(2))


@pytest.mark.parametrize("size", [2, 4, 16])
def test_the_noise_within_groups_is_not_underestimated(size: int) -> None:
    noises: list[float] = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((160 // size, size, 6))
        y = x @ rng.standard_normal(6) + 20 * rng.standard_normal((160 // size, 1)) + rng.standard_normal((160 // size, size))
        x, y = (part - part.mean(axis=1, keepdims=True) for part in (x, y))
        noises.append(fit(x.reshape(160, 6), y.reshape(160), groups=160 // size).noise)
    assert np.mean(noises) == pytest.approx(1.0, abs=0.06)
