"""What a governor says, and what it must be able to do."""

# N hosts, O operations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from esper.governor.health import BoolArray, FloatArray, Health, newborn


class Cause(IntEnum):
    """Why a host is rolled back."""

    HEALTHY = 0
    NONFINITE = 1
    """The training loss, the validation loss, a seed's gradient or a batch statistic is NaN or infinite."""
    DIVERGENCE = 2
    """The validation loss is far above chance and far above the best that this host has shown."""
    LOBOTOMY = 3
    """The validation loss is that of a random guess, and the host has been good before."""
    DECLINE = 4
    """The validation loss has been suspect, above what is usual for this host, for too many epochs in a row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What the governor says of N hosts after an epoch. It changes nothing by itself."""

    cause_N: npt.NDArray[np.int64]
    """`Cause` of each host."""
    suspect_N: BoolArray
    """Is something wrong that is not yet reason enough for a rollback? Such a host is not remembered."""
    penalty: float
    """Points taken for a rollback, on the transition that caused it [pp]."""

    @property
    def rollback_N(self) -> BoolArray:
        return self.cause_N != Cause.HEALTHY


@dataclass(kw_only=True, slots=True)
class GovernorConfig:
    """How hosts are guarded."""

    def build(self, *, num_classes: int) -> "Governor":
        """The governor of hosts that tell `num_classes` classes apart."""
        raise TypeError(f"{type(self).__name__} does not say how it judges: define build(num_classes)")


class Governor:
    """Judges hosts after every epoch. What it knows of them is a `Health`, kept for it by the environment."""

    window: int = 1
    """Healthy losses of a host that are kept."""

    def start(self, loss_N: FloatArray) -> Health:
        """New hosts, measured once before they were trained.

        Raises:
            FloatingPointError: one has a loss that is not finite, so that there is no healthy state to come back to.
        """
        if len(sick := np.flatnonzero(~np.isfinite(loss_N))):
            raise FloatingPointError(
                f"hosts {', '.join(map(str, sick))} have a loss that is not finite before any training: "
                "look at the task's hosts and at its data"
            )
        return newborn(loss_N, self.window)

    def judge(self, health: Health, train_loss_N: FloatArray, loss_N: FloatArray) -> Verdict:
        """Judges N hosts.

        Args:
            health: what is known of them up to the epoch before.
            train_loss_N: mean training loss of the epoch [nats]; infinite where a seed's gradient or the batch statistics of the
                host are not finite, undefined where a host is retired.
            loss_N: validation loss after it [nats].
        """
        raise TypeError(f"{type(self).__name__} does not say how it judges: define judge(...)")

    def after(self, health: Health, verdict: Verdict, loss_N: FloatArray) -> Health:
        """What is known of the hosts after the epoch that was judged. By default nothing is learnt."""
        return health
