"""An agent by an old rule of thumb: grow when the network no longer improves."""

# N hosts, S slots

from dataclasses import dataclass

import numpy as np

from esper.agent.base import AgentConfig
from esper.agent.reading import feature_scale, features, slot_features
from esper.agent.scripted.base import Scripted, compose, most_urgent
from esper.env.actions import Op


@dataclass(kw_only=True, slots=True)
class PlateauConfig(AgentConfig):
    """Germinates where the accuracy has stopped rising, advances and fossilizes as soon as it may, and prunes what does harm."""

    standalone = True  # it needs no training: evaluations can have it beside a policy
    needs_hosts = True
    rise: float = 1.0
    """Gain in accuracy over the last epoch below which the host counts as stalled [pp]. Higher: grows earlier."""

    def build(self, spec, *, seed, buffer=None):
        return Plateau(self, spec)


class Plateau(Scripted):
    def __init__(self, config, spec):
        super().__init__(spec)
        self.config = config

    def choose(self, observation, uniform_NH):
        now_N, before_N = (features(observation, self.spec, name) for name in ("accuracy", "accuracy_1_ago"))
        known_N = features(observation, self.spec, "accuracy_1_ago_known") > 0
        stalled_N = known_N & (feature_scale("accuracy") * (now_N - before_N) < self.config.rise)
        worth_NS = slot_features(observation, self.spec, "contribution")
        every_NS, same_NS = np.ones_like(worth_NS, dtype=bool), np.zeros_like(worth_NS)
        wanted = {
            Op.PRUNE: (worth_NS < 0, -worth_NS),
            Op.FOSSILIZE: (every_NS, worth_NS),
            Op.ADVANCE: (every_NS, same_NS),
            Op.GERMINATE: (every_NS & stalled_N[:, None], same_NS),
        }
        return compose(observation, self.spec, *most_urgent(observation, wanted))
