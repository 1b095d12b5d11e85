"""A sliding window over recent rollouts, each used in several updates."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from esper.buffer.base import BufferConfig
from esper.buffer.on_policy import RolloutBuffer
from esper.buffer.rollout import Rollout
from esper.env.spec import EnvSpec


@dataclass(kw_only=True, slots=True)
class WindowConfig(BufferConfig):
    """A buffer for the last few rollouts. Training hosts takes most of a run's time, so reusing rollouts is cheap."""

    reuses: ClassVar[bool] = True
    rollouts: int = 4
    """Number of rollouts in the window, at least 2, the newest included. Higher: more data per update, from older policies, and
    larger checkpoints."""

    def __post_init__(self) -> None:
        if self.rollouts < 2:
            raise ValueError(f"buffer.rollouts must be at least 2, got {self.rollouts}: buffer=rollout keeps only the newest")

    def build(self) -> "WindowBuffer":
        return WindowBuffer(self)


class WindowBuffer(RolloutBuffer):
    """See `WindowConfig`."""

    def __init__(self, config: WindowConfig) -> None:
        RolloutBuffer.__init__(self, config)
        self.size = config.rollouts
        self.earlier: list[Rollout] = []
        """Complete rollouts of earlier policies, the newest first."""

    def begin(self, spec: EnvSpec) -> None:
        """Move the current rollout into the window and start a new one."""
        if self.current is not None and self.current.full:
            self.earlier = [self.current, *self.earlier][: self.size - 1]
        self.current = Rollout(spec)

    def rollouts(self) -> Sequence[Rollout]:
        """Return all rollouts of the window, the newest first."""
        return [*RolloutBuffer.rollouts(self), *self.earlier]

    def state_dict(self) -> dict[str, Any]:
        """Return the complete rollouts that the next update uses again: all but the oldest of a full window."""
        return {"rollouts": [rollout.state_dict() for rollout in self.rollouts()[: self.size - 1]] if self.ready() else []}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the window."""
        restored = [Rollout.from_state(one) for one in state["rollouts"]]
        self.current, self.earlier = (restored[0], restored[1:]) if restored else (None, [])
