"""Digits whose images or classes change during training: when to grow matters, and where depends on the change.

The gate of this world is not measured yet.
"""

from dataclasses import dataclass, field

from esper.task.digits import DigitsConfig
from esper.task.events import EventsConfig
from esper.task.instances import Instances


@dataclass(kw_only=True, slots=True)
class DigitsDriftConfig(DigitsConfig):
    """Digits that drift suddenly and for good in three quarters of the hosts, each in its own way and at its own time."""

    instances: Instances = Instances.healthy
    events: EventsConfig = field(
        default_factory=lambda: EventsConfig(kinds=["invert", "rotate", "mirror", "shift", "relabel"], count=[0, 1, 1, 1])
    )
    """What happens to the data of a host while it trains."""
