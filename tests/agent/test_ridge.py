"""Ridge regression: features are standardised once, before any sample is left out."""

import numpy as np
import pytest

from esper.agent.regression import PENALTIES, fit_ridge, left_out_errors


def sample(seed: int, count: int, features: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, features)) * 10.0 ** rng.integers(-2, 3, features)
    return x, x @ rng.standard_normal(features) + rng.standard_normal(count)


def test_leave_one_out_errors_are_those_of_fits_without_the_sample() -> None:
    x, y = sample(0, 12, 4)
    standard = (x - x.mean(axis=0)) / x.std(axis=0)  # scaled once: the penalty then means the same in every fit
    for penalty, error in zip(PENALTIES, left_out_errors(x, y), strict=True):
        left_out = 0.0
        for i in range(len(y)):
            rest = np.arange(len(y)) != i
            a = np.column_stack([np.ones(rest.sum()), standard[rest]])
            weight = np.linalg.solve(a.T @ a + np.diag([0.0, *[penalty] * 4]), a.T @ y[rest])
            left_out += (y[i] - weight[0] - standard[i] @ weight[1:]) ** 2
        assert error == pytest.approx(left_out, rel=1e-9)


def test_predictions_do_not_depend_on_the_units_of_features_or_on_a_constant_one() -> None:
    x, y = sample(1, 9, 3)
    others = np.column_stack([x[:, 0] * 1000, np.full(9, 7.0), x[:, 1:] - 5])
    for penalty in PENALTIES:
        predicted = [fit_ridge(one, y, penalty=penalty).predict(one) for one in (x, others)]
        np.testing.assert_allclose(*predicted, rtol=1e-8)
