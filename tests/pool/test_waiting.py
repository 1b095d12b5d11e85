"""How often training and validation wait for their device: a result is read once per epoch, and never within it."""

import traceback
from collections import Counter
from threading import Event, Timer

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from esper.cli.overrides import check
from esper.env.actions import Head, Op
from esper.hosts.cnn import CNNConfig
from esper.pool import shard as shards
from esper.task.instances import Split
from esper.training.environment import build_env

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


def test_what_an_interrupted_step_leaves_does_not_train_the_next_hosts(make_env, monkeypatch):
    env = make_env(6, 6, members_per_shard=1)
    newborn, _ = env.reset(seed=0)
    train, begun, goes_on = shards.Shard.train_epoch, env.pool.shards, Event()

    def interrupted(shard, *args, **kwargs):
        if shard is begun[0]:
            raise KeyboardInterrupt
        goes_on.wait(30)
        return train(shard, *args, **kwargs)

    monkeypatch.setattr(shards.Shard, "train_epoch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        env.step(np.zeros((6, len(Head)), np.int64))
    Timer(0.3, goes_on.set).start()
    again, _ = env.reset(seed=0)
    for name, values in newborn.items():
        np.testing.assert_array_equal(again[name], values)


def test_one_device_under_two_names_is_refused():
    other = "cuda:0" if torch.cuda.is_available() else "cpu"
    with pytest.raises(ValueError, match=rf"devices=\['auto', '{other}'\] name one device of this machine twice: name it once"):
        build_env(check(["hosts=4", f"devices=[auto,{other}]"]), split=Split.TRAINING)
