"""A buffer that learns from the past: the newest rollout, and the best of all earlier ones."""

from dataclasses import dataclass

from esper.buffer.base import BufferConfig
from esper.buffer.on_policy import RolloutBuffer
from esper.buffer.rollout import Rollout


@dataclass(kw_only=True, slots=True)
class BestConfig(BufferConfig):
    """A buffer for the newest rollout and the earlier one with the highest mean return."""

    reuses = True  # an agent must correct for the rollout of an earlier policy

    def build(self):
        return Best(self)


class Best(RolloutBuffer):
    def __init__(self, config):
        super().__init__(config)
        self.best = None

    def contest(self):
        """Return the better of the rollout that was just learned from and the best of those before it; None at first."""
        complete = [self.current] if self.ready() else []
        return max([*complete, *filter(None, [self.best])], key=lambda one: one.reward_TN.sum().item(), default=None)

    def begin(self, spec):
        self.best = self.contest()
        super().begin(spec)

    def rollouts(self):
        return [*super().rollouts(), *filter(None, [self.best])]

    def state_dict(self):
        return {"best": best.state_dict() if (best := self.contest()) is not None else None}

    def load_state_dict(self, state):
        self.best = Rollout.from_state(state["best"]) if state["best"] is not None else None
