"""Regressions of returns on observations: linear, or forests of regression trees."""

# n samples, F features, L penalties

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from esper.lifecycle.stages import FloatArray

Float64Array = npt.NDArray[np.float64]
Samples = tuple[FloatArray, FloatArray | Float64Array]
"""Features `[n, F]` and values `[n]`."""
PENALTIES = np.logspace(-3, 4, 15)
"""Candidate penalties of ridge regressions, for features of variance 1."""
TREES = 60
"""Trees of a forest. More: smoother predictions, longer fits."""
LEAF = 3
"""Minimum number of samples in a leaf. Higher: smoother predictions."""


class Model(StrEnum):
    """Kind of regression."""

    ridge = "ridge"
    forest = "forest"


class Regression(Protocol):
    """A fitted prediction of one value."""

    def predict(self, x_nF: npt.ArrayLike) -> Float64Array:
        """Return predictions `[n]` of features `[n, F]`."""
        ...


Fit = Callable[[npt.ArrayLike, npt.ArrayLike], Regression]
"""Function that fits a regression to features `[n, F]` and values `[n]`, n at least 1."""


def choose(model: Model, samples: Sequence[Samples]) -> tuple[Fit, list[Regression | None], dict[str, float]]:
    """Return a function that fits regressions of this kind, those of these samples (None where there are none), and metrics of
    how well they predict held-out samples.

    All ridge regressions get the penalty with the smallest sum of leave-one-out errors. Forests (Breiman 2001) have no penalty;
    they are scored out of bag, by the trees that were not fitted to a sample.
    """
    enough = [one for one in samples if len(one[1]) > 2]
    spread = sum(float(np.square(y - y.mean()).sum()) for _, y in enough)
    if model is Model.forest:
        forests = [_fit_forest(*one, judged=len(one[1]) > 2) if len(one[1]) else None for one in samples]
        pairs = zip(forests, samples, strict=True)
        error = sum(float(np.square(one.oob_prediction_ - y).sum()) for one, (_, y) in pairs if one is not None and len(y) > 2)
        return _fit_forest, forests, {"explained": 1 - error / spread if spread else float("nan")}
    penalty, error = float(PENALTIES[-1]), 0.0
    if enough:
        error_L = np.sum([left_out_errors(*one) for one in enough], axis=0)
        penalty, error = float(PENALTIES[error_L.argmin()]), float(error_L.min())
    explained = 1 - error / spread if spread else float("nan")
    fit = partial(fit_ridge, penalty=penalty)
    return fit, [fit(*one) if len(one[1]) else None for one in samples], {"explained": explained, "penalty": penalty}


def left_out_errors(x_nF: npt.ArrayLike, y_n: npt.ArrayLike) -> Float64Array:
    """Return the sum of squared leave-one-out errors of ridge regressions with each penalty in `PENALTIES` `[L]`.

    Features are standardized once: a penalty then means the same in every fit.
    """
    from sklearn.linear_model import RidgeCV  # takes a second to import

    return _fitted(RidgeCV(PENALTIES, store_cv_results=True, gcv_mode="svd"), x_nF, y_n)[-1].cv_results_.sum(axis=0)


def fit_ridge(x_nF: npt.ArrayLike, y_n: npt.ArrayLike, *, penalty: float) -> Any:
    """Return a ridge regression on standardized features."""
    from sklearn.linear_model import Ridge

    return _fitted(Ridge(penalty, solver="svd"), x_nF, y_n)


def _fitted(last: Any, x_nF: npt.ArrayLike, y_n: npt.ArrayLike) -> Any:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), last).fit(np.asarray(x_nF, np.float64), np.asarray(y_n, np.float64))


def _fit_forest(x_nF: npt.ArrayLike, y_n: npt.ArrayLike, *, judged: bool = False) -> Any:
    """Return a forest, the same for the same samples; if `judged`, with out-of-bag predictions."""
    from sklearn.ensemble import RandomForestRegressor  # takes a second to import

    return RandomForestRegressor(TREES, min_samples_leaf=LEAF, max_features=1 / 3, random_state=0, oob_score=judged).fit(
        x_nF, y_n
    )
