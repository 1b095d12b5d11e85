"""Honest numbers: means with intervals."""

from esper.stats.intervals import Interval, mean_interval

__all__ = ["Interval", "mean_interval"]
