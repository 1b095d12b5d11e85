"""Playing an episode: each host has its own action noise."""

# T steps, N hosts, H heads

from contextlib import closing

import numpy as np

from esper.buffer.transition import Decision, State
from esper.env.actions import Head
from esper.env.base import EnvParts
from esper.env.episode import Episode
from esper.env.growth_env import GrowthConfig, GrowthEnv
from esper.env.spec import Observation
from esper.governor.watchdog import WatchdogConfig
from esper.hosts.cnn import CNNConfig
from esper.lifecycle.slots import OneSeedConfig
from esper.pool.devices import DeviceConfig
from esper.reward.modes import ShapedConfig
from esper.seeds.blueprints.plain import NormConfig
from esper.task.digits import DigitsConfig
from esper.telemetry.tags import measured
from esper.training.play import play


class Listener:
    """A controller that waits, and records its action noise."""

    def __init__(self) -> None:
        self.heard: list[np.ndarray] = []

    def start(self, num_hosts: int) -> State:
        return {}

    def act(
        self, observation: Observation, state: State, *, is_init: np.ndarray, uniform: np.ndarray, greedy: bool = False
    ) -> Decision:
        self.heard.append(uniform)
        return Decision(action=np.zeros((len(uniform), len(Head)), np.int64), state=state)


def environment(hosts: int, *, seed: int = 0, blueprint: str = "norm") -> GrowthEnv:
    parts = EnvParts(
        task=DigitsConfig(valid_samples=50),
        host=CNNConfig(),
        slots=OneSeedConfig(),
        blueprints={blueprint: NormConfig()},
        reward=ShapedConfig(),
        governor=WatchdogConfig(),
        devices={"cpu": DeviceConfig()},
        gamma=1.0,
        num_hosts=hosts,
        num_steps=2,
        seed=seed,
    )
    return GrowthConfig().build(parts)


def heard(hosts: int, *, seed: int = 0, episodes: int = 1) -> np.ndarray:
    """Return the noise of the last of several episodes `[T, N, H]`."""
    listener = Listener()
    with closing(environment(hosts, seed=seed)) as env:
        env.reset()
        for _ in range(episodes):
            play(env, listener)
    return np.stack(listener.heard[-2:])


def test_action_noise_of_a_host_is_independent_of_the_number_of_hosts() -> None:
    few, many = heard(1), heard(3)
    np.testing.assert_array_equal(few, many[:, :1])
    assert len(np.unique(many)) == many.size, "all numbers differ"


def test_action_noise_differs_by_seed_and_episode() -> None:
    first = heard(1)
    assert not np.isin(heard(1, seed=1), first).any()
    assert not np.isin(heard(1, episodes=2), first).any()


def test_any_name_that_can_be_registered_has_tags() -> None:
    with closing(environment(2, blueprint="My-Block.2")) as env:
        env.reset()
        episode = play(env, Listener())
    assert isinstance(episode, Episode)
    episode.terms, episode.modes = {"Pay-Day": 1.0}, {"Mine.2": slice(0, 1)}
    found = episode.metrics()
    measured(found)  # which raises for an unknown tag
    assert {"shapley/my_block_2", "reward/pay_day", "mode/mine_2"} <= found.keys()
    assert any(tag.endswith("/blueprint_my_block_2") for tag in found)
