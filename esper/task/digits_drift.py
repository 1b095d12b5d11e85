"""Digits whose images or classes change during training: when to grow matters, and where depends on the change.

It passes the headroom test (docs/drift.md): over 12 runs of each, an oracle that knows the timetables reaches 72.8 points
of return, the best schedule 64.6, the best rule 64.3, a bandit 59.1; the oracle leads by 8.2 (7.0 to 9.5).
"""

from dataclasses import dataclass, field
from typing import ClassVar

from esper.task.digits import DigitsConfig
from esper.task.events import EventsConfig
from esper.task.instances import Instances


@dataclass(kw_only=True, slots=True)
class DigitsDriftConfig(DigitsConfig):
    """Digits whose images or classes drift up to three times during an episode, each time in another way. Some drifts are
    transient (inverted, rotated, blurred or noisy images), others permanent (relabelled classes, shifted images). The hosts are
    trained and frozen beforehand. Each may take up one seed, which is permanent, too, and what counts is the accuracy in every
    epoch: a seed spent on a transient drift is lost for a permanent one."""

    default_host: ClassVar[str] = "cnn_deployed"
    default_governor: ClassVar[str] = "tolerant"
    default_reward: ClassVar[str] = "online"
    default_slots: ClassVar[str] = "one_permanent"

    pretrain: int = 20
    instances: Instances = Instances.healthy
    events: EventsConfig = field(
        default_factory=lambda: EventsConfig(
            kinds=["invert", "rotate", "blur", "noise", "relabel", "shift"],
            passing=["invert", "rotate", "blur", "noise"],
            count=[1, 2, 3, 3],
            first=2,
            last=14,
            gap=2,
            lasts=[3, 4],
        )
    )
    """Events that happen to a host while it trains, such as drift of its data."""
