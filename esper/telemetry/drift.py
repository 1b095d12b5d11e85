"""Drift of gradients: by which factor the norm of a gradient differs from its running mean."""

import math
from collections.abc import Mapping
from typing import Any

from esper.telemetry.tags import WORDS

LATEST = 10
"""Time constant of the running mean [updates]: a new value has the weight 1 / LATEST, and more in the first updates."""
LEAST = 5
"""Updates before the first drift is reported, so that the mean rests on several values [updates]."""
DRIFTS = {"host/gradient_norm": "host/gradient_drift"} | {
    f"policy/grad_norm_{part}": f"policy/grad_drift_{part}" for part in WORDS["part"]
}
"""Tag of a norm -> that of its drift."""


class GradientDrift:
    """Running means of the logarithms of gradient norms, in which a halving counts as much as a doubling."""

    def __init__(self) -> None:
        self._mean: dict[str, float] = {}
        """Running mean by tag of the norm."""
        self._count: dict[str, int] = {}
        """Updates seen, at most `LATEST`."""

    def measure(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the drift of each norm that was measured, a factor of at least 1, and count this update in.

        Args:
            metrics: measured metrics of an update by tag. Norms of 0 and norms that are not finite have no logarithm: they are
                left out.
        """
        found: dict[str, float] = {}
        for norm, drift in DRIFTS.items():
            if not 0 < (value := metrics.get(norm, math.nan)) < math.inf:
                continue
            number, mean, count = math.log(value), self._mean.get(norm, 0.0), self._count.get(norm, 0)
            if count >= LEAST:
                found[drift] = math.exp(abs(number - mean))
            self._count[norm] = min(count + 1, LATEST)
            self._mean[norm] = mean + (number - mean) / self._count[norm]
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"mean": dict(self._mean), "count": dict(self._count)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self._mean, self._count = dict(state["mean"]), dict(state["count"])
