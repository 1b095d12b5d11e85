"""Ridge regression: against the normal equations, and leave-one-out errors against fits that leave one out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.agent.ridge import PENALTIES, fit, loo_error


def sample(seed: int, count: int, features: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, features)) * 10.0 ** rng.integers(-2, 3, features)
    return x, x @ rng.standard_normal(features) + rng.standard_normal(count)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(2, 30), features=st.integers(1, 40), penalty=st.sampled_from(PENALTIES))
def test_a_fit_solves_the_normal_equations(seed: int, count: int, features: int, penalty: float) -> None:
    x, y = sample(seed, count, features)
    standard = (x - x.mean(axis=0)) / x.std(axis=0)
    expected = np.linalg.solve(standard.T @ standard + penalty * np.eye(features), standard.T @ (y - y.mean()))
    np.testing.assert_allclose(fit(x, y, penalty).weight_F, expected, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(fit(x, y, penalty).predict(x), y.mean() + standard @ expected, rtol=1e-6, atol=1e-6)


def test_leave_one_out_errors_are_those_of_fits_without_the_sample() -> None:
    x, y = sample(0, 12, 4)
    standard = (x - x.mean(axis=0)) / x.std(axis=0)  # scaled once: the penalty then means the same in every fit
    for penalty, error in zip(PENALTIES, loo_error(x, y), strict=True):
        left_out = 0.0
        for i in range(len(y)):
            rest = np.arange(len(y)) != i
            a = np.column_stack([np.ones(rest.sum()), standard[rest]])
            weight = np.linalg.solve(a.T @ a + np.diag([0.0, *[penalty] * 4]), a.T @ y[rest])
            left_out += (y[i] - weight[0] - standard[i] @ weight[1:]) ** 2
        assert error == pytest.approx(left_out, rel=1e-9)


def test_a_constant_feature_has_no_weight() -> None:
    x, y = sample(1, 9, 3)
    x[:, 1] = 7.0
    assert fit(x, y, 1.0).weight_F[1] == 0


def test_a_single_sample_predicts_its_value() -> None:
    assert fit([[1.0, 2.0]], [5.0], 1.0).predict([[9.0, 9.0]]) == 5.0
    assert np.isinf(loo_error([[1.0, 2.0]], [5.0])).all()
