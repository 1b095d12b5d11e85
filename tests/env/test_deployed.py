"""Deployed hosts: frozen, and trained before the episode."""

import numpy as np
import pytest

from esper.cli.overrides import check
from esper.config import HOSTS, ConfigError
from esper.env.actions import Op
from esper.env.base import EnvParts
from esper.env.growth_env import GrowthEnv
from esper.env.shard import DeviceConfig
from esper.governor.watchdog import StrictWatchdogConfig
from esper.hosts.base import HostConfig
from esper.hosts.cnn import CNNConfig
from esper.hosts.mlp import MLPConfig
from esper.hosts.transformer import TransformerConfig
from esper.lifecycle.roles import Incubation
from esper.lifecycle.slots import EveryBlockConfig
from esper.lifecycle.stages import LIVE
from esper.reward.modes import OnlineConfig
from esper.seeds.blueprints.dense import LoraConfig, MLPSeedConfig
from esper.task.base import TaskConfig
from esper.task.digits import DigitsConfig
from esper.task.loading import load_task
from esper.task.python_text import PythonTextConfig
from tests.env_fixtures import BLUEPRINTS

HOSTS_OF: dict[str, tuple[TaskConfig, HostConfig]] = {
    "cnn": (DigitsConfig(batch_size=256), CNNConfig(frozen=True)),
    "mlp": (DigitsConfig(batch_size=256), MLPConfig(frozen=True)),
    "transformer": (PythonTextConfig(epoch_samples=128, valid_samples=32), TransformerConfig(frozen=True)),
}
DENSE = {"lora": LoraConfig(), "mlp_small": MLPSeedConfig()}


def state_of(env: GrowthEnv) -> list[dict[str, bytes]]:
    """Return the bits of all hosts without their seeds."""
    rows = [shard.network.rows() for shard in env.pool.shards]
    return [{name: row.numpy().tobytes() for name, row in part.items() if not name.startswith("seed")} for part in rows]


@pytest.mark.parametrize("incubation", list(Incubation))
@pytest.mark.parametrize("name", list(HOSTS_OF))
def test_a_frozen_host_never_changes_while_its_seeds_learn(name, incubation, random_actions):
    task, host = HOSTS_OF[name]
    parts = EnvParts(
        task=task,
        host=host,
        slots=EveryBlockConfig(incubation=incubation, min_prune_age=1, auto_advance=["training", "blending"]),
        blueprints=BLUEPRINTS if name == "cnn" else DENSE,
        reward=OnlineConfig(),
        governor=StrictWatchdogConfig(),
        devices={"cpu": DeviceConfig(members_per_shard=2)},
        gamma=0.9,
        num_hosts=3,
        num_steps=7,
    )
    env = GrowthEnv(load_task(task, host), parts)
    observation, _ = env.reset(seed=3)
    born, seeds = state_of(env), set[int]()
    for step in range(6):
        observation, reward, *_, info = env.step(random_actions(observation, step))
        assert state_of(env) == born
        assert all(np.isfinite(array).all() for array in observation.values())
        assert np.isfinite(reward).all()
        assert np.isfinite(info["signals"].train_loss_N).all()
        seeds |= {
            hash(row.numpy().tobytes()) for key, row in env.pool.shards[0].network.rows().items() if key.startswith("seed/")
        }
    assert len(seeds) > 3, "seeds learn"
    env.close()


def test_the_governor_restores_a_frozen_host_and_removes_its_broken_seed(make_env, plan_actions):
    env = make_env(2, 6, host=CNNConfig(frozen=True))
    env.reset(seed=1)
    born = state_of(env)
    wait = plan_actions((Op.WAIT, 0, 0), (Op.WAIT, 0, 0))
    env.step(plan_actions((Op.GERMINATE, 1, 1), (Op.WAIT, 0, 0)))
    env.step(plan_actions((Op.ADVANCE, 1, 0), (Op.WAIT, 0, 0)))
    (bank,) = env.pool.shards[0].network.banks.values()
    bank.fleet.flat.data[0, -1] = np.nan
    *_, info = env.step(wait)
    assert info["rolled_back"].tolist() == [True, False]
    assert info["signals"].train_loss_N[1] > 0
    observation, *_ = env.step(wait)
    assert not env.state.within(*LIVE).any()
    assert np.isfinite(observation["slots"]).all()
    assert state_of(env) == born


@pytest.mark.parametrize("name", list(HOSTS))
def test_every_host_can_be_frozen(name):
    assert HOSTS[name].__dataclass_fields__["frozen"].default is False


def test_a_gate_on_host_gradients_is_refused_for_frozen_hosts():
    with pytest.raises(ConfigError, match=r"needs gradients of the host.*: set gates\.min_gradient_ratio=null"):
        check(["host.frozen=true", "gates=strict", "steps=40"])
    check(["host.frozen=true", "gates=strict", "gates.min_gradient_ratio=null", "steps=40"])
