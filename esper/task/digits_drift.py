"""Digits whose images or classes change during training: when to grow matters, and where depends on the change.

The gate of this world is not measured yet.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from esper.task.digits import DigitsConfig
from esper.task.events import EventsConfig
from esper.task.instances import Instances


@dataclass(kw_only=True, slots=True)
class DigitsDriftConfig(DigitsConfig):
    """Digits that drift suddenly and for good in three quarters of the hosts, each in its own way and at its own time. The hosts
    are trained and frozen before; only seeds learn, and what counts is the accuracy in every epoch."""

    default_host: ClassVar[str] = "cnn_deployed"
    default_governor: ClassVar[str] = "tolerant"
    default_reward: ClassVar[str] = "online"
    default_slots: ClassVar[str] = "in_service"

    pretrain: int = 20
    """Host epochs of training before the first step, without seeds and events; 0 for newborn hosts."""
    instances: Instances = Instances.healthy
    events: EventsConfig = field(
        default_factory=lambda: EventsConfig(kinds=["invert", "rotate", "mirror", "shift", "relabel"], count=[0, 1, 1, 1])
    )
    """What happens to the data of a host while it trains."""
