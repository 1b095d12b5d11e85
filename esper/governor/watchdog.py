"""The watchdog: rollback of hosts whose loss is non-finite or divergent, or stays at chance or above its usual level."""

# N hosts, W window of losses

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from esper.governor.base import Cause, Governor, GovernorConfig, Verdict
from esper.governor.health import Health, usual
from esper.lifecycle.stages import FloatArray
from esper.ranges import check_ranges

FEWEST = 3
"""Minimum number of healthy losses for the suspect check."""


@dataclass(kw_only=True, slots=True)
class WatchdogConfig(GovernorConfig):
    """A governor that rolls back hosts whose loss is non-finite, divergent, or suspect for too long: back at chance, or far above
    its usual level.

    The chance loss is that of a guess that ignores the input: log(classes), or for numbers the loss of the mean target.
    """

    chance_multiple: float = 3.0
    """Multiple of the chance loss above which a loss is divergent, above 1. Lower: earlier rollbacks, more false alarms."""
    best_multiple: float = 3.0
    """Multiple of the host's best loss that a divergent loss must exceed as well, above 1. Lower: earlier rollbacks."""
    deviations: float = 6.0
    """Spreads above the median of the last healthy losses beyond which a loss is suspect, above 0. The spread is 1.48
    median absolute deviations. A suspect host gets no snapshot, and no seed of it may be planted, advanced or kept. Lower: more
    suspects; inf: none."""
    least_spread: float = 0.1
    """Minimum spread, as a share of the chance loss, at least 0. Higher: tolerates larger jumps of a steady host."""
    window: int = 20
    """Number of healthy losses in the median, at least 3 [host epochs]. Higher: steadier, slower to adapt."""
    patience: int = 3
    """Consecutive suspect epochs before a rollback, at least 1 [host epochs]. Higher: more time to recover."""
    good_share: float = 0.6
    """Share of the chance loss below which a host's best loss counts as good, in (0, 1). Higher: earlier protection."""
    chance_share: float = 0.065
    """Distance to the chance loss, as a share of it, within which a good host is suspect, in [0, 1); 0: never."""
    penalty: float = 10.0
    """Penalty per rollback, at least 0 [points], for PPO in addition to all that the host would earn afterwards. Higher: a
    controller avoids actions that destabilise hosts."""
    recovery: int = 3
    """Consecutive healthy epochs that clear a host's rollback count, at least 1 [host epochs]. Higher: hosts retire sooner."""
    max_falls: int = 3
    """Rollbacks without recovery before a host retires, at least 1. A retired host stays at its last snapshot, without training,
    actions or penalties, until the episode ends. Higher: more attempts, and more penalties."""

    def __post_init__(self) -> None:
        ranges = {
            "(1, inf)": ["chance_multiple", "best_multiple"],
            "(0, inf]": ["deviations"],
            "[0, inf)": ["least_spread", "penalty"],
            "[3, inf]": ["window"],
            "[1, inf]": ["patience", "recovery", "max_falls"],
            "(0, 1)": ["good_share"],
            "[0, 1)": ["chance_share"],
        }
        check_ranges("governor", self, ranges)
        if self.good_share >= 1 - self.chance_share:
            raise ValueError(
                f"governor.good_share={self.good_share} and governor.chance_share={self.chance_share} overlap, so that a host "
                "could be good and at chance at once: lower one of them"
            )

    def build(self, *, chance_loss: float) -> "Watchdog":
        return Watchdog(self, chance_loss)


@dataclass(kw_only=True, slots=True)
class StrictWatchdogConfig(WatchdogConfig):
    """The watchdog with tighter limits: earlier rollbacks, occasionally of a host that would have recovered."""

    chance_multiple: float = 1.5
    best_multiple: float = 2.0
    deviations: float = 4.0
    least_spread: float = 0.05
    patience: int = 2
    good_share: float = 0.75
    chance_share: float = 0.1
    max_falls: int = 2


@dataclass(kw_only=True, slots=True)
class TolerantWatchdogConfig(WatchdogConfig):
    """The watchdog for tasks in which a loss rises by itself, as where data drifts: hosts that are non-finite, or whose loss is
    far beyond chance, are rolled back, and none is suspect."""

    chance_multiple: float = 10.0
    best_multiple: float = 10.0
    deviations: float = math.inf
    chance_share: float = 0.0


class Watchdog(Governor):
    """A governor with limits on every loss; see `WatchdogConfig`."""

    def __init__(self, config: WatchdogConfig, chance_loss: float) -> None:
        self.config, self.window = config, config.window
        self.chance_loss = chance_loss

    def judge(self, health: Health, train_loss_N: FloatArray, loss_N: FloatArray) -> Verdict:
        config, chance = self.config, self.chance_loss
        guarded = ~health.retired_N
        finite = np.isfinite(train_loss_N) & np.isfinite(loss_N)
        limit = np.maximum(config.chance_multiple * chance, config.best_multiple * health.best_loss_N)
        # Patience for both: a host that bounces, even to chance level, mostly recovers within two epochs.
        forgot = (health.best_loss_N < config.good_share * chance) & (np.abs(loss_N - chance) < config.chance_share * chance)
        odd = finite & guarded & (forgot | (loss_N > self._usual_limit(health)))
        lasting = odd & (health.suspect_N + 1 >= config.patience)
        cause = np.select(
            [~guarded, ~finite, loss_N > limit, lasting & forgot, lasting],
            [Cause.HEALTHY, Cause.NONFINITE, Cause.DIVERGENCE, Cause.LOBOTOMY, Cause.DECLINE],
            default=Cause.HEALTHY,
        ).astype(np.int64)
        return Verdict(cause_N=cause, suspect_N=odd & (cause == Cause.HEALTHY), penalty=config.penalty)

    def after(self, health: Health, verdict: Verdict, loss_N: FloatArray) -> Health:
        config, falls, odd = self.config, verdict.rollback_N, verdict.suspect_N
        healthy = ~(falls | odd | health.retired_N)
        seen_NW = np.concatenate([loss_N[:, None], health.loss_NW[:, :-1]], axis=1)
        well_N = np.where(healthy, health.well_N + 1, 0)
        falls_N = np.where(well_N >= config.recovery, 0, health.falls_N + falls)
        return Health(
            loss_NW=np.where(healthy[:, None], seen_NW, health.loss_NW),
            best_loss_N=np.where(healthy, np.fmin(health.best_loss_N, loss_N), health.best_loss_N),
            suspect_N=np.where(odd, health.suspect_N + 1, 0),
            well_N=well_N,
            falls_N=falls_N,
            retired_N=health.retired_N | (falls_N >= config.max_falls),
        )

    def _usual_limit(self, health: Health) -> npt.NDArray[np.float64]:
        """Return the loss above which each host is suspect `[N]` [nats]; infinite with fewer than `FEWEST` healthy losses."""
        middle_N, spread_N = usual(health.loss_NW)
        known_N = (~np.isnan(health.loss_NW)).sum(axis=1)
        wide_N = np.maximum(spread_N, self.config.least_spread * self.chance_loss)
        limit_N = middle_N + self.config.deviations * np.maximum(wide_N, np.finfo(np.float64).tiny)  # inf * 0 is no limit
        return np.where(known_N >= FEWEST, limit_N, np.inf)
