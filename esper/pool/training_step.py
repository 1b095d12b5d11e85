"""The training step of a shard: gradients of a batch, and an update of all that learns; on a GPU as a CUDA graph.

A step of small hosts is hundreds of kernels, each of which takes less time to compute than to launch: on an H200, 64 hosts of
`digits` keep the GPU busy for a seventh of the time. A CUDA graph launches all of them at once. It holds the addresses of what it
computes with, so it is captured again when the roles of the seeds change; parameters, optimiser states and running statistics
change in place, and batches and learning rates are copied to where the graph reads them.
"""

# M members, B batch

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from warnings import warn

import torch
from torch import Tensor

from esper.growth.network import GrowingNetwork
from esper.growth.objective import Objective
from esper.memory import memory_shortage
from esper.notices import UserNotice
from esper.optimisers.base import StepSettings
from esper.pool.lane import Lane
from esper.seeds.slot_gradients import GradientHooks

Parts = Sequence[tuple[Tensor, Tensor]]
"""Inputs and targets of the micro-batches of a batch."""
WORTHWHILE = 4
"""Batches that must be left in an epoch for a capture, which takes about as long as a step and a half."""


class TrainingStep:
    """The training step of a network."""

    def __init__(self, network: GrowingNetwork, objective: Objective, lane: Lane) -> None:
        self._network, self._objective, self._lane = network, objective, lane
        self._losses_M = torch.zeros(network.members, device=network.device)
        self._replay: Callable[[], None] | None = None
        self._parts: Parts = ()
        self._rates = tuple(torch.empty(network.members, 1, device=network.device) for _ in range(2))
        self._warmed: int | None = None
        """Thread that took a step since the roles last changed. In another one, cuBLAS must be initialised before a capture."""

    def begin(self) -> Tensor:
        """Begin an epoch: return the sums of losses `[M]`, to which each step adds, set to zero."""
        return self._losses_M.zero_()

    def forget(self) -> None:
        """Drop the graph: the roles of seeds change."""
        self._replay, self._warmed = None, None

    def take(self, parts: Parts, progress: float, hooks: GradientHooks | None = None, *, left: int = 0) -> None:
        """Take a step on a batch.

        Args:
            parts: its micro-batches: of all members in the last batch of an epoch, otherwise only of the members
                that learn.
            progress: share of the episode that has passed.
            hooks: see `GrowingNetwork.backward`; only in the last batch.
            left: batches that follow in this epoch; 0 in the last one.
        """
        self._lane.give_way()
        settings = self._network.begin_step(progress)
        if left and self._can_replay(parts, settings, left):
            assert self._replay is not None
            self._set(parts, settings)
            self._replay()
            return
        self._work(parts, *settings, hooks, last=not left)
        self._warmed = threading.get_ident()

    def _work(
        self, parts: Parts, host: StepSettings, seed: StepSettings, hooks: GradientHooks | None = None, *, last: bool = False
    ) -> None:
        """Compute the gradients of a batch, one micro-batch after the other, add the losses, and update."""
        network = self._network
        targets_M = None if len(parts) == 1 else self._objective.num_targets(torch.cat([y_MB for _, y_MB in parts], 1))
        losses: list[Tensor] = []
        for place, (x, y_MB) in enumerate(parts):
            first = hooks if place == 0 else None  # same as for the whole batch, unless a slot needs more samples than a part has
            losses.append(network.backward(x, y_MB, first, targets_M) if last else network.backward_learning(x, y_MB, targets_M))
        self._losses_M += sum(losses[1:], losses[0])
        network.update(host, seed)

    # ---- CUDA graphs

    def _can_replay(self, parts: Parts, settings: tuple[StepSettings, StepSettings], left: int) -> bool:
        """Return whether there is a graph for a batch; capture one if there is none and it pays."""
        if [[one.shape for one in part] for part in parts] != [[one.shape for one in part] for part in self._parts]:
            self._replay = None
        warm = self._warmed == threading.get_ident()
        if self._replay is None and self._lane.graphs and warm and left >= WORTHWHILE:
            self._parts = [(x.clone(), y_MB.clone()) for x, y_MB in parts]
            host, seed = (replace(one, learning_rate=rate) for one, rate in zip(settings, self._rates, strict=True))
            try:
                self._replay = self._lane.captured(lambda: self._work(self._parts, host, seed))
            except RuntimeError as error:
                self._refuse(error)
        return self._replay is not None

    def _set(self, parts: Parts, settings: tuple[StepSettings, StepSettings]) -> None:
        """Copy a batch and the learning rates to where the graph reads them."""
        for kept, new in zip(self._parts, parts, strict=True):
            for here, there in zip(kept, new, strict=True):
                here.copy_(there)
        for rate_M1, one in zip(self._rates, settings, strict=True):
            if isinstance(one.learning_rate, Tensor):
                rate_M1.copy_(one.learning_rate)
            else:
                rate_M1.fill_(one.learning_rate)

    def _refuse(self, error: RuntimeError) -> None:
        """Disable graphs for the rest of the run, and say why: after a failed capture, torch may refuse others."""
        self._lane.disable_graphs()
        self._parts = ()
        self._network.drop_gradients()
        reason = memory_shortage(error) or str(error).strip().partition("\n")[0]
        warn(
            f"the training step cannot be captured as a CUDA graph ({reason}): it runs more slowly without one; "
            "devices.<name>.graphs=false silences this warning",
            UserNotice,
            stacklevel=2,
        )
