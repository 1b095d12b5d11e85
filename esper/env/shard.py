"""A shard trains and measures its members: hosts on one device, as one fused program.

The environment hands out its hosts to shards and runs the shards side by side. All tensors of a shard are made on its device;
what comes back is one small array a call, copied once.
"""

# M members, S slots, K blueprints, B batch, V variants, n samples, I samples of an epoch

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.env.member_data import MemberData
from esper.growth.network import GrowingNetwork
from esper.growth.variants import Tree
from esper.lifecycle.roles import Fossils, Incubation
from esper.measure.counterfactuals import Measurement
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.slot_gradients import GradientHooks, SlotGradients
from esper.task.base import Task
from esper.task.data import Data
from esper.task.instances import DataView

CPU_MEMBERS = 16
"""Hosts of a shard on a CPU. On 2 cores, two shards of 16 with one thread each trained as fast as one of 32 with two, and under
foreign load many times as fast, since they wait for each other once an epoch and not in every operation."""
FELT_BATCHES = 2
"""Batches from which informed seeds get their first weights. More: less noise in them, and a longer wait at germination."""
LOOK_EVERY = 4
"""Batches after which a shard looks whether any of its members is still well. More: sick ones are trained in vain for longer, and
a GPU is waited for less often."""
VALIDATION_BATCH = 512
"""Samples measured at once; a bound on memory, without effect on the result."""
CPU_FEATURES = 2_000_000
"""Numbers in the largest features measured at once on a CPU. More: features of above 32 MB, which the C library takes from the
system and gives back each time, at twice the price of computing in them."""


@dataclass(kw_only=True, slots=True)
class DeviceConfig:
    """How hosts train on a device; the device's name is its key in the config."""

    members_per_shard: int = 0
    """Hosts trained as one fused program, at least 0; 0 takes 16 on a CPU, and all of the device's hosts on a GPU.
    Shards run side by side on threads; the results do not depend on it but for float rounding."""

    def __post_init__(self) -> None:
        if self.members_per_shard < 0:
            raise ValueError(
                f"devices.<name>.members_per_shard must be at least 0, got {self.members_per_shard}: 0 leaves it to esper"
            )


def find_device(name: str) -> torch.device:
    """The torch device of this name; auto is the first GPU, or the CPU where there is none.

    Raises:
        ValueError: this machine does not have it.
    """
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ValueError(
            f"devices=[{name}] is not on this machine, which has {count} CUDA device{'s' * (count != 1)}: "
            "choose devices=[cpu], or leave devices out"
        )
    return device


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainReport:
    """What one epoch of training showed."""

    loss_M: npt.NDArray[np.float32]
    """Mean training loss of each member [nats]."""
    host_norm_M: npt.NDArray[np.float32]
    """Norm of each host's gradient before clipping, mean over the batches [nats per unit of weight]."""
    seed_norm_MS: npt.NDArray[np.float32]
    """The same of each seed, NaN where none learnt, infinite where its gradient was not finite."""


