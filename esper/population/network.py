"""Hosts with slots and seeds, as one program: forward, counterfactual forward, isolation, blending.

Which member holds which seed at which alpha is data (`SlotPlan`), given anew each epoch; the parameters live in the host's
fleet and in the banks.
"""

# M members, L live members of a bank, S slots, B batch, C channels of one member, V counterfactual variants

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from esper.population.alpha import blend, isolate
from esper.population.bank import MemberSGD, SeedBank, SGDConfig
from esper.population.blueprints import BlueprintConfig
from esper.population.fusion import Fleet
from esper.population.hosts import slot_specs
from esper.population.layout import by_member, join_blocks, join_members, split_members, take_block, take_members
from esper.population.roles import Roles


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveSeeds:
    """The seeds of one slot that take part in a forward, bank by bank."""

    banks: tuple[tuple[SeedBank, Tensor], ...]
    """The banks, each with its members."""
    live_L: Tensor
    """The members of all banks, one bank after another `[L]`."""
    alpha_L: Tensor
    """Blend weight of each."""
    pull_L: Tensor
    """Weight of each seed's gradient: alpha, or 1 while it trains behind the host."""
    open_L: Tensor | None
    """May each seed's gradient reach the host? None where all may."""
    learns_M1: Tensor
    """bool `[M, 1]`: rows that the optimisers move."""

    def delta(self, part: Tensor) -> Tensor:
        """Outputs of the branches `[B, L*C, ...]` for the features of the live members."""
        pieces = split_members(part, [len(members) for _, members in self.banks])
        return join_members([bank.delta(members, piece) for (bank, members), piece in zip(self.banks, pieces, strict=True)])


class GrowingNetwork:
    """M hosts of one architecture, their seed banks, and their optimisers."""

    def __init__(
        self,
        hosts: Sequence[nn.Module],
        blueprints: Sequence[BlueprintConfig],
        *,
        host_optimiser: SGDConfig,
        seed_optimiser: SGDConfig,
        device: torch.device | str = "cpu",
    ) -> None:
        self.device = torch.device(device)
        self.members = len(hosts)
        self.slots = slot_specs(hosts[0])
        self.blueprints = tuple(blueprints)
        self.host = Fleet(hosts, device)
        self.optimiser = MemberSGD(self.host.flat, host_optimiser)
        self._seed_optimiser = seed_optimiser
        self.banks: dict[tuple[int, int], SeedBank] = {}
        self.plan: list[LiveSeeds | None] = [None for _ in self.slots]
        self._kept: dict[str, Tensor] = {}

    def bank(self, slot: int, blueprint: int) -> SeedBank:
        """The bank of a slot and a blueprint, made when it is first needed."""
        if (slot, blueprint) not in self.banks:
            made = SeedBank(
                self.blueprints[blueprint], self.slots[slot].channels, self.members, self._seed_optimiser, self.device
            )
            self.banks[slot, blueprint] = made
        return self.banks[slot, blueprint]

    def arrange(self, roles: Roles) -> None:
        """Says which seeds take part until the next call; `roles` has a row for each member."""
        pull_MS = np.where(roles.behind, np.float32(1.0), roles.alpha).astype(np.float32)
        for slot in range(len(self.slots)):
            blueprint_M = roles.blueprint[:, slot]
            kinds = [int(kind) for kind in np.unique(blueprint_M) if kind >= 0]
            members = [np.flatnonzero(blueprint_M == kind) for kind in kinds]
            if not kinds:
                self.plan[slot] = None
                continue
            live = np.concatenate(members)
            all_open = bool(roles.open[live, slot].all())
            self.plan[slot] = LiveSeeds(
                banks=tuple((self.bank(slot, kind), self._tensor(rows)) for kind, rows in zip(kinds, members, strict=True)),
                live_L=self._tensor(live),
                alpha_L=self._tensor(roles.alpha[live, slot]),
                pull_L=self._tensor(pull_MS[live, slot]),
                open_L=None if all_open else self._tensor(roles.open[live, slot]),
                learns_M1=self._tensor((roles.learns[:, slot] & (blueprint_M >= 0))[:, None]),
            )

    def train(self, mode: bool = True) -> None:
        self.host.module.train(mode)

    def forward(self, x: Tensor, probes: list[Tensor] | None = None) -> Tensor:
        """Logits `[M, B, classes]` of a batch `[B, M*C, H, W]`.

        Args:
            probes: if given, the output of each slot is appended, with its gradient kept, to measure growth potential.
        """
        segments = self._segments(self.host.bind())
        for segment, seeds in zip(segments, [*self.plan, None], strict=True):
            x = segment(x)
            if seeds is not None:
                part = take_members(x, seeds.live_L, self.members)
                delta = seeds.delta(part if seeds.open_L is None else isolate(part, seeds.open_L))
                x = blend(x, delta, seeds.alpha_L, seeds.pull_L, seeds.live_L, self.members)
            if probes is not None and segment is not segments[-1]:
                x.retain_grad()
                probes.append(x)
        return by_member(x, self.members)

    @torch.no_grad()
    def variants(self, x: Tensor, alpha_VMS: npt.NDArray[np.float32]) -> Tensor:
        """Logits `[V, M, B, classes]` of a batch under V settings of all alphas, sharing what they share.

        Settings that agree in all slots up to some depth are computed once up to there: the batch fans out where they part. A
        seed's branch is computed once for each distinct input, whatever the number of alphas it is blended with.

        Args:
            x: batch `[B, M*C, H, W]`.
            alpha_VMS: blend weights of each variant; slots without a seed are ignored.
        """
        segments, blocks = self._segments(self.host.bind()), 1
        block_V = [0] * len(alpha_VMS)  # which block of rows each variant reads
        for slot, (segment, seeds) in enumerate(zip(segments, [*self.plan, None], strict=True)):
            x = segment(x)
            if seeds is None:
                continue
            children, parents = _fan_out(block_V, alpha_VMS[:, :, slot])
            delta = seeds.delta(take_members(x, seeds.live_L, self.members))
            live, out = seeds.live_L.cpu().numpy(), list[Tensor]()
            for child, parent in enumerate(parents):
                alpha_L = self._tensor(alpha_VMS[children.index(child), live, slot])
                h, d = take_block(x, parent, blocks, self.members), take_block(delta, parent, blocks, len(live))
                out.append(blend(h, d, alpha_L, alpha_L, seeds.live_L, self.members))
            x, block_V, blocks = join_blocks(out, self.members), children, len(out)
        logits_VM = by_member(x, self.members).unflatten(1, (blocks, -1)).transpose(0, 1)
        return logits_VM[block_V]

    def step(self) -> None:
        """Every member's host and every learning seed takes one optimiser step, each within its own clipping budget."""
        self.optimiser.step()
        for seeds in self.plan:
            for bank, _ in () if seeds is None else seeds.banks:
                bank.optimiser.step(seeds.learns_M1 if seeds else None)

    def rows(self) -> dict[str, Tensor]:
        """Everything that belongs to a member, each tensor with a leading member axis; a member is a set of rows."""
        rows = {"host": self.host.flat.detach(), "host_momentum": self.optimiser.momentum}
        rows.update({f"buffer/{name}": buffer for name, buffer in self.host.buffers.items()})
        for (slot, blueprint), bank in self.banks.items():
            rows[f"seed/{slot}/{blueprint}"] = bank.fleet.flat.detach()
            rows[f"seed_momentum/{slot}/{blueprint}"] = bank.optimiser.momentum
        return rows

    def remember(self, healthy_M: Tensor) -> None:
        """Copies the rows of the marked members into their snapshots; a new bank's snapshot is empty before its first."""
        for name, row in self.rows().items():
            kept = self._kept.setdefault(name, torch.zeros_like(row))
            kept.copy_(torch.where(healthy_M.view(-1, *[1] * (row.dim() - 1)), row, kept))

    def restore(self, sick_M: Tensor) -> None:
        """Brings the marked members back to their snapshots, exactly; other members keep their bits."""
        for name, row in self.rows().items():
            kept = self._kept.get(name, torch.zeros_like(row))
            row.copy_(torch.where(sick_M.view(-1, *[1] * (row.dim() - 1)), kept, row))

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _segments(self, module: nn.Module) -> list[nn.Module]:
        return list(module.get_submodule("segments").children())


