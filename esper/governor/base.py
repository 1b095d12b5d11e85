"""The interface of governors, and their verdicts."""

# N hosts, O operations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from esper.governor.health import Health, newborn
from esper.lifecycle.stages import BoolArray, FloatArray
from esper.options import Option


class Cause(IntEnum):
    """Cause of a rollback."""

    HEALTHY = 0
    NONFINITE = 1
    """The training loss, the validation loss, a seed's gradient or a batch statistic is NaN or infinite, or a gradient overflows
    at the lowest loss scale."""
    DIVERGENCE = 2
    """The validation loss is far above chance and far above the best that this host has shown."""
    LOBOTOMY = 3
    """The validation loss is at chance level, although the host was good before."""
    DECLINE = 4
    """The validation loss has been suspect, above what is usual for this host, for too many epochs in a row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The governor's verdict on N hosts after an epoch."""

    cause_N: npt.NDArray[np.int64]
    """`Cause` of each host."""
    suspect_N: BoolArray
    """Hosts with a suspicious loss that does not justify a rollback yet; their snapshots are not updated."""
    penalty: float
    """Penalty of a rollback, deducted from the reward of the transition that caused it [points]."""

    @property
    def rollback_N(self) -> BoolArray:
        """Hosts to roll back `[N]`."""
        return self.cause_N != Cause.HEALTHY


@dataclass(kw_only=True, slots=True)
class GovernorConfig(Option):
    """Config of a governor."""

    def build(self, *, chance_loss: float) -> "Governor":
        """Build the governor for hosts with this loss of a random guess."""
        raise TypeError(f"{type(self).__name__} does not define build(chance_loss)")


class Governor:
    """A monitor that judges hosts after every epoch by their `Health`, which the environment stores."""

    window: int = 1
    """Number of healthy losses kept per host."""

    def start(self, loss_N: FloatArray) -> Health:
        """Return the health of new hosts, measured once before training.

        Raises:
            FloatingPointError: a loss is non-finite, so there is no healthy state to restore.
        """
        if len(failed := np.flatnonzero(~np.isfinite(loss_N))):
            raise FloatingPointError(
                f"hosts {', '.join(map(str, failed))} have a non-finite loss before any training: "
                "check the task's hosts and its data"
            )
        return newborn(loss_N, self.window)

    def judge(self, health: Health, train_loss_N: FloatArray, loss_N: FloatArray) -> Verdict:
        """Judge N hosts.

        Args:
            health: health of the hosts before the epoch.
            train_loss_N: mean training loss of the epoch [nats]; infinite where a seed's gradient or the batch statistics of the
                host are non-finite, or a gradient overflowed at the lowest loss scale; undefined where a host is retired. An
                overflow at a higher scale only skips a step, see `LossScale`: governors do not see it.
            loss_N: validation loss after it [nats].
        """
        raise TypeError(f"{type(self).__name__} does not define judge(...)")

    def after(self, health: Health, verdict: Verdict, loss_N: FloatArray) -> Health:
        """Return the health of the hosts after the epoch that was judged; by default unchanged."""
        return health
