"""What the configs of agents promise."""

# N hosts

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from esper.agent.base import AgentConfig, Learner
from esper.agent.ppo.ppo import PPO
from esper.agent.scripted.replay import ReplayConfig
from esper.agent.scripted.schedule import ScheduleConfig
from esper.buffer.transition import Transition
from esper.config import GROUPS
from esper.env.actions import Head, Op
from esper.env.foresight import foresight_names
from tests.agent.staged import SPEC, see

EVENTS = foresight_names(["invert"])


def first_updates(config: AgentConfig, seed: int) -> list[Any]:
    """Return the initial weights of a network, and the actions of the first updates of other controllers, with equal rewards."""
    controller = config.build(replace(SPEC, feature_names=(*SPEC.feature_names, *EVENTS)), seed=seed)
    if isinstance(controller, PPO):
        return [weight.tolist() for weight in controller.network.parameters()]
    rng, found, none_N = np.random.default_rng(0), list[Any](), np.zeros(4, np.bool_)
    for update in range(4):
        state = controller.start(4)
        if isinstance(controller, Learner):
            controller.begin(update)
        for step in range(3):
            seen = see(step, legal={Op.GERMINATE: [0, 1, 2]})
            seen = replace(seen, features=np.pad(seen.features, ((0, 0), (0, len(EVENTS)))))
            is_init_N, uniform = np.full(4, step == 0), rng.random((4, len(Head)))
            decision = controller.act(seen, state, is_init=is_init_N, uniform=uniform)
            state = decision.state
            found.append(decision.action.tolist())
            if isinstance(controller, Learner):
                controller.observe(
                    Transition(
                        observation=seen,
                        decision=decision,
                        reward_N=np.ones(4, np.float32),
                        terminated_N=np.full(4, step == 2),
                        is_init_N=is_init_N,
                        rolled_back_N=none_N,
                    )
                )
        if isinstance(controller, Learner):
            controller.learn(update / 4)
    return found


@pytest.mark.parametrize("name", GROUPS["agent"])
def test_agents_say_whether_the_policy_seed_has_an_effect(name: str, tmp_path: Path) -> None:
    """Otherwise an A/A control would silently repeat its arm."""
    config = GROUPS["agent"][name]()
    if isinstance(config, ScheduleConfig):
        config.blueprint = SPEC.blueprint_names[0]
    if isinstance(config, ReplayConfig):
        config.topology = str(tmp_path / "evaluation.json")
        Path(config.topology).write_text(json.dumps({"hosts": {"policy": {"kept": [[]] * 4}}}))
    first, other, again = (first_updates(config, seed) for seed in (1, 2, 1))
    assert (first != other) == config.seeded
    assert first == again
