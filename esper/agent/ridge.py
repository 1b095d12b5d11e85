"""Ridge regression whose penalty is chosen by leave-one-out error."""

# n samples, F features, L penalties

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]
PENALTIES = np.logspace(-3, 4, 15)
"""Candidate penalties, for features of variance 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ridge:
    """A linear prediction of one value, y = mean + weights . (x - centre) / scale."""

    mean: float
    weight_F: Float64Array
    centre_F: Float64Array
    scale_F: Float64Array

    def predict(self, x_nF: npt.ArrayLike) -> Float64Array:
        """Return predictions `[n]` of features `[n, F]`."""
        return self.mean + (np.asarray(x_nF, np.float64) - self.centre_F) / self.scale_F @ self.weight_F


def loo_error(x_nF: npt.ArrayLike, y_n: npt.ArrayLike) -> Float64Array:
    """Return the sum of squared leave-one-out errors of each penalty in `PENALTIES` `[L]`; infinite for fewer than two samples.

    With the hat matrix H of a fit, its error on a sample that is left out is (y - Hy)_i / (1 - H_ii) (Allen 1974).
    """
    x, y = np.asarray(x_nF, np.float64), np.asarray(y_n, np.float64)
    if len(y) < 2:
        return np.full(len(PENALTIES), np.inf)
    left, values, _ = np.linalg.svd(_standardised(x)[0], full_matrices=False)
    shrink_LR = values**2 / (values**2 + PENALTIES[:, None])
    residual_Ln = (y - y.mean()) - shrink_LR * (left.T @ (y - y.mean())) @ left.T
    leverage_Ln = shrink_LR @ (left**2).T + 1 / len(y)
    return np.square(residual_Ln / np.maximum(1 - leverage_Ln, 1e-9)).sum(axis=1)


def fit(x_nF: npt.ArrayLike, y_n: npt.ArrayLike, penalty: float) -> Ridge:
    """Return the fit of values `[n]`, n at least 1, to features `[n, F]`, which are standardised."""
    x, y = np.asarray(x_nF, np.float64), np.asarray(y_n, np.float64)
    standard, centre, scale = _standardised(x)
    left, values, right = np.linalg.svd(standard, full_matrices=False)
    weight = right.T @ (values / (values**2 + penalty) * (left.T @ (y - y.mean())))
    return Ridge(mean=float(y.mean()), weight_F=weight, centre_F=centre, scale_F=scale)


def _standardised(x: Float64Array) -> tuple[Float64Array, Float64Array, Float64Array]:
    centre, scale = x.mean(axis=0), x.std(axis=0)
    scale = np.where(scale > 1e-9, scale, 1.0)
    return (x - centre) / scale, centre, scale
