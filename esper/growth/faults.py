"""Faults of hosts that do not show in any loss: non-finite buffers, and overflows in fp16."""

# M members

import torch
from torch import Tensor

from esper.fusion.fuse import Fleet
from esper.optimisers.loss_scale import LossScale


def take_faults(host: Fleet, loss_scale: LossScale | None) -> Tensor:
    """Return the faults of the batches since the last call `[M, 3]`.

    Returns:
        1 for members with finite buffers and without an overflow at the lowest loss scale, else 0; then overflows and loss scale,
        NaN without loss scales.
    """
    faults_M3 = torch.full((host.members, 3), torch.nan, device=host.flat.device, dtype=host.flat.dtype)
    faults_M3[:, 0] = 1.0
    for buffer in host.buffers.values():
        faults_M3[:, 0] *= buffer.isfinite().reshape(host.members, -1).all(1)
    if loss_scale is not None:
        faults_M3[:, 1], faulty_M = loss_scale.take_overflows()
        faults_M3[:, 0] *= ~faulty_M
        faults_M3[:, 2] = loss_scale.of()
    return faults_M3
