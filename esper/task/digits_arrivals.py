"""Digits whose classes arrive in groups while the hosts train, with little replay of the earlier ones.

The gate of this world is not measured yet.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from esper.task.digits import DigitsConfig
from esper.task.events import EventsConfig
from esper.task.instances import Instances


@dataclass(kw_only=True, slots=True)
class DigitsArrivalsConfig(DigitsConfig):
    """Digits of which four, six or eight arrive in pairs; a tenth of the training samples of all earlier classes remains."""

    default_governor: ClassVar[str] = "tolerant"

    instances: Instances = Instances.healthy
    events: EventsConfig = field(
        default_factory=lambda: EventsConfig(kinds=["arrive"], count=[2, 3, 4], first=2, gap=2, replay=0.1)
    )
    """What happens to the data of a host while it trains."""
