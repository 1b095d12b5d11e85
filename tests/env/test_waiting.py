"""How often training and validation wait for their device: a result is read once per epoch, and never within it."""

import traceback
from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from esper.env import shard as shards
from esper.env.actions import Op
from esper.hosts.cnn import CNNConfig

READS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default, torch.ops.aten.equal.default}
"""Operations whose result Python needs, so that it waits until the device has computed it. Copies of whole results are not among
them: on a CPU they are no operations."""


class Reads(TorchDispatchMode):
    """Counts operations that wait, by the line that asked."""

    def __init__(self):
        super().__init__()
        self.lines = Counter[str]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in READS:
            asked = [frame for frame in traceback.extract_stack() if "/esper/" in frame.filename]
            self.lines[asked[-1].line or ""] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("frozen", [False, True])
def test_an_epoch_reads_nothing_before_its_end(make_env, plan_actions, monkeypatch, frozen):
    env = make_env(3, 6, host=CNNConfig(frozen=frozen))
    env.reset()
    env.act(env.permitted(plan_actions(*[(Op.GERMINATE, 1, 1)] * 2, (Op.WAIT, 0, 0)))[0])
    monkeypatch.setattr(shards, "CHECK_EVERY", 10**9)  # a check that only a CPU makes
    (shard,) = env.pool.shards
    with Reads() as reads:
        shard.train_epoch(env.sampler.order(env.time, env.views), probe=True)
        shard.validate(np.zeros((2, 3, env.layout.num_slots), np.float32))
    assert not reads.lines
