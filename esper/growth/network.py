"""Hosts with slots and seeds, as one program: forward, backward, counterfactual forward, optimiser step, snapshots.

Which member holds which seed at which alpha is data (`Roles`), set again each epoch; the parameters live in the host's fleet and
in the banks. Seeds in training are behind the host: it computes the same as without them. `incubation` says how they learn:

    straight_through   y = h + (d - sg(d)),  d = delta(sg(h)): the output is h, and the seed gets the gradient dL/dy of a host
                       that does not contain it (see `blend.blend`)
    closed_loop        y = h, and the seed learns in a second pass that includes its effect (see `closed_loop`)
    none               no seed is ever behind: alpha is at its target from the first batch on

where sg stops the gradient. While a seed is behind, the host's own gradients are those of a host without it, bit for bit.

Hosts and seeds have a clipping budget each. A fossil that learns does so with the settings for hosts. Forward passes are computed
in the precision of the network; gradients of weights are in single precision, and in fp16 each member has a loss scale.
"""

# M members, L members with a seed in a bank, S slots, B batch, K classes, V counterfactual variants

import copy
from collections.abc import Hashable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from esper.fusion.device import on_device
from esper.fusion.folding import folded
from esper.fusion.fuse import Fleet
from esper.fusion.layout import members_first
from esper.fusion.precision import Precision, computed_in
from esper.growth.active import ActiveSeeds, active_seeds, in_banks
from esper.growth.closed_loop import ClosedLoopPass, closed_loop_pass
from esper.growth.loss import LastSegment, backpropagate
from esper.growth.mode import set_evaluation
from esper.growth.objective import CLASSIFICATION, Objective
from esper.growth.snapshots import Snapshots
from esper.growth.updated import UpdatedMembers, UpdatedSeeds, at_least_two, on_device_and_marked
from esper.growth.variants import Tree, path_logits, tree
from esper.hosts.base import segments_of, slot_specs
from esper.lifecycle.roles import Blend, Incubation, Roles
from esper.optimisers.base import OptimiserConfig, StepSettings
from esper.optimisers.loss_scale import LossScale
from esper.seeds.bank import SeedBank
from esper.seeds.blueprints.base import BlueprintConfig, is_informed
from esper.seeds.slot_gradients import GradientHooks, SlotGradients

BankKey = tuple[int, int, bool]
"""Slot, blueprint, and whether its seeds have gates."""


