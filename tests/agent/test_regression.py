"""The two kinds of regression: what each can predict, and how well it says it does."""

import numpy as np
import pytest

from esper.agent.regression import PENALTIES, Model, choose, fit_ridge, left_out_errors


def products(seed: int, count: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Return four features, and the sign of the product of the first two as values."""
    x = np.random.default_rng(seed).standard_normal((count, 4)).astype(np.float32)
    return x, np.sign(x[:, 0] * x[:, 1])


@pytest.mark.parametrize(("model", "low", "high"), [(Model.ridge, -0.1, 0.05), (Model.forest, 0.4, 1.0)])
def test_only_a_forest_predicts_products(model: Model, low: float, high: float) -> None:
    x, y = products(0)
    fit, (model_of_first, _), metrics = choose(model, [(x, y), products(1)])
    new, values = products(2)
    assert model_of_first is not None
    assert np.array_equal(model_of_first.predict(new), fit(x, y).predict(new))
    explained = 1 - np.square(fit(x, y).predict(new) - values).mean() / values.var()
    assert low < explained < high
    assert metrics["explained"] == pytest.approx(explained, abs=0.15), "left-out samples predict new ones"
    assert ("penalty" in metrics) == (model is Model.ridge)


@pytest.mark.parametrize("model", Model)
def test_a_constant_and_a_single_sample_are_predicted(model: Model) -> None:
    none = np.ones((0, 2), np.float32), np.zeros(0, np.float32)
    fit, models, metrics = choose(model, [(np.ones((1, 2), np.float32), np.array([5.0], np.float32)), none])
    assert [one is None for one in models] == [False, True]
    assert fit([[1.0, 2.0]], [5.0]).predict([[9.0, 9.0]]) == pytest.approx(5.0)
    assert np.isnan(metrics["explained"])


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
