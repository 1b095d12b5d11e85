"""No governor."""

# N hosts

from dataclasses import dataclass

import numpy as np

from esper.governor.base import Governor, GovernorConfig, Verdict
from esper.governor.health import Health
from esper.lifecycle.stages import FloatArray


@dataclass(kw_only=True, slots=True)
class NoGovernorConfig(GovernorConfig):
    """A governor without rollbacks: a non-finite host ends the run with an error."""

    def build(self, *, chance_loss: float) -> "NoGovernor":
        return NoGovernor()


class NoGovernor(Governor):
    """A governor that never rolls back; see `NoGovernorConfig`."""

    def judge(self, health: Health, train_loss_N: FloatArray, loss_N: FloatArray) -> Verdict:
        failed = np.flatnonzero(~(np.isfinite(train_loss_N) & np.isfinite(loss_N)))
        if len(failed):
            raise FloatingPointError(
                f"hosts {', '.join(map(str, failed))} have a non-finite loss, gradient or batch statistic, and "
                "governor=off does not roll back: start a new run with governor=watchdog"
            )
        none_N = np.zeros(len(loss_N), dtype=np.int64)
        return Verdict(cause_N=none_N, suspect_N=none_N > 0, penalty=0.0)
