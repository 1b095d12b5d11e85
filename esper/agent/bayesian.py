"""Bayesian linear regression whose prior is chosen by the evidence (MacKay 1992, Neural Computation 4)."""

# n samples, F features, D draws, R ratios

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]
RATIOS = np.logspace(-2, 4, 25)
"""Candidate ratios of the variance of the noise to that of a weight."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Posterior:
    """A normal posterior of the weights in y = mean + weights . x + noise, with the covariance root @ root.T."""

    mean: float
    weight_F: Float64Array
    root_FF: Float64Array
    """The symmetric square root: unlike others, it hardly changes with the rounding of the data, and neither do draws."""
    noise: float
    """Standard deviation of the noise."""

    def predict(self, x_nF: Float64Array) -> Float64Array:
        """Return the expected values `[n]` for features `[n, F]`."""
        return self.mean + x_nF @ self.weight_F

    def sample(self, x_nF: Float64Array, rng: np.random.Generator, draws: int) -> Float64Array:
        """Return values without noise `[D, n]`, each row with its own draw of the weights."""
        weight_DF = self.weight_F + rng.standard_normal((draws, len(self.weight_F))) @ self.root_FF.T
        return self.mean + weight_DF @ x_nF.T


def fit(x_nF: Float64Array, y_n: Float64Array, groups: int = 1) -> Posterior:
    """Return the posterior of values `[n]` at features `[n, F]`.

    Weights are independent normal variables a priori. The ratio of the variances of noise and weights is the one in `RATIOS` with
    the highest evidence, at the most probable variance of the noise. Without a degree of freedom, or with equal values, both
    variances are 1.

    Args:
        groups: number of groups whose means were subtracted from features and values, each of which costs a degree of freedom.
    """
    mean = float(y_n.mean()) if len(y_n) else 0.0
    value_F, turn_FF = np.linalg.eigh(x_nF.T @ x_nF)
    value_F = np.maximum(value_F, 0.0)
    turned_F = turn_FF.T @ (x_nF.T @ (y_n - mean))
    total = float(np.square(y_n - mean).sum())
    ratio, noise = 1.0, 1.0
    if (free := len(y_n) - groups) > 0 and total > 0:
        left_R = total - (turned_F**2 / (value_F + RATIOS[:, None])).sum(axis=1)
        variance_R = np.maximum(left_R, 1e-12 * total) / free
        evidence_R = -free * np.log(variance_R) - np.log1p(value_F / RATIOS[:, None]).sum(axis=1)
        best = int(evidence_R.argmax())
        ratio, noise = float(RATIOS[best]), float(np.sqrt(variance_R[best]))
    weight_F = turn_FF @ (turned_F / (value_F + ratio))
    root_FF = noise * (turn_FF / np.sqrt(value_F + ratio)) @ turn_FF.T
    return Posterior(mean=mean, weight_F=weight_F, root_FF=root_FF, noise=noise)
