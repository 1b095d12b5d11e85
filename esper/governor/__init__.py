"""Judges the health of every host; its verdicts are data, and the environment acts on them."""

from esper.governor.watchdog import Cause, Governor, GovernorConfig, NoGovernorConfig, Verdict, WatchdogConfig

__all__ = ["Cause", "Governor", "GovernorConfig", "NoGovernorConfig", "Verdict", "WatchdogConfig"]
