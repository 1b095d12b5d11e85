"""Python source that gives way to other text while the hosts are in service.

In a probe of 24 hosts growth paid after every event, most after relabel, but `lora` in r1c0 was within 0.1 of the best choice for
each kind: what matters here is when to grow, hardly where. It fails the headroom test (docs/drift.md): an oracle leads the
best rule by 0.9 points of return only (experiments/2026-11-26_text_gate).
"""

from dataclasses import dataclass, field
from typing import ClassVar

from esper.task.events import EventsConfig
from esper.task.instances import Instances
from esper.task.python_text import PythonTextConfig


@dataclass(kw_only=True, slots=True)
class PythonTextDriftConfig(PythonTextConfig):
    """Bytes of Python's standard library, which change for good in three quarters of the hosts: to prose, to another case, or to
    other targets. The hosts are trained on the library and frozen beforehand; only seeds learn, and what counts is the accuracy
    in every epoch."""

    default_host: ClassVar[str] = "transformer_deployed"
    default_governor: ClassVar[str] = "tolerant"
    default_reward: ClassVar[str] = "online"
    default_slots: ClassVar[str] = "in_service"
    with_topics: ClassVar[bool] = False

    pretrain: int = 80
    batch_size: int = 8
    epoch_samples: int = 128
    valid_samples: int = 48
    instances: Instances = Instances.healthy
    events: EventsConfig = field(default_factory=lambda: EventsConfig(kinds=["prose", "swapcase", "relabel"], count=[0, 1, 1, 1]))
    """Events that happen to a host while it trains, such as drift of its data."""
