"""The config of PPO: errors and warnings name the key."""

import warnings

import pytest

from esper.agent.base import AgentConfig
from esper.agent.ppo.ppo import PPOConfig
from tests.agent.small_policy import SPEC


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gamma", 1.1),
        ("gamma", -0.1),
        ("lam", 1.5),
        ("learning_rate", 0.0),
        ("learning_rate", float("inf")),
        ("epochs", 0),
        ("minibatches", 0),
        ("clip", 0.0),
        ("clip", 2.0),
        ("target_kl", 0.0),
        ("value_coef", -1.0),
        ("chunk", -1),
        ("entropy_coef", -1.0),
        ("entropy_final", float("nan")),
        ("max_grad_norm", 0.0),
        ("advantage_floor", 0.0),
        ("popart_step", -0.1),
        ("popart_step", 1.1),
        ("hidden", 0),
        ("slot_width", 0),
        ("blueprint_width", 0),
        ("wait_bias", float("inf")),
    ],
)
def test_values_out_of_range_are_refused_by_key(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"agent\.{name} must be .*got {value}"):
        PPOConfig(**{name: value})


def test_doubtful_values_warn() -> None:
    for config in ({"gamma": 0.5}, {"clip": 0.5}):
        with pytest.warns(UserWarning, match=f"agent.{next(iter(config))}="):
            PPOConfig(**config)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PPOConfig()


def test_a_config_without_a_controller_says_so() -> None:
    with pytest.raises(TypeError, match="AgentConfig does not define build"):
        AgentConfig().build(SPEC, seed=0)
