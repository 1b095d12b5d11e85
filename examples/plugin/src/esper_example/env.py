"""Config of an environment without host training; `esper_example.hints` has the environment."""

from dataclasses import dataclass

from esper.env.base import EnvConfig
from esper.env.sandbox import SandboxConfig
from esper.ranges import check_ranges
from esper_example.hints import Hints


@dataclass(kw_only=True, slots=True)
class HintsConfig(EnvConfig):
    """Germinating in the right slot of two pays a point, in the other it costs one; every step gives a new hint."""

    ignores = SandboxConfig.ignores  # keys without effect here, since no host trains
    has_hosts = False
    honesty: float = 0.8
    """Probability that a hint is true, in [0.5, 1]. Higher: easier; 0.5 carries no information."""

    def __post_init__(self):
        check_ranges("env", self, {"[0.5, 1]": ["honesty"]})

    def build(self, parts):
        return Hints(parts, self.honesty)
