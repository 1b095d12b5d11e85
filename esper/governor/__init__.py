"""Judges the health of every host; its verdicts are data, and the environment acts on them."""

from esper.governor.base import Cause, Governor, GovernorConfig, Verdict
from esper.governor.health import GROWTH, Health
from esper.governor.off import NoGovernorConfig
from esper.governor.watchdog import StrictWatchdogConfig, WatchdogConfig

__all__ = [
    "GROWTH",
    "Cause",
    "Governor",
    "GovernorConfig",
    "Health",
    "NoGovernorConfig",
    "StrictWatchdogConfig",
    "Verdict",
    "WatchdogConfig",
]
