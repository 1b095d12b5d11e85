"""How often training and validation wait for their device: a result is read once per epoch, and never within it."""

from threading import Event, Timer

import numpy as np
import pytest
import torch

from esper.cli.overrides import check
from esper.env.actions import Head
from esper.pool import shard as shards
from esper.task.instances import Split
from esper.training.environment import build_env
from tests.emulated import emulates, on_emulated_gpu
from tests.worlds import environment, grown

EVERY_EPOCH = ("pool/shard.py: report = ", "pool/sums.py: whole = ")
"""Where the CPU waits once per epoch of a shard: for the results of training and of validation."""
POTENTIAL = "pool/local.py: return self._sensors[device]"
"""Where it waits for growth potential."""


WORLDS = (["cnn", "cpu", "cuda:0"], ["transformer", "cuda:0", "task.epoch_samples=48"], ["deployed", "cuda:0"])
"""Worlds with their devices and overrides."""


@pytest.mark.slow
@emulates
def test_hosts_train_on_an_emulated_gpu_which_the_cpu_waits_for_once_per_result(tmp_path):
    """Tensors of different devices do not meet, and nothing is read in the middle of an epoch."""
    for (world, *given), emulated in zip(WORLDS, on_emulated_gpu(*WORLDS), strict=True):
        assert emulated["refused"] == "aten::add: expected all tensors on one device, got cpu, emulated:0"
        more = [one for one in given if "=" in one]
        losses_TN = grown(world, environment(world, tmp_path, ["cpu"], "devices.cpu.own_kernels=false", *more))
        np.testing.assert_allclose(emulated["losses"], losses_TN, rtol=0.02, err_msg=world)
        asked, steps = emulated["waits"], len(losses_TN) - 2
        assert all(line.startswith((*EVERY_EPOCH, POTENTIAL)) for line in asked), (world, [*asked])
        assert all(sum(count for line, count in asked.items() if line.startswith(one)) == steps for one in EVERY_EPOCH), world
        assert sum(count for line, count in asked.items() if line.startswith(POTENTIAL)) <= steps / 2 + 1, "not in every epoch"
        assert any(line.startswith(POTENTIAL) for line in asked), world


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