class Shard:
    """M hosts on one device."""

    def __init__(
        self,
        hosts: Sequence[nn.Module],
        blueprints: Sequence[BlueprintConfig],
        data: Data,
        task: Task,
        device: torch.device,
        views: Sequence[DataView] = (),
        *,
        incubation: Incubation = Incubation.straight_through,
        fossils: Fossils = Fossils.learning,
    ) -> None:
        self.data, self.task, self.device = data, task, device
        self.views = MemberData(data, views, task.augmentation, device)
        host_optimiser, seed_optimiser = task.optimisers
        self.members, self._widths = len(hosts), list[int]()
        self.network = GrowingNetwork(
            hosts,
            blueprints,
            host_optimiser=host_optimiser,
            seed_optimiser=seed_optimiser,
            incubation=incubation,
            fossils=fossils,
            rate_M1=self.views.rate_M1,
            device=device,
        )

    def train_epoch(
        self,
        order_MI: npt.NDArray[np.int64],
        *,
        draws_MI3: npt.NDArray[np.uint8] | None = None,
        hooks: GradientHooks | None = None,
        retired_M: npt.NDArray[np.bool_] | None = None,
    ) -> TrainReport:
        """Trains every member on its own order of the training samples.

        Members are one program, so that one whose loss is no longer finite is computed on with the others, whose numbers do not
        depend on it. The epoch is cut short once none is left that is well.

        Args:
            order_MI: sample indices; whole batches only are used.
            draws_MI3: how each image is moved; see `Augmentation`. None for not at all.
            hooks: see `GrowingNetwork.forward`; they watch the last batch.
            retired_M: members that stay as they are: they are computed with the others, and laid back afterwards.
        """
        network, batch = self.network, min(self.task.batch_size, order_MI.shape[1])
        network.train()
        batches = order_MI.shape[1] // batch
        whole = slice(batches * batch)
        order, draws = (
            None if array is None else torch.from_numpy(array[:, whole]).to(self.device).unflatten(1, (batches, batch))
            for array in (order_MI, draws_MI3)
        )
        assert order is not None
        losses = torch.zeros(self.members, device=self.device)
        retired_M = np.zeros(self.members, dtype=np.bool_) if retired_M is None else retired_M
        kept, learning = network.copies(retired_M), torch.from_numpy(~retired_M).to(self.device)
        in_vain = bool(retired_M.all())
        for step in range(batches):
            if in_vain and step < batches - 1:  # the last batch is what the hooks watch
                continue
            index_MB = order[:, step]
            x, y_MB = self.views.batch(index_MB, None if draws is None else draws[:, step])
            losses += network.backward(x, y_MB, hooks if step == batches - 1 else None)
            network.step()
            if step % LOOK_EVERY == LOOK_EVERY - 1:  # a sum stays infinite or NaN once it is
                in_vain = not bool((losses.isfinite() & learning).any())
        report = torch.cat([(losses / batches)[:, None], network.take_norms()], 1).cpu().numpy()
        network.lay_back(retired_M, kept)
        report[retired_M] = np.nan
        return TrainReport(loss_M=report[:, 0], host_norm_M=report[:, 1], seed_norm_MS=report[:, 2:])

    def feel(self, order_MI: npt.NDArray[np.int64], *, draws_MI3: npt.NDArray[np.uint8] | None = None) -> list[SlotGradients]:
        """What each slot feels of the first batches of an epoch to come; nothing is changed by it. See `train_epoch`."""
        count = FELT_BATCHES * self.task.batch_size
        index_MB, draws = (
            None if array is None else torch.from_numpy(array[:, :count]).to(self.device) for array in (order_MI, draws_MI3)
        )
        assert index_MB is not None
        return self.network.feel(*self.views.batch(index_MB, draws))

    def validate(self, alpha_VMS: npt.NDArray[np.float32], *, test: bool = False) -> Measurement:
        """Measures every member under V settings of its alphas; nothing is changed by it, batch statistics included.

        Args:
            alpha_VMS: blend weights; variant 0 is what the others are compared with.
            test: measure on the test part instead of the validation part.
        """
        network, views = self.network, self.views
        network.train(False)
        tree, samples = network.tree(alpha_VMS), views.num_measured(test=test)
        path_VM = torch.from_numpy(tree.path_VM).to(self.device)
        sums: list[Sums] = []
        batch = self._at_once(tree)
        for start in range(0, samples, batch):
            x, y_BT, weight_MBT = views.measured(slice(start, start + batch), test=test, members=self.members)
            logits = network.path_logits(x, tree)
            loss = F.cross_entropy(logits.flatten(0, 1), y_BT.flatten().repeat(len(logits)), reduction="none")
            shape = (len(logits), *y_BT.shape)
            right_PBT, loss_PBT = (logits.argmax(-1).view(shape) == y_BT).double(), loss.view(shape).double()
            sums.append(_sums(right_PBT[path_VM], loss_PBT[path_VM], weight_MBT))
        return _measurement(sums)

    def _at_once(self, tree: Tree) -> int:
        """Samples to measure at once."""
        batch = VALIDATION_BATCH // self.data.positions
        if self.device.type == "cpu":
            if not self._widths:
                x, _, _ = self.views.measured(slice(0, 1), test=False, members=self.members)
                self._widths = self.network.widths(x)
            batch = min(batch, CPU_FEATURES // max(np.multiply(self._widths, tree.paths)))
        return max(1, batch)


class Sums(NamedTuple):
    """Sums over samples, of which the targets of one sample (all positions of a sequence) count as one draw."""

    targets: Tensor
    """How many there are `[M]`."""
    targets_square: Tensor
    """Sum over samples of the square of their targets `[M]`."""
    right: Tensor
    """Targets that a variant has right `[V, M]`."""
    loss: Tensor
    """`[V, M]` [nats]"""
    right_targets: Tensor
    """Sum over samples of right ones times targets `[V, M]`."""
    right_right: Tensor
    """Sum over samples of right ones of one variant times those of another `[V, V, M]`."""


def _sums(right_VMBT: Tensor, loss_VMBT: Tensor, weight_MBT: Tensor | None) -> Sums:
    """What a batch adds to each of `Sums`."""
    if weight_MBT is None:
        count_MB = torch.full_like(right_VMBT[0, :, :, 0], right_VMBT.shape[-1])
    else:
        right_VMBT, loss_VMBT, count_MB = right_VMBT * weight_MBT, loss_VMBT * weight_MBT, weight_MBT.sum(-1)
    right_VMB = right_VMBT.sum(-1)
    return Sums(
        targets=count_MB.sum(-1),
        targets_square=count_MB.square().sum(-1),
        right=right_VMB.sum(-1),
        loss=loss_VMBT.sum(-1).sum(-1),
        right_targets=(right_VMB * count_MB).sum(-1),
        right_right=torch.einsum("vmb,wmb->vwm", right_VMB, right_VMB),
    )


def _measurement(batches: Sequence[Sums]) -> Measurement:
    """Means over targets, their covariance, and the error of the difference to variant 0.

    With R and n what is right and what there is in a sample, a = sum R / sum n is an accuracy, and the covariance of two is
    sum (R - a n)(R' - a' n) / (sum n)^2, that of means of samples drawn whole; the difference G = R - R' likewise.
    """
    targets, square, right, loss, mixed, gram = (torch.stack(parts).sum(0).cpu().numpy() for parts in zip(*batches, strict=True))
    share = right / targets
    cross = share[:, None] * mixed[None]
    spread = gram - cross - cross.swapaxes(0, 1) + share[:, None] * share[None] * square
    gain, first = (right[:1] - right) / targets, np.diagonal(gram).T
    gain_square = first[:1] - 2 * gram[0] + first - 2 * gain * (mixed[:1] - mixed) + gain**2 * square
    return Measurement(
        accuracy_VM=(100.0 * share).astype(np.float32),
        loss_VM=(loss / targets).astype(np.float32),
        error_VM=(100.0 * np.sqrt(np.maximum(gain_square, 0.0)) / targets).astype(np.float32),
        covariance_VVM=1e4 * spread / targets**2,
    )
