"""Closed-loop incubation: a second pass in which a seed behind the host learns from its own effect.

A straight-through seed gets the gradient of a host that does not contain it, so it gets no signal to stop growing. In a closed
loop the main pass omits the seeds behind the host, and each member in which one learns runs the rest of its network again, from
the first such slot on:

    main           h_0 = x,  h_{s+1} = segment_{s+1}(slot_s(h_s)),  slot_s(h) = h where the seed is behind
    closed loop    k_f = sg(h_f),  k_{s+1} = segment'_{s+1}(slot'_s(k_s))  f: the member's first such slot

where sg stops the gradient, slot'_s blends in a seed behind at alpha 1 and any other seed at its own alpha, and segment' is the
host's segment in evaluation mode (running statistics of batch norm, neither batch statistics nor dropout) with parameters sg(w).
With L the loss of the same batch, the host learns from L(main) alone, and a seed behind with parameters v from

    dL(closed loop)/dv,

the true derivative through all that comes after it, other seeds behind included. No gradient of this pass reaches the host or
another seed, and it writes only the gradients of the seeds behind.
"""

# M members, L members in the pass, S slots, B batch

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from esper.fusion.fuse import Fleet
from esper.fusion.layout import join_members, take_members
from esper.growth.active import ActiveSeeds, FindBank, active_seeds
from esper.growth.loss import LastSegment
from esper.growth.mode import set_evaluation
from esper.growth.objective import CLASSIFICATION, Objective
from esper.hosts.base import segments_of
from esper.lifecycle.roles import Roles
from esper.lifecycle.stages import BoolArray


@dataclass(frozen=True, kw_only=True, slots=True)
class ClosedLoopSlot:
    """One slot of the pass."""

    joins: Tensor | None
    """Members whose pass starts here; None where none does."""
    hosts_L: Tensor
    """Members in the pass from here on, in the order of its features."""
    seeds: ActiveSeeds | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ClosedLoopPass:
    """The plan of a closed-loop pass."""

    first: int
    """First slot."""
    slots: tuple[ClosedLoopSlot, ...]
    """The slots from there on."""
    members_L: Tensor
    """Members that learn from the pass."""
    places_L: Tensor
    """Their index in the features of the last slot."""

    def start(self, slot: int, x: Tensor, members: int, starts: dict[int, Tensor]) -> None:
        """Store copies of the main pass's features in `starts`, for the members whose pass starts at this slot."""
        index = slot - self.first
        joins = self.slots[index].joins if 0 <= index < len(self.slots) else None
        if joins is not None:
            starts[slot] = take_members(x.detach(), joins, members)

    def losses(
        self,
        host: Fleet,
        starts: dict[int, Tensor],
        targets_MB: Tensor,
        count_M: Tensor | None = None,
        objective: Objective = CLASSIFICATION,
    ) -> Tensor:
        """Return the mean loss of the members that learn `[L]` in the closed-loop pass.

        Args:
            host: the hosts; their mode is restored afterwards, also after an error.
            starts: the features that `start` stored.
            targets_MB: see `GrowingNetwork.backward`.
            count_M: see `LastSegment.losses`, for all members.
            objective: what the members learn.
        """
        training = host.module.training
        set_evaluation(host.module)
        try:
            last = self._last_segment(host, starts, objective)
            return last.losses(targets_MB[self.members_L], self.places_L, None if count_M is None else count_M[self.members_L])
        finally:  # capturing a CUDA graph may fail in here, and the training step then goes on without one
            if training:
                host.module.train()

    def _last_segment(self, host: Fleet, starts: dict[int, Tensor], objective: Objective) -> LastSegment:
        """Compute the pass up to the last segment of the host."""
        x, segments = None, list[nn.Module]()
        for slot, here in enumerate(self.slots, self.first):
            if here.joins is not None:
                x = starts[slot] if x is None else join_members([x, starts[slot]])
                segments = segments_of(host.bind_some(here.hosts_L))
            assert x is not None
            if here.seeds is not None:
                x = here.seeds.blended(x, len(here.hosts_L))
            if here is not self.slots[-1]:
                x = segments[slot + 1](x)
        assert x is not None
        return LastSegment(segments[-1], x, len(self.slots[-1].hosts_L), objective)


def closed_loop_pass(find: list[FindBank], roles: Roles, device: torch.device) -> ClosedLoopPass | None:
    """Plan the closed-loop pass of these roles; None where no seed that learns is behind.

    A single member of several is computed twice, as in `SeedBank.delta` and for the same reason.

    Args:
        find: returns the banks of each slot.
        roles: roles of all members.
        device: device of the tensors.
    """
    behind_MS: BoolArray = roles.behind & (roles.blueprint >= 0)
    learner_MS = behind_MS & roles.learns  # a gradient of any other would be left for the next seed of its bank
    if not learner_MS.any():
        return None
    members, num_slots = behind_MS.shape
    first_M = np.where(learner_MS.any(axis=1), learner_MS.argmax(axis=1), num_slots)
    alpha_MS = np.where(behind_MS, np.float32(1.0), roles.alpha)
    inside = replace(roles, alpha=alpha_MS, open=np.ones_like(behind_MS), learns=learner_MS)
    order: list[int] = []
    place_M = np.zeros(members, dtype=np.int64)
    slots: list[ClosedLoopSlot] = []
    for slot in range(int(first_M.min()), num_slots):
        joining = [int(member) for member in np.flatnonzero(first_M == slot)]
        place_M[joining] = np.arange(len(order), len(order) + len(joining))
        if not order and len(joining) == 1 < members:
            joining *= 2
        order += joining
        where_M = (first_M <= slot) & (roles.blueprint[:, slot] >= 0)
        slots.append(
            ClosedLoopSlot(
                joins=torch.tensor(joining, device=device) if joining else None,
                hosts_L=torch.tensor(order, device=device),
                seeds=active_seeds(find[slot], inside, slot, where_M, device, place_M),
            )
        )
    learners = np.flatnonzero(first_M < num_slots)
    return ClosedLoopPass(
        first=int(first_M.min()),
        slots=tuple(slots),
        members_L=torch.from_numpy(learners).to(device),
        places_L=torch.from_numpy(place_M[learners]).to(device),
    )
