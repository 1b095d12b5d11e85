"""What the configs of agents promise."""

import inspect

import pytest

from esper.config import GROUPS


@pytest.mark.parametrize("name", GROUPS["agent"])
def test_agents_say_whether_the_policy_seed_has_an_effect(name: str) -> None:
    """Otherwise an A/A control would silently repeat its arm."""
    config = GROUPS["agent"][name]
    assert ("seed=seed" in inspect.getsource(config.build)) == config.seeded
