"""No governor."""

# N hosts

from dataclasses import dataclass

import numpy as np

from esper.governor.base import Governor, GovernorConfig, Verdict
from esper.governor.health import FloatArray, Health


@dataclass(kw_only=True, slots=True)
class NoGovernorConfig(GovernorConfig):
    """No rollbacks: a host that is not finite ends the run with an error."""

    def build(self, *, num_classes: int) -> "NoGovernor":
        return NoGovernor()


class NoGovernor(Governor):
    """See `NoGovernorConfig`."""

    def judge(self, health: Health, train_loss_N: FloatArray, loss_N: FloatArray) -> Verdict:
        sick = np.flatnonzero(~(np.isfinite(train_loss_N) & np.isfinite(loss_N)))
        if len(sick):
            raise FloatingPointError(
                f"hosts {', '.join(map(str, sick))} have a loss, gradient or batch statistic that is not finite, and "
                "governor=off does not roll back: use governor=watchdog"
            )
        none_N = np.zeros(len(loss_N), dtype=np.int64)
        return Verdict(cause_N=none_N, suspect_N=none_N > 0, penalty=0.0)
