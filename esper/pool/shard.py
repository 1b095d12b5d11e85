"""A shard trains and measures its members: hosts on one device, as one fused program.

A shard is the only interface to its network. Its methods take and return arrays and plain data, so a shard could also run in
another process. All of its tensors are on its device, its work is issued on its lane, and results are copied once per call.
"""

# M members, L measured members, S slots, K blueprints, B batch, T targets of a sample, V variants, P paths, I samples of an epoch

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from esper.fusion.batch_last import flattens, suits
from esper.fusion.device import on_device
from esper.fusion.precision import Precision
from esper.growth.grown import GrownNetwork, KeptSeed
from esper.growth.network import GrowingNetwork
from esper.growth.variants import Tree
from esper.hosts.base import SlotSpec
from esper.lifecycle.roles import Blend, Incubation, Roles
from esper.measure.counterfactuals import Measurement
from esper.measure.potential import SAMPLES, SPOTS
from esper.optimisers.base import OptimiserConfig
from esper.pool.host_sampler import EpochOrder
from esper.pool.lane import Lane, on_lane
from esper.pool.member_data import MeasuredPart, MemberData, TrainedPart
from esper.pool.sums import KnownSums, Sums, measurement, sums_of
from esper.pool.training_step import TrainingStep
from esper.seeding import torch_stream
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.slot_gradients import GradientHooks, SlotGradients
from esper.task.base import Task
from esper.task.data import Data
from esper.task.instances import DataView

