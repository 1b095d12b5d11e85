"""A shard trains and measures its members: hosts on one device, as one fused program.

The environment hands out its hosts to shards and runs the shards side by side. All tensors of a shard are made on its device;
what comes back is one small array a call, copied once.
"""

# M members, S slots, B batch, V variants, n samples, I samples of an epoch

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.population.blueprints import BlueprintConfig
from esper.population.layout import repeated, side_by_side
from esper.population.network import GrowingNetwork, growth_potential, member_losses
from esper.task.base import Data, Task

CPU_MEMBERS = 16
"""Hosts of a shard on a CPU. On 2 cores, two shards of 16 with one thread each trained as fast as one of 32 with two, and under
foreign load many times as fast, since they wait for each other once an epoch and not in every operation."""
VALIDATION_BATCH = 512
"""Samples measured at once; a bound on memory, without effect on the result."""


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
    potential_MS: npt.NDArray[np.float32]
    """Growth potential of each slot, from the last batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """What validation showed, for each variant of the alphas."""

    accuracy_VM: npt.NDArray[np.float32]
    """[pp]"""
    loss_VM: npt.NDArray[np.float32]
    """[nats]"""
    error_VM: npt.NDArray[np.float32]
    """Standard error of the accuracy difference to variant 0, from samples paired with themselves [pp]."""


class Shard:
    """M hosts on one device."""

    def __init__(
        self,
        hosts: Sequence[nn.Module],
        blueprints: Sequence[BlueprintConfig],
        data: Data,
        task: Task,
        device: torch.device,
    ) -> None:
        self.data, self.task, self.device = data, task, device
        host_optimiser, seed_optimiser = task.optimisers
        self.members = len(hosts)
        self.network = GrowingNetwork(
            hosts,
            blueprints,
            host_optimiser=host_optimiser,
            seed_optimiser=seed_optimiser,
            device=device,
        )

    def train_epoch(self, order_MI: npt.NDArray[np.int64], *, probe: bool = True) -> TrainReport:
        """Trains every member on its own order of the training samples.

        Args:
            order_MI: sample indices; whole batches only are used.
            probe: measure growth potential on the last batch; without it the potential is NaN.
        """
        network, batch = self.network, min(self.task.batch_size, order_MI.shape[1])
        network.train()
        batches = order_MI.shape[1] // batch
        order = torch.from_numpy(order_MI[:, : batches * batch]).to(self.device).view(self.members, batches, batch)
        losses = torch.zeros(self.members, device=self.device)
        potential = torch.full((self.members, len(network.slots)), torch.nan, device=self.device)
        for step in range(batches):
            index_MB = order[:, step]
            probes: list[Tensor] | None = [] if probe and step == batches - 1 else None
            logits = network.forward(side_by_side(self.data.train_x[index_MB]), probes)
            loss_M = member_losses(logits, self.data.train_y[index_MB])
            loss_M.sum().backward()
            network.step()
            losses += loss_M.detach()
            if probes:
                columns: list[Tensor] = []
                for features in probes:
                    assert features.grad is not None
                    columns.append(growth_potential(features.detach(), features.grad, self.members))
                potential = torch.stack(columns, 1)
        report = torch.cat([(losses / batches)[:, None], potential], 1).cpu().numpy()
        return TrainReport(loss_M=report[:, 0], potential_MS=report[:, 1:])

    def validate(self, alpha_VMS: npt.NDArray[np.float32], *, test: bool = False) -> Measurement:
        """Measures every member under V settings of its alphas; nothing is changed by it, batch statistics included.

        Args:
            alpha_VMS: blend weights; variant 0 is what the others are compared with.
            test: measure on the test part instead of the validation part.
        """
        network = self.network
        network.train(False)
        inputs = self.data.test_x if test else self.data.valid_x
        targets = self.data.test_y if test else self.data.valid_y
        variants, samples = len(alpha_VMS), len(targets)
        sums = torch.zeros(4, variants, self.members, dtype=torch.float64, device=self.device)
        for start in range(0, samples, VALIDATION_BATCH):
            x, y = inputs[start : start + VALIDATION_BATCH], targets[start : start + VALIDATION_BATCH]
            logits = network.variants(repeated(x, self.members), alpha_VMS)
            loss = F.cross_entropy(logits.flatten(0, 2), y.repeat(variants * self.members), reduction="none")
            right = (logits.argmax(-1) == y).double()
            gain = right[:1] - right
            parts = (right, loss.view(right.shape).double(), gain, gain.square())
            sums += torch.stack([part.sum(-1) for part in parts])
        right, loss, gain, square = (sums / samples).cpu().numpy()
        error = 100.0 * np.sqrt(np.maximum(square - gain**2, 0.0) / samples)
        return Measurement(
            accuracy_VM=(100.0 * right).astype(np.float32),
            loss_VM=loss.astype(np.float32),
            error_VM=error.astype(np.float32),
        )
