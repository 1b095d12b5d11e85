"""What rewards remember of a host from step to step, and what became of a host since each of its seeds was planted.

All of it is per host. A rollback leaves a host with fossils alone, those of its snapshot, which may be older than the last step:
so memories compare what they know with the state that the next step finds.
"""

# N hosts, S slots

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from esper.lifecycle.stages import OCCUPIED
from esper.reward.signals import StepSignals
from esper.reward.terms import contributions

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float32]


class Memory:
    """Arrays over hosts that last from one step to the next, within an episode."""

    def __init__(self, *inner: "Memory") -> None:
        self.inner = inner
        self.kept: dict[str, FloatArray] = {}
        """What is remembered; empty before the first step."""

    def reset(self) -> None:
        """A new episode begins."""
        self.kept = {}
        for memory in self.inner:
            memory.reset()

    def state_dict(self) -> dict[str, Any]:
        """What a process that goes on within an episode needs: tensors alone."""
        kept = {name: torch.tensor(array) for name, array in self.kept.items()}
        return {"kept": kept, "inner": [memory.state_dict() for memory in self.inner]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from what `state_dict` gave."""
        self.kept = {name: tensor.numpy().copy() for name, tensor in state["kept"].items()}
        for memory, inner in zip(self.inner, state["inner"], strict=True):
            memory.load_state_dict(inner)

    def recall(self, name: str, shape: tuple[int, ...], value: float = 0.0) -> FloatArray:
        """What is remembered under this name; `value` everywhere at first."""
        return self.kept.get(name, np.full(shape, value, dtype=np.float32))


class Births(Memory):
    """How a host stood when each of its seeds was planted.

    A contribution says what would be lost without a seed now; that can be much although the host never gained by it, since a host
    learns to lean on its seeds. What the host gained since a seed came, less what its neighbours came to contribute in that time,
    is the other side of it. It says something for a single seed too, and helpful neighbours do not hide a seed that only binds.
    """

    def gain(self, signals: StepSignals) -> FloatArray:
        """Takes a step in; to be called once for each.

        Returns:
            `[N, S]` [pp], accuracy gained since a seed's birth beyond its neighbours' contributions: that of the seed and of what
            the host has learnt by itself. NaN where there is no seed, its birth was not seen, or the host was rolled back.
        """
        before, after, shape = signals.before, signals.after, signals.before.stage.shape
        then_NS, now_NS = contributions(before), contributions(after)
        there_NS = after.within(*OCCUPIED)
        born_NS = ~before.within(*OCCUPIED) & there_NS
        accuracy_NS = np.where(born_NS, signals.accuracy_before_N[:, None], self.recall("accuracy", shape, np.nan))
        others_NS = np.where(born_NS, then_NS.sum(axis=1, keepdims=True), self.recall("others", shape))
        neighbours_NS = now_NS.sum(axis=1, keepdims=True) - now_NS - others_NS
        gain_NS = signals.accuracy_N[:, None] - accuracy_NS - neighbours_NS
        self.kept = {"accuracy": accuracy_NS.astype(np.float32), "others": others_NS}
        return np.where(there_NS & signals.healthy_N1, gain_NS, np.nan).astype(np.float32)


def worth(signals: StepSignals, gain_NS: FloatArray) -> FloatArray:
    """`[N, S]` [pp], the smaller one of what a seed contributes and of what was gained since its birth; 0 where either is not
    known."""
    return np.where(signals.after.measured & np.isfinite(gain_NS), np.minimum(contributions(signals.after), gain_NS), 0.0).astype(
        np.float32
    )
