"""Honest numbers: means with intervals, and comparisons of arms."""

from esper.stats.intervals import Interval, mean_interval

__all__ = ["Interval", "mean_interval"]