CAPTURED_BATCHES = 2
"""Batches from which informed seeds get their initial weights. More: less noise, and slower germination."""
CHECK_EVERY = 4
"""Check for non-finite losses every N batches, on a CPU. Higher: more wasted work."""
VALIDATION_BATCH = 512
"""Samples measured at once: bounds memory, without effect on the result."""
CPU_FEATURES = 2_000_000
"""Maximum number of feature values per measurement on a CPU. Higher: features above 32 MB, which the C library maps and unmaps on
every use, at twice the cost of computing with them."""
GPU_FEATURES = 2**28
"""Maximum number of feature values per measurement on a GPU, 1 GB; at least those of one sample. Higher: more memory for logits
of a large vocabulary."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainReport:
    """The result of one epoch of training."""

    loss_M: npt.NDArray[np.float32]
    """Mean training loss of each member; of the last batch only for a frozen host in which no seed learns."""
    host_norm_M: npt.NDArray[np.float32]
    """Norm of each host's gradient before clipping, mean over the batches [nats per unit of weight]; NaN for frozen hosts."""
    seed_norm_MS: npt.NDArray[np.float32]
    """Norm of each seed's gradient; NaN where no seed learns, infinite where the gradient is not finite."""
    finite_M: npt.NDArray[np.bool_]
    """Hosts whose buffers (batch statistics) are finite, and which had no overflow at the lowest loss scale; neither an infinite
    variance nor a skipped step shows in any loss."""
    overflows_M: npt.NDArray[np.float32]
    """Batches in which a gradient overflowed in fp16, and a step was skipped; NaN in other precisions."""
    scale_M: npt.NDArray[np.float32]
    """Loss scale after the epoch; NaN in other precisions."""

    def scaling(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the overflows and the loss scale of each host by name; nothing without loss scales."""
        if np.isnan(self.scale_M).all():
            return {}
        return {"overflows": np.nan_to_num(self.overflows_M), "scale": self.scale_M}


class Shard:
    """M hosts on one device, with their seeds."""

    def __init__(
        self,
        hosts: Sequence[nn.Module],
        blueprints: Sequence[BlueprintConfig],
        data: Data,
        task: Task,
        device: torch.device,
        views: Sequence[DataView] = (),
        *,
        optimiser: OptimiserConfig,
        incubation: Incubation = Incubation.straight_through,
        frozen: bool = False,
        precision: Precision = Precision.fp32,
        own_kernels: bool = False,
        lane: Lane | None = None,
    ) -> None:
        self.data, self.task, self.device, self.lane = data, task, device, lane or Lane(device)
        self.members, self._micro_batches = len(hosts), optimiser.micro_batches
        self._gradients: list[SlotGradients] | None = None
        self._roles: Roles | None = None
        with self.lane.issued():
            last = device.type == "cpu" and (flattens(hosts[0]) or (own_kernels and suits(hosts[0])))
            self.member_data = MemberData(data, views, task.augmentation, device, samples_last=last)
            self._valid_mean, self._test_mean = (task.objective.mean(part) for part in (data.valid_y, data.test_y))
            self.network = GrowingNetwork(
                hosts,
                blueprints,
                optimiser=optimiser,
                incubation=incubation,
                rate_M1=self.member_data.rate_M1,
                objective=task.objective,
                frozen=frozen,
                device=device,
                precision=precision,
            )
            self._step = TrainingStep(self.network, task.objective, self.lane)
        self.forget()

    @property
    def slots(self) -> tuple[SlotSpec, ...]:
        """The slots of a host."""
        return tuple(self.network.slots)

    # ---- seeds

    @on_lane
    def arrange(self, roles: Roles) -> None:
        """Set the roles of all seeds until the next call, and drop captured gradients; see `GrowingNetwork.arrange`."""
        self._gradients = None
        if self._roles is None or not roles.equals(self._roles):  # else a captured step can be replayed
            self._step.forget()
            self.network.arrange(roles)
            self._roles = roles

    @on_lane
    def plant(self, member: int, slot: int, blueprint: int, stream: tuple[int | str, ...], blend: Blend = Blend.ADD) -> None:
        """Plant a newborn seed.

        Args:
            stream: name of the random stream of its initial weights: root, purpose, keys.

        Raises:
            ValueError: the blueprint is informed by slot gradients, and none were captured since the last `arrange`.
        """
        root, purpose, *keys = stream
        generator = torch_stream(int(root), str(purpose), *keys)
        self.network.plant(member, slot, blueprint, generator, blend, self._gradients)

    @on_lane
    def clear(self, member: int, slot: int, blueprint: int) -> None:
        """Remove a seed."""
        self.network.clear(member, slot, blueprint)

    @on_lane
    def capture(self, order: EpochOrder) -> None:
        """Capture slot gradients on the first batches of an epoch, for informed seeds; nothing else is changed.

        They are kept until `take_gradients` or `arrange`.
        """
        self._follow(order.time)
        first = TrainedPart(*order.batches(CAPTURED_BATCHES * self.task.batch_size, self.member_data.home)[0])
        with self.member_data.batches([first]):
            batch = self.member_data.batch(first)
        self._gradients = self.network.capture(*batch)

    def take_gradients(self) -> list[SlotGradients]:
        """Return the captured gradients of each slot, and drop them."""
        taken, self._gradients = self._gradients or [], None
        return taken

    # ---- snapshots

    @on_lane
    def host_states(self) -> list[dict[str, Tensor]]:
        """Return the parameters and buffers of every host by name, on the CPU, without its seeds."""
        hosts = [self.network.plain_host(member) for member in range(self.members)]
        return [{name: part.detach().cpu() for name, part in (*host.named_parameters(), *host.named_buffers())} for host in hosts]

    @on_lane
    def grown(self, member: int, seeds: Sequence[KeptSeed]) -> GrownNetwork:
        """Return a copy of one host with these seeds as a plain module on the CPU."""
        banks = [self.network.bank(seed.slot, seed.blueprint, seed.blend is Blend.GATE) for seed in seeds]
        branches = [bank.fleet.member(member) for bank in banks]
        return GrownNetwork(self.network.plain_host(member), branches, seeds).cpu()

    @on_lane
    def save_snapshots(self, healthy_M: npt.NDArray[np.bool_]) -> None:
        """Save snapshots of the marked members; see `GrowingNetwork.save_snapshots`."""
        self.network.save_snapshots(healthy_M)

    @on_lane
    def restore(self, failed_M: npt.NDArray[np.bool_]) -> None:
        """Restore the marked members from their snapshots; see `GrowingNetwork.restore`."""
        self.network.restore(failed_M)

    # ---- training and validation

    def _follow(self, epoch: int) -> None:
        """Set data and learning rates to the state of all events in a host epoch."""
        self.member_data.at(epoch)
        if self.member_data.paced and self.member_data.rate_M1 is not None:
            self.network.pace(self.member_data.rate_M1)

    @on_lane
    def train_epoch(
        self, order: EpochOrder, *, probe: bool = False, retired_M: npt.NDArray[np.bool_] | None = None
    ) -> TrainReport:
        """Train every member on its own order of the training samples.

        Members are one program: a member with a non-finite loss is still computed, and affects the others by float rounding at
        most. On a CPU the epoch is cut short once no member is finite. Frozen hosts in which no seed learns
        are computed on the last batch only.

        Args:
            order: samples of each member; only whole batches are used.
            probe: capture the slot gradients of a few samples of the last batch, for `take_gradients`.
            retired_M: members that stay at their snapshot: they are computed with the others, and restored afterwards.
        """
        network = self.network
        network.train()
        self._follow(order.time)
        hooks = GradientHooks(self.members, SAMPLES, SPOTS) if probe else None
        losses = self._step.begin()
        retired_M = np.zeros(self.members, dtype=np.bool_) if retired_M is None else retired_M
        learning = on_device(~retired_M, self.device)
        in_vain, learns_M = bool(retired_M.all()), network.learns()
        learns, checks = bool(learns_M.any()), self.device.type == "cpu"  # on a GPU, a check would force a synchronisation
        batches = self._batches(order)
        with self.member_data.batches(batches[-1:] if in_vain or not learns else batches):
            for step, batch in enumerate(batches):
                last = step == len(batches) - 1
                if (in_vain or not learns) and not last:  # the hooks watch the last batch
                    continue
                parts = self.member_data.micro_batches(batch, min(self._micro_batches, batch.index_MB.shape[1]))
                progress, left = order.progress((step + 0.5) / len(batches)), len(batches) - 1 - step
                self._step.take(parts, progress, hooks if last else None, left=left)
                if checks and step % CHECK_EVERY == CHECK_EVERY - 1:  # a sum stays infinite or NaN once it is
                    in_vain = not bool((losses.isfinite() & learning).any())
        seen = on_device(np.where(learns_M, len(batches), 1), self.device)
        columns = [(losses / seen)[:, None], network.take_norms(), network.take_faults()]
        report = torch.cat(columns, 1).cpu().numpy()
        network.restore(retired_M)
        report[retired_M] = np.nan
        self._gradients = hooks.gradients() if hooks else None
        return TrainReport(
            loss_M=report[:, 0],
            host_norm_M=report[:, 1],
            seed_norm_MS=report[:, 2:-3],
            finite_M=report[:, -3] != 0,
            overflows_M=report[:, -2],
            scale_M=report[:, -1],
        )

    def _batches(self, order: EpochOrder) -> list[TrainedPart]:
        """Return the batches of an epoch: the last one for all members, the others only for members that learn."""
        batches = [TrainedPart(*batch) for batch in order.batches(self.task.batch_size, self.member_data.home)]
        learning = self.network.learning_L
        if learning is None or not len(learning):
            return batches
        chosen = learning.to(self.member_data.home)
        return [*(batch.of(chosen) for batch in batches[:-1]), batches[-1]]

    @on_lane
    def validate(self, alpha_VMS: npt.NDArray[np.float32], *, test: bool = False) -> Measurement:
        """Measure every member under V settings of its alphas, on its data as in the last epoch of training.

        No member is changed, batch statistics included. A member is computed again only if its parameters, its alphas or its
        data has changed since its last measurement: a frozen host is rarely computed again once its seed has learned.

        Args:
            alpha_VMS: blend weights; variant 0 is the baseline of the others.
            test: measure on the test split instead of the validation split.
        """
        known, states = self._known[test], self._states(alpha_VMS)
        stale = known.stale(states)
        sums = self._measured(alpha_VMS, np.array(stale), test=test) if stale else None
        return measurement(known.update(states, stale, sums), self.task.objective.floor)

    def forget(self) -> None:
        """Drop all known results, so that the next measurement computes every member."""
        self._known = {False: KnownSums(), True: KnownSums()}

    def _states(self, alpha_VMS: npt.NDArray[np.float32]) -> list[Hashable]:
        """Return what the results of each member depend on."""
        settings = (alpha_VMS[:, member].tobytes() for member in range(self.members))
        return list(zip(self.network.states(), self.member_data.states(self.members), settings, strict=True))

    def _measured(self, alpha_VMS: npt.NDArray[np.float32], rows_L: npt.NDArray[np.int64], *, test: bool) -> Sums:
        """Return the sums of some members `[..., L]`."""
        network, data, objective = self.network, self.member_data, self.task.objective
        mean, count = self._test_mean if test else self._valid_mean, len(rows_L)
        network.train(False)
        tree, samples = network.tree(alpha_VMS, None if count == self.members else rows_L), data.num_measured(test=test)
        chosen = None if tree.rows is None else on_device(tree.rows, data.home)
        path_VM, owner_P = (on_device(paths, self.device) for paths in (tree.path_VM[:, :count], tree.owner_P))
        sums: list[Sums] = []
        batch = self._at_once(tree)
        parts = [MeasuredPart(slice(start, start + batch), test, chosen) for start in range(0, samples, batch)]
        with data.parts(parts):
            for part in parts:
                self.lane.give_way()
                x, y_MBT, weight_MBT = data.measured(part, tree.members)
                logits, y_PBT = network.path_logits(x, tree), y_MBT[owner_P]
                loss_PBT = objective.losses(logits, y_PBT.flatten(1)).view_as(y_PBT).double()
                points_PBT = objective.points(logits, y_PBT, mean)
                y_LBT, weight_LBT = y_MBT[:count], None if weight_MBT is None else weight_MBT[:count]
                sums.append(sums_of(points_PBT[path_VM], loss_PBT[path_VM], objective.scale(y_LBT, mean), weight_LBT))
        return Sums.total(sums)

    def _at_once(self, tree: Tree) -> int:
        """Return the number of samples to measure at once."""
        most = CPU_FEATURES if self.device.type == "cpu" else GPU_FEATURES
        return max(
            1, min(VALIDATION_BATCH // self.data.positions, most // max(np.multiply(self.task.sizes.segments, tree.paths)))
        )
