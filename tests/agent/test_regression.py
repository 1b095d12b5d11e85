"""The two kinds of regression: what each can predict, and how well it says it does."""

import numpy as np
import pytest

from esper.agent.regression import Model, choose


def products(seed: int, count: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Return four features, and the sign of the product of the first two as values."""
    x = np.random.default_rng(seed).standard_normal((count, 4)).astype(np.float32)
    return x, np.sign(x[:, 0] * x[:, 1])


@pytest.mark.parametrize(("model", "low", "high"), [(Model.ridge, -0.1, 0.05), (Model.forest, 0.4, 1.0)])
def test_only_a_forest_predicts_products(model: Model, low: float, high: float) -> None:
    x, y = products(0)
    fit, metrics = choose(model, [(x, y), products(1)])
    new, values = products(2)
    explained = 1 - np.square(fit(x, y).predict(new) - values).mean() / values.var()
    assert low < explained < high
    assert metrics["explained"] == pytest.approx(explained, abs=0.15), "left-out samples predict new ones"
    assert ("penalty" in metrics) == (model is Model.ridge)


@pytest.mark.parametrize("model", Model)
def test_a_constant_and_a_single_sample_are_predicted(model: Model) -> None:
    fit, metrics = choose(model, [(np.ones((1, 2), np.float32), np.array([5.0], np.float32))])
    assert fit([[1.0, 2.0]], [5.0]).predict([[9.0, 9.0]]) == pytest.approx(5.0)
    assert np.isnan(metrics["explained"])
