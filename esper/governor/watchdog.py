"""The watchdog: non-finite and diverging losses."""

# N hosts

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]


class Cause(IntEnum):
    """Why a host is rolled back."""

    HEALTHY = 0
    NONFINITE = 1
    """The training loss, the validation loss or a seed's gradient is NaN or infinite."""
    DIVERGENCE = 2
    """The validation loss is far above chance and far above the best that this host has shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What the governor says of N hosts."""

    cause_N: npt.NDArray[np.int64]
    """`Cause` of each host."""
    penalty: float
    """Points taken for a rollback, on the transition that caused it [pp]."""

    @property
    def rollback_N(self) -> npt.NDArray[np.bool_]:
        return self.cause_N != Cause.HEALTHY


@dataclass(kw_only=True, slots=True)
class GovernorConfig:
    """How hosts are guarded."""

    def build(self, *, num_classes: int) -> "Governor":
        """The governor of hosts that tell `num_classes` classes apart."""
        raise TypeError(f"{type(self).__name__} does not say how it judges: define build(num_classes)")


class Governor:
    """Judges hosts after every epoch; holds no state, so that a rollback has nothing to undo in it."""

    def judge(self, train_loss_N: FloatArray, loss_N: FloatArray, best_loss_N: FloatArray) -> Verdict:
        """Judges N hosts.

        Args:
            train_loss_N: mean training loss of the epoch [nats]; infinite where a seed's gradient was not finite.
            loss_N: validation loss after it [nats].
            best_loss_N: lowest validation loss of each host up to the epoch before [nats].
        """
        raise TypeError(f"{type(self).__name__} does not say how it judges: define judge(...)")


@dataclass(kw_only=True, slots=True)
class WatchdogConfig(GovernorConfig):
    """Rolls a host back when its loss is not finite or has diverged."""

    chance_multiple: float = 3.0
    """A loss is diverging above this multiple of the loss of a random guess, above 1. Lower reacts sooner and errs more."""
    best_multiple: float = 3.0
    """... and above this multiple of the host's best loss, above 1."""
    penalty: float = 10.0
    """Points taken for a rollback [pp], at least 0. Higher makes a controller shy of what broke a host."""

    def __post_init__(self) -> None:
        for name in ("chance_multiple", "best_multiple"):
            if not getattr(self, name) > 1:
                raise ValueError(f"governor.{name} must be above 1, got {getattr(self, name)}: 3 is a good start")
        if not (math.isfinite(self.penalty) and self.penalty >= 0):
            raise ValueError(f"governor.penalty must be finite and at least 0, got {self.penalty}: it is taken, not given")

    def build(self, *, num_classes: int) -> "Watchdog":
        return Watchdog(self, num_classes)


class Watchdog(Governor):
    """See `WatchdogConfig`."""

    def __init__(self, config: WatchdogConfig, num_classes: int) -> None:
        self.config = config
        self.chance_loss = math.log(num_classes)

    def judge(self, train_loss_N: FloatArray, loss_N: FloatArray, best_loss_N: FloatArray) -> Verdict:
        config = self.config
        finite = np.isfinite(train_loss_N) & np.isfinite(loss_N)
        limit = np.maximum(config.chance_multiple * self.chance_loss, config.best_multiple * best_loss_N)
        diverged = finite & (loss_N > limit)
        cause = np.where(finite, np.where(diverged, Cause.DIVERGENCE, Cause.HEALTHY), Cause.NONFINITE)
        return Verdict(cause_N=cause.astype(np.int64), penalty=config.penalty)


@dataclass(kw_only=True, slots=True)
class NoGovernorConfig(GovernorConfig):
    """Nobody watches: a host whose loss is not finite ends the run with an error, since nothing could be learnt from it."""

    def build(self, *, num_classes: int) -> "NoGovernor":
        return NoGovernor()


class NoGovernor(Governor):
    """See `NoGovernorConfig`."""

    def judge(self, train_loss_N: FloatArray, loss_N: FloatArray, best_loss_N: FloatArray) -> Verdict:
        sick = np.flatnonzero(~(np.isfinite(train_loss_N) & np.isfinite(loss_N)))
        if len(sick):
            raise FloatingPointError(
                f"hosts {', '.join(map(str, sick))} have a loss or gradient that is not finite, and governor=off does not roll "
                "back: use governor=watchdog"
            )
        return Verdict(cause_N=np.zeros(len(loss_N), dtype=np.int64), penalty=0.0)
