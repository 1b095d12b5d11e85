"""What was lived, kept for learning."""

from esper.buffer.rollout import Rollout, Seen

__all__ = ["Rollout", "Seen"]