def _fan_out(block_V: list[int], alpha_VM: npt.NDArray[np.float32]) -> tuple[list[int], list[int]]:
    """New block of each variant after a slot, and the parent of each new block: variants of one parent and setting stay one."""
    known: dict[tuple[int, bytes], int] = {}
    for parent, alpha_M in zip(block_V, alpha_VM, strict=True):
        known.setdefault((parent, alpha_M.tobytes()), len(known))
    children = [known[parent, alpha_M.tobytes()] for parent, alpha_M in zip(block_V, alpha_VM, strict=True)]
    return children, [parent for parent, _ in known]


def growth_potential(before: Tensor, grad: Tensor, members: int) -> Tensor:
    """How much a newborn seed could do at a slot: the norm of the first gradient of a 3x3 convolution that is born as zero.

    At y = h + W * h with W = 0 the gradient is dL/dW = sum over samples and places of dL/dy(p) h(p + d), and the steepest first
    decrease of the loss per unit of weight is its norm (GradMax, Evci et al. 2022). It needs h and dL/dy only, which training
    has at hand.

    Args:
        before: features h of the slot `[B, M*C, H, W]`.
        grad: dL/dy there, the same shape; L is the sum over members of each member's mean loss.

    Returns:
        The norm for each member `[M]` [nats per unit of weight].
    """
    channels = before.shape[1] // members
    shape = (members * channels, channels, 3, 3)
    weight = conv2d_weight(before, shape, grad, padding=1, groups=members)  # pyright: ignore[reportArgumentType]
    return weight.reshape(members, -1).norm(dim=1)


def member_losses(logits_MBK: Tensor, targets_MB: Tensor) -> Tensor:
    """Mean cross entropy of each member `[M]` [nats]."""
    loss = F.cross_entropy(logits_MBK.flatten(0, 1), targets_MB.flatten(), reduction="none")
    return loss.view(targets_MB.shape).mean(1)
