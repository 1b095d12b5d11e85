"""The on-policy buffer: one rollout, learned from once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from esper.buffer.base import BufferConfig, Forfeit
from esper.buffer.rollout import Rollout
from esper.buffer.transition import Transition
from esper.env.spec import EnvSpec
from esper.reward.table import SHAPING


@dataclass(kw_only=True, slots=True)
class RolloutConfig(BufferConfig):
    """A buffer for the newest rollout only: the policy learns from each rollout in one update."""

    def build(self) -> "RolloutBuffer":
        return RolloutBuffer(self)


class RolloutBuffer:
    """See `RolloutConfig`."""

    def __init__(self, config: BufferConfig) -> None:
        self.config = config
        self.current: Rollout | None = None

    def begin(self, spec: EnvSpec) -> None:
        """Start a new rollout."""
        self.current = Rollout(spec)

    def add(self, transition: Transition) -> None:
        """Append one step of every host."""
        assert self.current is not None, "call begin() first"
        self.current.add(
            transition.observation,
            transition.decision,
            reward=transition.reward_N,
            terminated=transition.terminated_N,
            is_init=transition.is_init_N,
            shaping=transition.paid.get(SHAPING),
        )
        if self.config.forfeit is Forfeit.prefix:
            self.current.forfeit(transition.rolled_back_N)

    def ready(self) -> bool:
        """Return True if the rollout is complete."""
        return self.current is not None and self.current.full

    def rollouts(self) -> Sequence[Rollout]:
        """Return the rollout."""
        assert self.current is not None, "call begin() first"
        return [self.current]

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state: a rollout is discarded after its update."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing, since the state is empty."""
