"""Every blueprint in hosts of its layout, from planting to the end of the episode."""

from copy import copy

import numpy as np
import pytest
import torch

from esper.env.actions import Head, Op
from esper.env.base import EnvParts
from esper.env.growth_env import GrowthConfig, GrowthEnv
from esper.governor.watchdog import WatchdogConfig
from esper.hosts.cnn import CNNConfig
from esper.hosts.mlp import MLPConfig
from esper.hosts.transformer import TransformerConfig
from esper.lifecycle.slots import EveryBlockConfig
from esper.pool.devices import DeviceConfig
from esper.reward.modes import ShapedConfig
from esper.seeds.blueprints.cnn import ConvLightConfig
from esper.seeds.blueprints.registry import BLUEPRINTS
from esper.task.data import Data
from esper.task.digits import DigitsConfig

WORDS = 7


def with_hosts(task, layout):
    """The task with other hosts, and random tokens for hosts of sequences."""
    other = copy(task)
    other.__dict__.pop("sizes", None)  # those of its own hosts
    other.make_host = lambda instance: MAKERS[layout]()
    other.data = task.data if layout != "sequences" else tokens()
    return other


def tokens():
    """Random sequences in which each token returns three positions later."""
    parts = {}
    for part, samples in (("train", 96), ("valid", 40), ("test", 40)):
        words = torch.randint(WORDS, (samples, 3), generator=torch.Generator().manual_seed(samples)).repeat(1, 4)
        parts |= {f"{part}_x": words[:, :-1], f"{part}_y": words[:, 1:]}
    return Data(**parts, num_classes=WORDS)


MAKERS = {
    "images": lambda: CNNConfig(base_channels=4, surfaces=["pre", "post"]).build((1, 8, 8), 10, [False] * 3),
    "vectors": lambda: MLPConfig(width=8).build((64,), 10, [False, True]),
    "sequences": lambda: TransformerConfig(width=8, heads=2, context=11).build((8,), WORDS, [False, True]),
}


def env_of(task, blueprints, *, hosts, steps):
    parts = EnvParts(
        task=DigitsConfig(),
        host=CNNConfig(),
        slots=EveryBlockConfig(),
        blueprints=blueprints,
        reward=ShapedConfig(),
        governor=WatchdogConfig(),
        devices={"cpu": DeviceConfig()},
        gamma=0.9,
        num_hosts=hosts,
        num_steps=steps,
    )
    return GrowthEnv(task, parts, GrowthConfig())


@pytest.mark.parametrize("layout", MAKERS)
def test_seeds_of_every_blueprint_train_and_stay_finite(small_task, layout):
    blueprints = {name: kind() for name, kind in BLUEPRINTS.items() if layout in kind.layouts}
    names = list(blueprints)
    env = env_of(with_hosts(small_task, layout), blueprints, hosts=len(names), steps=5)
    observation, _ = env.reset()
    assert observation["legal_values"][:, : len(names)].all()
    action = np.zeros((len(names), len(Head)), dtype=np.int64)
    action[:, Head.OP], action[:, Head.SLOT], action[:, Head.BLUEPRINT] = Op.GERMINATE, 1, np.arange(len(names))
    for head in list(Head)[Head.BLUEPRINT + 1 :]:
        first = sum(env.layout.head_sizes[Head.BLUEPRINT : head])
        action[:, head] = observation["legal_values"][0, first : first + env.layout.head_sizes[head]].argmax()
    env.step(action)
    assert not env.refused_N.any()
    wait = np.zeros_like(action)
    for _ in range(3):
        observation, reward, *_ = env.step(wait)
        assert np.isfinite(reward).all()
    assert all(np.isfinite(part).all() for part in observation.values())
    for index in range(len(names)):
        bank = env.pool.shards[0].network.bank(1, index)
        assert bank.fleet.flat[index].count_nonzero() > 0.5 * bank.fleet.flat.shape[1], "the seed has learnt"
    env.close()


def test_an_incompatible_blueprint_is_refused_at_construction(small_task):
    task = with_hosts(small_task, "sequences")
    with pytest.raises(ValueError, match=r"blueprint=conv_light cannot grow in the hosts of this task: it grows in images"):
        env_of(task, {"conv_light": ConvLightConfig()}, hosts=1, steps=1)
