"""The watchdog: losses that are not finite, run away, fall back to chance, or stay above what is usual for the host."""

# N hosts, W window of losses

import math
from dataclasses import dataclass

import numpy as np

from esper.governor.base import Cause, Governor, GovernorConfig, Verdict
from esper.governor.health import BoolArray, FloatArray, Health, usual


@dataclass(kw_only=True, slots=True)
class WatchdogConfig(GovernorConfig):
    """Rolls a host back when its loss is not finite, has diverged, is back at chance, or stays suspect for too long."""

    chance_multiple: float = 3.0
    """A loss is diverging above this multiple of the loss of a random guess, above 1. Lower reacts sooner and errs more."""
    best_multiple: float = 3.0
    """... and above this multiple of the host's best loss, above 1."""
    deviations: float = 6.0
    """A loss is suspect this many spreads above the median of the host's last healthy losses, above 0. The spread is robust: 1.48
    median absolute deviations. Lower suspects more. A suspect host is not remembered, and its growth waits."""
    least_spread: float = 0.1
    """Least spread that counts, in losses of a random guess, at least 0. Higher forgives larger jumps of a steady host."""
    window: int = 20
    """Healthy losses that the median is taken of, 3 or more [host epochs]. More: steadier, and slower to follow the host."""
    patience: int = 3
    """Suspect epochs in a row after which the host is rolled back, 1 or more [host epochs]. More: it may still recover."""
    good_share: float = 0.6
    """A host has been good once its loss was below this share of a random guess's, in (0, 1). Higher guards sooner."""
    chance_share: float = 0.065
    """A good host whose loss is a random guess's give or take this share of it has forgotten all, in [0, 1); 0 is never."""
    penalty: float = 10.0
    """Points taken for a rollback [pp], at least 0. Higher makes a controller shy of what broke a host."""
    recovery: int = 3
    """Healthy epochs in a row that make good all rollbacks before them, 1 or more [host epochs]. More: hosts retire sooner."""
    max_falls: int = 3
    """Rollbacks without recovery after which a host retires, 1 or more: it stays as its last snapshot, untrained and untouched,
    and costs no further penalty, until the episode ends. More: it gets more chances, and the penalty as often."""

    def __post_init__(self) -> None:
        finite = math.isfinite(self.penalty) and self.penalty >= 0
        rules: dict[str, tuple[bool, str]] = {
            "chance_multiple": (self.chance_multiple > 1, "above 1"),
            "best_multiple": (self.best_multiple > 1, "above 1"),
            "deviations": (self.deviations > 0, "above 0"),
            "least_spread": (self.least_spread >= 0, "at least 0"),
            "window": (self.window >= 3, "3 or more"),
            "patience": (self.patience >= 1, "1 or more"),
            "good_share": (0 < self.good_share < 1, "in (0, 1)"),
            "chance_share": (0 <= self.chance_share < 1, "in [0, 1)"),
            "penalty": (finite, "finite and at least 0"),
            "recovery": (self.recovery >= 1, "1 or more"),
            "max_falls": (self.max_falls >= 1, "1 or more"),
        }
        for name, (fine, rule) in rules.items():
            if not fine:
                start = type(self).__dataclass_fields__[name].default
                raise ValueError(f"governor.{name} must be {rule}, got {getattr(self, name)}: {start} is a good start")
        if self.good_share >= 1 - self.chance_share:
            raise ValueError(
                f"governor.good_share={self.good_share} and governor.chance_share={self.chance_share} overlap, so that a host "
                "could be good and at chance at once: lower one of them"
            )

    def build(self, *, num_classes: int) -> "Watchdog":
        return Watchdog(self, num_classes)


@dataclass(kw_only=True, slots=True)
class StrictWatchdogConfig(WatchdogConfig):
    """The watchdog with tighter limits: it reacts sooner, and now and then rolls back a host that would have recovered."""

    chance_multiple: float = 1.5
    """A loss is diverging above this multiple of the loss of a random guess, above 1. Lower reacts sooner and errs more."""
    best_multiple: float = 2.0
    """... and above this multiple of the host's best loss, above 1."""
    deviations: float = 4.0
    """A loss is suspect this many spreads above the median of the host's last healthy losses, above 0. The spread is robust: 1.48
    median absolute deviations. Lower suspects more. A suspect host is not remembered, and its growth waits."""
    least_spread: float = 0.05
    """Least spread that counts, in losses of a random guess, at least 0. Higher forgives larger jumps of a steady host."""
    patience: int = 2
    """Suspect epochs in a row after which the host is rolled back, 1 or more [host epochs]. More: it may still recover."""
    good_share: float = 0.75
    """A host has been good once its loss was below this share of a random guess's, in (0, 1). Higher guards sooner."""
    chance_share: float = 0.1
    """A good host whose loss is a random guess's give or take this share of it has forgotten all, in [0, 1); 0 is never."""
    max_falls: int = 2
    """Rollbacks without recovery after which a host retires, 1 or more: it stays as its last snapshot, untrained and untouched,
    and costs no further penalty, until the episode ends. More: it gets more chances, and the penalty as often."""


class Watchdog(Governor):
    """See `WatchdogConfig`."""

    def __init__(self, config: WatchdogConfig, num_classes: int) -> None:
        self.config, self.window = config, config.window
        self.chance_loss = math.log(num_classes)

    def judge(self, health: Health, train_loss_N: FloatArray, loss_N: FloatArray) -> Verdict:
        config, chance = self.config, self.chance_loss
        guarded = ~health.retired_N
        finite = np.isfinite(train_loss_N) & np.isfinite(loss_N)
        limit = np.maximum(config.chance_multiple * chance, config.best_multiple * health.best_loss_N)
        odd = finite & guarded & (loss_N > self._usual_limit(health))
        forgot = (health.best_loss_N < config.good_share * chance) & (np.abs(loss_N - chance) < config.chance_share * chance)
        cause = np.select(
            [~guarded, ~finite, loss_N > limit, forgot, odd & (health.suspect_N + 1 >= config.patience)],
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

    def _usual_limit(self, health: Health) -> BoolArray:
        """Loss above which each host is suspect `[N]` [nats]; infinite while too few are known to say what is usual."""
        middle_N, spread_N = usual(health.loss_NW)
        known_N = (~np.isnan(health.loss_NW)).sum(axis=1)
        limit_N = middle_N + self.config.deviations * np.maximum(spread_N, self.config.least_spread * self.chance_loss)
        return np.where(known_N >= FEWEST, limit_N, np.inf)


FEWEST = 3
"""Healthy losses from which something can be said of what is usual."""
