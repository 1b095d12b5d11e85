"""Small environments for tests: few hosts, few digits, and legal random actions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from esper.env.actions import PINNED, Head
from esper.env.base import EnvParts
from esper.env.growth_env import GrowthConfig, GrowthEnv
from esper.fusion.precision import Precision
from esper.governor.base import GovernorConfig
from esper.governor.watchdog import WatchdogConfig
from esper.hosts.base import HostConfig
from esper.hosts.cnn import CNNConfig
from esper.lifecycle.slots import EveryBlockConfig, SlotsConfig
from esper.lifecycle.stages import SlotState
from esper.pool.devices import DeviceConfig
from esper.reward.modes import RewardConfig, ShapedConfig
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.blueprints.cnn import ConvLightConfig
from esper.seeds.blueprints.plain import NormConfig
from esper.task.base import Task
from esper.task.data import Data
from esper.task.digits import DigitsConfig

BLUEPRINTS: dict[str, BlueprintConfig] = {"norm": NormConfig(), "conv_light": ConvLightConfig()}
GAMMA = 0.9


@dataclass(kw_only=True)
class View:
    """A `HostView` with any values."""

    time: int
    num_steps: int
    accuracy_NH: npt.NDArray[np.float32]
    loss_N: npt.NDArray[np.float32]
    chance_loss: float
    state: SlotState
    potential_NSK: npt.NDArray[np.float32]
    params_NS: npt.NDArray[np.int64]
    host_params: int
    max_seeds: int
    op_N: npt.NDArray[np.int64]
    refused_N: npt.NDArray[np.bool_]


@pytest.fixture(scope="session")
def small_task() -> Task:
    """Digits with 96 images for training and 50 each for validation and test."""
    task = DigitsConfig(batch_size=32).build(CNNConfig())
    whole = task.data
    task.data = Data(
        train_x=whole.train_x[:96],
        train_y=whole.train_y[:96],
        valid_x=whole.valid_x[:50],
        valid_y=whole.valid_y[:50],
        test_x=whole.test_x[:50],
        test_y=whole.test_y[:50],
        num_classes=10,
    )
    return task


@pytest.fixture
def make_env(small_task: Task) -> Iterator[Callable[..., GrowthEnv]]:
    """Make an environment; keyword arguments replace its parts."""
    made: list[GrowthEnv] = []

    def make(
        hosts: int,
        steps: int,
        *,
        slots: SlotsConfig | None = None,
        reward: RewardConfig | None = None,
        gamma: float = GAMMA,
        governor: GovernorConfig | None = None,
        members_per_shard: int = 0,
        precision: Precision = Precision.fp32,
        own_kernels: bool = True,
        blueprints: dict[str, BlueprintConfig] | None = None,
        host: HostConfig | None = None,
        **others: Any,
    ) -> GrowthEnv:
        parts = EnvParts(
            task=DigitsConfig(),
            host=host or CNNConfig(),
            slots=slots or EveryBlockConfig(),
            blueprints=blueprints or BLUEPRINTS,
            reward=reward or ShapedConfig(),
            governor=governor or WatchdogConfig(),
            devices={"cpu": DeviceConfig(members_per_shard=members_per_shard, precision=precision, own_kernels=own_kernels)},
            gamma=gamma,
            num_hosts=hosts,
            num_steps=steps,
            **others,
        )
        env = GrowthEnv(small_task, parts, GrowthConfig())
        made.append(env)
        return env

    yield make
    for env in made:
        env.close()


def random_action(observation: dict[str, Any], host: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return a legal action of one host: a uniform operation, then a slot, then the parameters."""
    legal_OS = observation["legal_slots"][host].astype(bool)
    op = rng.choice(np.flatnonzero(legal_OS.any(axis=1)))
    action = np.zeros(len(Head), dtype=np.int64)
    action[Head.OP], action[Head.SLOT] = op, rng.choice(np.flatnonzero(legal_OS[op]))
    action[Head.BLUEPRINT] = rng.integers(len(BLUEPRINTS))
    for head, value in PINNED.items():
        action[head] = value
    return action


@pytest.fixture
def random_actions() -> Callable[..., npt.NDArray[np.int64]]:
    """Return legal actions of all hosts, each from its own stream, so that they are independent of the number of hosts."""

    def draw(observation: dict[str, Any], step: int, key: int = 0) -> npt.NDArray[np.int64]:
        hosts = len(observation["features"])
        rngs = [np.random.default_rng((key, host, step)) for host in range(hosts)]
        return np.stack([random_action(observation, host, rng) for host, rng in enumerate(rngs)])

    return draw


@pytest.fixture
def gamma() -> float:
    """Discount of the rewards."""
    return GAMMA


@pytest.fixture
def plan_actions() -> Callable[..., npt.NDArray[np.int64]]:
    """Return actions of all hosts from one (op, slot, blueprint) each."""

    def build(*wanted: tuple[int, int, int]) -> npt.NDArray[np.int64]:
        actions = np.zeros((len(wanted), len(Head)), dtype=np.int64)
        for head, value in PINNED.items():
            actions[:, head] = value
        actions[:, [Head.OP, Head.SLOT, Head.BLUEPRINT]] = wanted
        return actions

    return build


def order_of(env):
    """Return the order of each host's training samples in the current epoch."""
    return env.sampler.order(env.time, env.views)