class GrowingNetwork:
    """M hosts of one architecture, their seed banks, and their optimisers.

    Args:
        hosts: M hosts.
        blueprints: blueprints in the order of their indices.
        optimiser: optimiser of hosts and seeds.
        incubation: how seeds behind the host learn.
        rate_M1: factor on each member's learning rates `[M, 1]`; None is 1 for all.
        objective: what hosts and seeds learn.
        frozen: if true, only seeds learn: hosts run in evaluation mode and get no gradients.
        device: device of all tensors.
        precision: precision of forward passes.
    """

    def __init__(
        self,
        hosts: Sequence[nn.Module],
        blueprints: Sequence[BlueprintConfig],
        *,
        optimiser: OptimiserConfig,
        incubation: Incubation = Incubation.straight_through,
        rate_M1: Tensor | None = None,
        objective: Objective = CLASSIFICATION,
        frozen: bool = False,
        device: torch.device | str = "cpu",
        precision: Precision = Precision.fp32,
    ) -> None:
        self.device, self.precision = torch.device(device), precision
        self.loss_scale = LossScale(len(hosts), self.device) if precision is Precision.fp16 else None
        self._computed = partial(computed_in, precision, self.device)
        self.members, self.slots, self.blueprints = len(hosts), slot_specs(hosts[0]), tuple(blueprints)
        self.incubation, self.frozen, self.objective = incubation, frozen, objective
        self._frozen_hosts = tuple(hosts) if frozen else ()
        parts = {host: folded(host) if frozen else host for host in hosts}  # several may be the same module
        self.host = Fleet([parts[host] for host in hosts], device)
        self.host.flat.requires_grad_(not frozen)
        self.optimiser = optimiser.build(self.host.flat[:, :0] if frozen else self.host.flat)
        self._config, self._rate_M1 = optimiser, rate_M1
        self.banks: dict[BankKey, SeedBank] = {}
        self.active_S: list[ActiveSeeds | None] = [None for _ in self.slots]
        self.closed_loop: ClosedLoopPass | None = None
        self._updated_seeds: list[UpdatedSeeds] = []
        self._updated_members: UpdatedMembers | None = None
        self._learns_M1: Tensor | None = None
        self._roles: Roles | None = None
        self._version_M = np.zeros(len(hosts), np.int64)  # counts changes of each member's parameters
        self._changing_M = np.ones(len(hosts), np.bool_)  # members that an optimiser step changes
        self._snapshots = Snapshots()

    def plain_host(self, member: int) -> nn.Module:
        """Return a copy of one host as a plain module."""
        return copy.deepcopy(self._frozen_hosts[member]) if self.frozen else self.host.member(member)

    def bank(self, slot: int, blueprint: int, gated: bool = False) -> SeedBank:
        """Return the bank of a slot and a blueprint, created on first use. Seeds with a gate have separate banks."""
        key = (slot, blueprint, gated)
        if key not in self.banks:
            self.banks[key] = SeedBank(
                self.blueprints[blueprint], self.slots[slot], self.members, self._config, self.device, gated=gated
            )
        return self.banks[key]

    def plant(
        self,
        member: int,
        slot: int,
        blueprint: int,
        generator: torch.Generator,
        blend: Blend = Blend.ADD,
        gradients: Sequence[SlotGradients] | None = None,
    ) -> None:
        """Plant a newborn seed, with a gate if it blends by one.

        Args:
            gradients: slot gradients of each slot, for blueprints with informed initial weights.

        Raises:
            ValueError: the blueprint is informed, and there are no gradients.
        """
        self._version_M[member] += 1
        bank = self.bank(slot, blueprint, blend is Blend.GATE)
        if not is_informed(bank.blueprint):
            bank.plant(member, generator)
            return
        if gradients is None:
            raise ValueError("a seed with init=informed needs slot gradients: capture them before planting, or use init=default")
        here = gradients[slot].of_member(member)
        bank.plant(member, generator, here.scaled() if blend is Blend.MULTIPLY else here)

    def clear(self, member: int, slot: int, blueprint: int) -> None:
        """Remove a seed, gate included."""
        self._version_M[member] += 1
        for gated in (False, True):
            if (slot, blueprint, gated) in self.banks:
                self.banks[slot, blueprint, gated].clear([member])

    def arrange(self, roles: Roles) -> None:
        """Set the roles of all seeds until the next call; `roles` has a row for each member."""
        closed = self.incubation is Incubation.closed_loop
        learns_MS = roles.learns & (roles.blueprint >= 0)
        inside_MS = (roles.blueprint >= 0) & ~(roles.behind & closed)
        find = [partial(self.bank, slot) for slot in range(len(self.slots))]
        self._roles, self._inside_MS = roles, inside_MS
        self.active_S = [active_seeds(bank, roles, slot, inside_MS[:, slot], self.device) for slot, bank in enumerate(find)]
        self.closed_loop = closed_loop_pass(find, roles, self.device) if closed else None
        learns_M = np.asarray(learns_MS.any(axis=1))
        self._updated_members = self._updated_members_of(learns_M) if self.frozen and not closed else None
        self._changing_M = learns_M if self.frozen else np.ones_like(learns_M)
        learning_S = np.flatnonzero(learns_MS.any(axis=0))
        self._updated_seeds = [self._updated_seeds_of(roles, int(slot), learns_MS[:, slot]) for slot in learning_S]
        self._learns_M1 = on_device(self._changing_M[:, None], self.device)

    def _updated_members_of(self, learns_M: npt.NDArray[np.bool_]) -> UpdatedMembers | None:
        """Return the members with a learning seed; None if that is all of them."""
        if learns_M.all():
            return None
        members = np.flatnonzero(learns_M)
        hosts, active_S = at_least_two(members), self._active_of(learns_M)
        return UpdatedMembers(
            hosts_L=on_device(hosts, self.device),
            members_L=on_device(members, self.device),
            learns_M=learns_M,
            active_S=tuple(active_S),
        )

    def _active_of(self, chosen_M: npt.NDArray[np.bool_]) -> list[ActiveSeeds | None]:
        """Return the active seeds of the chosen members in each slot, for features of these members only."""
        roles, place_M = self._roles, np.cumsum(chosen_M) - 1
        assert roles is not None
        return [
            active_seeds(partial(self.bank, slot), roles, slot, self._inside_MS[:, slot] & chosen_M, self.device, place_M)
            for slot in range(len(self.slots))
        ]

    def _updated_seeds_of(self, roles: Roles, slot: int, learns_M: npt.NDArray[np.bool_]) -> UpdatedSeeds:
        """Return the banks of the marked seeds of a slot."""
        fossil_M = roles.fossil[:, slot] & learns_M
        return UpdatedSeeds(
            slot=slot,
            banks=tuple(
                (self.bank(slot, kind, gated), *on_device_and_marked(rows, self.members, self.device))
                for kind, gated, rows in in_banks(roles, slot, learns_M)
            ),
            fossil_M1=on_device(fossil_M[:, None], self.device) if fossil_M.any() else None,
        )

    def train(self, mode: bool = True) -> None:
        if mode and not self.frozen:
            self.host.module.train()
        else:
            set_evaluation(self.host.module)

    def _through(
        self,
        module: nn.Module,
        active_S: Sequence[ActiveSeeds | None],
        x: Tensor,
        members: int,
        hooks: GradientHooks | None = None,
        starts: dict[int, Tensor] | None = None,
    ) -> LastSegment:
        """Run `members` members with these seeds, up to their last segment; `starts` gets what the closed-loop pass needs."""
        *segments, last = segments_of(module)
        for slot, (segment, seeds) in enumerate(zip(segments, active_S, strict=True)):
            x = segment(x)
            if starts is not None and self.closed_loop is not None:
                self.closed_loop.start(slot, x, members, starts)
            if seeds is not None:
                x = seeds.blended(x, members)
            if hooks is not None:
                hooks.watch(x)
        return LastSegment(last, x, members, self.objective)

    def backward(self, x: Tensor, y_MB: Tensor, hooks: GradientHooks | None = None, targets_M: Tensor | None = None) -> Tensor:
        """Add the gradients of one batch: of hosts and seeds, and of seeds that learn in a closed loop.

        Args:
            x: the batch in the layout of its kind.
            y_MB: targets of each member's samples, or of each of their positions.
            hooks: capture the features that leave each slot, and the gradients of the mean loss of this batch alone.
            targets_M: number of targets by which each member's sum of losses is divided, for a part of a larger batch; None is
                the number in this batch, for a mean.

        Returns:
            Mean loss of each member in the main pass `[M]`; of a part, its share of the mean.
        """
        starts: dict[int, Tensor] = {}
        with self._computed():
            loss_M = self._through(self.host.bind(), self.active_S, x, self.members, hooks, starts).losses(
                y_MB, count_L=targets_M
            )
        if loss_M.requires_grad:  # else nothing learns in this pass
            backpropagate(loss_M, self._scale(), hooks)
        if hooks is not None:
            count, batch = self.objective.num_targets, len(x) // self.members if members_first(x) else len(x)
            y_MBT = y_MB.view(self.members, batch, -1)
            hooks.rescale(count(y_MB) if targets_M is None else targets_M, lambda n: count(y_MBT[:, :n].flatten(1)))
        if self.closed_loop is not None:
            with self._computed():
                loss_L = self.closed_loop.losses(self.host, starts, y_MB, targets_M, self.objective)
            backpropagate(loss_L, self._scale(self.closed_loop.members_L))
        return loss_M.detach()

    def _scale(self, members_L: Tensor | None = None) -> Tensor | None:
        """Return the loss scales of the chosen members `[L]`, None is all; None without loss scales."""
        return None if self.loss_scale is None else self.loss_scale.of(members_L)

    @property
    def learning_L(self) -> Tensor | None:
        """The members whose batches `backward_learning` takes, which may repeat; None for all."""
        return None if self._updated_members is None else self._updated_members.hosts_L

    def backward_learning(self, x: Tensor, y_LB: Tensor, targets_L: Tensor | None = None) -> Tensor:
        """Add the gradients of one batch as `backward` does, but in a frozen fleet only for members in which a seed learns. There
        must be at least one; the batch is that of `learning_L`.

        Returns:
            Mean loss of each member `[M]`, or its share of the mean; 0 for those left out.
        """
        learning = self._updated_members
        if learning is None:
            return self.backward(x, y_LB, targets_M=targets_L)
        host, count = self.host.bind_some(learning.hosts_L), len(learning.members_L)
        targets_L = None if targets_L is None else targets_L[:count]
        with self._computed():
            last = self._through(host, learning.active_S, x, len(learning.hosts_L))
            loss_L = last.losses(y_LB[:count], slice(count), targets_L)
        backpropagate(loss_L, self._scale(learning.members_L))
        return torch.zeros(self.members, device=self.device).index_copy_(0, learning.members_L, loss_L.detach())

    def learns(self) -> npt.NDArray[np.bool_]:
        """Return which members `backward_learning` computes `[M]`."""
        return np.ones(self.members, dtype=np.bool_) if self._updated_members is None else self._updated_members.learns_M

    def capture(self, x: Tensor, y_MB: Tensor) -> list[SlotGradients]:
        """Return the gradients of each slot on a batch, in evaluation mode; nothing is changed."""
        self.train(False)
        hooks = GradientHooks(self.members)
        with self._computed():
            loss_M = self._through(self.host.bind(), self.active_S, x, self.members, hooks).losses(y_MB)
        backpropagate(loss_M, self._scale(), hooks)
        self.drop_gradients()
        return hooks.gradients()

    def drop_gradients(self) -> None:
        """Drop the gradients of hosts and seeds."""
        for fleet in (self.host, *(bank.fleet for bank in self.banks.values())):
            fleet.flat.grad = None

    def states(self) -> list[Hashable]:
        """Return a key for each member that changes whenever its outputs may: its parameters' version and its seeds' roles."""
        roles = self._roles
        parts = [] if roles is None else [roles.blueprint, roles.blend, roles.behind, roles.alpha]
        return [(version, *(part[member].tobytes() for part in parts)) for member, version in enumerate(self._version_M.tolist())]

    def tree(self, alpha_VMS: npt.NDArray[np.float32], rows: npt.NDArray[np.int64] | None = None) -> Tree:
        """Return the tree of V settings of all alphas, for the active seeds; see `variants.tree`.

        Args:
            rows: members to compute, each once; None for all. A single one of several is computed twice, as `UpdatedMembers` is.
        """
        if rows is None:
            return tree(alpha_VMS, self.active_S)
        active_S = self.active_S if self._roles is None else self._active_of(np.isin(np.arange(self.members), rows))
        return tree(alpha_VMS[:, at_least_two(rows)], active_S, at_least_two(rows))

    def path_logits(self, x: Tensor, tree: Tree) -> Tensor:
        """Return the logits `[P, B, classes]` of a batch on every path of a tree; see `variants`."""
        with self._computed():
            return path_logits(self.host, tree, x)

    def begin_step(self, progress: float) -> tuple[StepSettings, StepSettings]:
        """Count an optimiser step, and return its settings for hosts and for seeds."""
        self._version_M += self._changing_M
        host, seed = self._config.at(progress)
        rate_M1 = self._rate_M1
        return (host, seed) if rate_M1 is None else (host.scaled(rate_M1), seed.scaled(rate_M1))

    def update(self, host: StepSettings, seed: StepSettings) -> None:
        """Update every host and every learning seed, each with its own clipping budget; see `LossScale`."""
        scale_M1 = None if self.loss_scale is None else self.loss_scale.state["scale"]
        overflows = [self.optimiser.step(host, scale_M1=scale_M1)]
        for learners in self._updated_seeds:
            settings = seed if learners.fossil_M1 is None else host.where(learners.fossil_M1, seed)
            for bank, _, learns_M1 in learners.banks:
                overflows.append(bank.optimiser.step(settings, learns_M1, scale_M1, fossil_M1=learners.fossil_M1))
        if self.loss_scale is not None:
            self.loss_scale.adjust([one for one in overflows if one is not None], self._learns_M1)

    def pace(self, rate_M1: Tensor) -> None:
        """Set the factor on each member's learning rates `[M, 1]`."""
        self._rate_M1 = rate_M1

    def take_norms(self) -> Tensor:
        """Return mean gradient norms before clipping since the last call `[M, 1 + S]`: hosts, then seeds.

        NaN where nothing learns, infinite where a gradient is not finite. A seed's gate is included.
        """
        norms = torch.full((self.members, 1 + len(self.slots)), torch.nan, device=self.device, dtype=self.host.flat.dtype)
        norms[:, 0] = self.optimiser.take_norms()
        for learners in self._updated_seeds:
            for bank, rows, _ in learners.banks:
                norms[rows, 1 + learners.slot] = bank.optimiser.take_norms()[rows]
        return norms

    def take_faults(self) -> Tensor:
        """Return the faults of the batches since the last call that no loss shows `[M, 3]`.

        Returns:
            1 for members with finite buffers and without an overflow at the lowest loss scale, else 0; then overflows and loss
            scale, NaN without loss scales.
        """
        faults_M3 = torch.full((self.members, 3), torch.nan, device=self.device, dtype=self.host.flat.dtype)
        faults_M3[:, 0] = 1.0
        for buffer in self.host.buffers.values():
            faults_M3[:, 0] *= buffer.isfinite().reshape(self.members, -1).all(1)
        if self.loss_scale is not None:
            faults_M3[:, 1], faulty_M = self.loss_scale.take_overflows()
            faults_M3[:, 0] *= ~faulty_M
            faults_M3[:, 2] = self.loss_scale.of()
        return faults_M3

    def rows(self) -> dict[str, Tensor]:
        """Return all of the members' state that may change, by name: a member is one row of every tensor."""
        rows = dict[str, Tensor]()
        if not self.frozen:
            rows["host"] = self.host.flat.detach()
            rows |= {f"host_{part}": state for part, state in self.optimiser.state.items()}
            rows |= {f"buffer/{name}": buffer for name, buffer in self.host.buffers.items()}
        if self.loss_scale is not None:
            rows |= {f"loss_scale/{part}": state for part, state in self.loss_scale.state.items()}
        for (slot, blueprint, gated), bank in self.banks.items():
            name = f"{slot}/{blueprint}/gated" if gated else f"{slot}/{blueprint}"
            rows[f"seed/{name}"] = bank.fleet.flat.detach()
            rows.update({f"seed_{part}/{name}": state for part, state in bank.optimiser.state.items()})
        return rows

    def save_snapshots(self, healthy_M: npt.NDArray[np.bool_]) -> None:
        """Save the rows of the marked members as their snapshots; see `Snapshots`."""
        self._snapshots.save(self.rows(), None if healthy_M.all() else on_device(healthy_M, self.device))

    def restore(self, failed_M: npt.NDArray[np.bool_]) -> None:
        """Restore the marked members from their snapshots, exactly; other members do not change."""
        if failed_M.any():
            self._version_M += failed_M
            self._snapshots.restore(self.rows(), on_device(failed_M, self.device))
