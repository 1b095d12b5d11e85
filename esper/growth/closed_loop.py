"""Closed-loop incubation: a second pass in which a seed behind the host feels its own effect.

A straight-through seed gets the gradient of a host that does not contain it, so nothing tells it when to stop growing. In a
closed loop the main pass leaves the seeds behind out altogether, and each member that has one runs the rest of its network
again, from the first such slot on:

    main      h_0 = x,  h_{s+1} = segment_{s+1}(slot_s(h_s)),  slot_s(h) = h where the seed is behind
    shadow    k_f = sg(h_f),  k_{s+1} = segment'_{s+1}(slot'_s(k_s))        f: the member's first slot with a seed behind

where sg stops the gradient, slot'_s has a seed behind fully in (alpha 1) and any other seed at its own alpha, and segment' is the
host's segment in evaluation mode (running statistics of batch norm, neither batch statistics nor dropout) with parameters sg(w).
With L the loss of the same batch, the host learns from L(main) alone, and a seed behind with parameters v from

    dL(shadow)/dv,

the true derivative through all that comes after it, other seeds behind included. No gradient of the shadow reaches the host or
another seed, and nothing is written but the gradients of the seeds behind.
"""

# M members, L members in the shadow, S slots, B batch

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from esper.fusion.fuse import Fleet
from esper.fusion.layout import by_member, join_members, take_members
from esper.growth.active import ActiveSeeds, BoolArray, FindBank, live_seeds
from esper.lifecycle.roles import Roles


@dataclass(frozen=True, kw_only=True, slots=True)
class ClosedLoopSlot:
    """One slot of the shadow pass."""

    joins: Tensor | None
    """Members whose shadow starts here; None where none does."""
    hosts_L: Tensor
    """Members in the shadow from here on, in the order of its features."""
    seeds: ActiveSeeds | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Shadow:
    """The plan of a shadow pass."""

    first: int
    """The slot where it starts."""
    stages: tuple[ClosedLoopSlot, ...]
    """Of the slots from there on."""
    members_L: Tensor
    """The members that learn from it."""
    places_L: Tensor
    """Where they lie in the features of the last stage."""

    def start(self, slot: int, x: Tensor, members: int, starts: dict[int, Tensor]) -> None:
        """Lays copies of the main pass's features of the members whose shadow starts at this slot into `starts`."""
        stage = slot - self.first
        joins = self.stages[stage].joins if 0 <= stage < len(self.stages) else None
        if joins is not None:
            starts[slot] = take_members(x.detach(), joins, members)

    def logits(self, host: Fleet, starts: dict[int, Tensor]) -> Tensor:
        """Outputs of the host `[L, B, K]` in the shadow pass.

        Args:
            host: the hosts; their mode is as before afterwards.
            starts: the features that `start` laid there.
        """
        training, x, segments = host.module.training, None, list[nn.Module]()
        host.module.eval()
        for slot, stage in enumerate(self.stages, self.first):
            if stage.joins is not None:
                x = starts[slot] if x is None else join_members([x, starts[slot]])
                segments = list(host.bind_some(stage.hosts_L).get_submodule("segments").children())
            assert x is not None
            if stage.seeds is not None:
                x = stage.seeds.blended(x, len(stage.hosts_L))
            x = segments[slot + 1](x)
        host.module.train(training)
        assert x is not None
        return by_member(x, len(self.stages[-1].hosts_L)).index_select(0, self.places_L)


def shadow_of(find: list[FindBank], roles: Roles, device: torch.device) -> Shadow | None:
    """The shadow pass of these roles; None where no seed is behind.

    A member alone beside others is computed twice, as in `SeedBank.delta` and for the same reason.

    Args:
        find: gives the banks of each slot.
        roles: of all members.
        device: of the tensors.
    """
    behind_MS: BoolArray = roles.behind & (roles.blueprint >= 0)
    if not behind_MS.any():
        return None
    members, num_slots = behind_MS.shape
    first_M = np.where(behind_MS.any(axis=1), behind_MS.argmax(axis=1), num_slots)
    order: list[int] = []
    place_M = np.zeros(members, dtype=np.int64)
    stages: list[ClosedLoopSlot] = []
    for slot in range(int(first_M.min()), num_slots):
        joining = [int(member) for member in np.flatnonzero(first_M == slot)]
        place_M[joining] = np.arange(len(order), len(order) + len(joining))
        if not order and len(joining) == 1 < members:
            joining *= 2
        order += joining
        behind_M = behind_MS[:, slot]
        alpha_M = np.where(behind_M, np.float32(1.0), roles.alpha[:, slot]).astype(np.float32)
        stages.append(
            ClosedLoopSlot(
                joins=torch.tensor(joining, device=device) if joining else None,
                hosts_L=torch.tensor(order, device=device),
                seeds=live_seeds(
                    find[slot],
                    roles,
                    slot,
                    (first_M <= slot) & (roles.blueprint[:, slot] >= 0),
                    alpha_M=alpha_M,
                    pull_M=alpha_M,
                    learns_M=behind_M,
                    taught_M=behind_M,
                    place_M=place_M,
                    device=device,
                ),
            )
        )
    learners = np.flatnonzero(first_M < num_slots)
    return Shadow(
        first=int(first_M.min()),
        stages=tuple(stages),
        members_L=torch.from_numpy(learners).to(device),
        places_L=torch.from_numpy(place_M[learners]).to(device),
    )
