"""The interface of a buffer, and its config."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from esper.buffer.rollout import Rollout
from esper.buffer.transition import Transition
from esper.env.spec import EnvSpec
from esper.options import Option


class Forfeit(StrEnum):
    """Rewards that a host forfeits after a rollback, in addition to the penalty."""

    none = "none"
    """No rewards: earlier rewards were measured before the fault and remain valid."""
    prefix = "prefix"
    """All earlier rewards of the sub-episode, since the rollback may have removed the seeds that earned them."""


class Buffer(Protocol):
    """Stores transitions of N hosts and hands out rollouts to learn from."""

    def begin(self, spec: EnvSpec) -> None:
        """Start a new rollout of an environment."""
        ...

    def add(self, transition: Transition) -> None:
        """Append one step of every host to the rollout."""
        ...

    def ready(self) -> bool:
        """Return True if the newest rollout is complete."""
        ...

    def rollouts(self) -> Sequence[Rollout]:
        """Return the rollouts to learn from, the newest first.

        Only the newest was collected by the current policy.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint between two updates."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        ...


@dataclass(kw_only=True, slots=True)
class BufferConfig(Option):
    """Base of buffer configs."""

    reuses: ClassVar[bool] = False
    """True if `Buffer.rollouts` also returns rollouts of earlier policies, which a learner must correct for."""
    forfeit: Forfeit = Forfeit.none
    """Rewards that a host forfeits after a rollback, in addition to the penalty: none, or prefix (all earlier
    ones but shaping, which the last step takes back anyway)."""

    def build(self) -> Buffer:
        """Return the buffer."""
        raise TypeError(f"{type(self).__name__} does not define build()")
