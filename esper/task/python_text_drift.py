"""Python source that gives way to other text while the hosts train.

The gate of this world is not measured yet.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from esper.task.events import EventsConfig
from esper.task.python_text import PythonTextConfig


@dataclass(kw_only=True, slots=True)
class PythonTextDriftConfig(PythonTextConfig):
    """Bytes of Python's standard library, which change to prose, or to another case, for good in three quarters of the hosts."""

    default_governor: ClassVar[str] = "tolerant"
    with_topics: ClassVar[bool] = False

    events: EventsConfig = field(default_factory=lambda: EventsConfig(kinds=["prose", "swapcase"], count=[0, 1, 1, 1]))
    """What happens to the data of a host while it trains."""
