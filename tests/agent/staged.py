"""Hand-written observations and the decisions of controllers."""

# N hosts, H heads

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from esper.agent.base import AgentConfig
from esper.buffer.transition import Decision, State
from esper.env.actions import Head, Op
from esper.env.observation import HOST_FEATURES, slot_table
from esper.env.spec import Observation
from tests.agent.toy_envs import blank, make_spec

SPEC = replace(
    make_spec(hosts=4, steps=10, slots=3, blueprints=3),
    feature_names=tuple(feature.name for feature in HOST_FEATURES),
    slot_feature_names=tuple(feature.name for feature in slot_table([f"blueprint{i}" for i in range(3)])),
)


def see(step: int = 0, *, legal: dict[Op, list[int]] | None = None, **known: Any) -> Observation:
    """Return observations of four hosts: legal slots by operation, host features by name, slot features as `slot_<name>`."""
    observation = blank(SPEC)
    observation.features[:, SPEC.feature_names.index("time_left")] = 1 - step / SPEC.num_steps
    for op, slots in (legal or {}).items():
        observation.legal_slots[:, op, slots] = True
    for name, value in known.items():
        if name.startswith("slot_"):
            observation.slots[:, :, SPEC.slot_feature_names.index(name[5:])] = value
        else:
            observation.features[:, SPEC.feature_names.index(name)] = value
    return observation


def decide(config: AgentConfig, observation: Observation, *, state: State | None = None, seed: int = 0) -> Decision:
    controller = config.build(SPEC, seed=0)
    hosts = len(observation.features)
    uniform = np.random.default_rng(seed).random((hosts, len(Head)))
    state = controller.start(hosts) if state is None else state
    return controller.act(observation, state, is_init=np.zeros(hosts, np.bool_), uniform=uniform)


def advised(controller: Any, seen: list[Observation], *, follows: Sequence[int] = ()) -> list[list[int]]:
    """Return op, slot and blueprint that a teacher wants in the first host, while the hosts wait except in these steps."""
    hosts = len(seen[0].features)
    state, wanted = controller.start(hosts), []
    for step, one in enumerate(seen):
        decision = controller.act(
            one, state, is_init=np.zeros(hosts, np.bool_), uniform=np.zeros((hosts, len(Head))), greedy=True
        )
        state = controller.revise(one, state, decision, decision.action * (step in follows))
        wanted.append(decision.action[0, [Head.OP, Head.SLOT, Head.BLUEPRINT]].tolist())
    return wanted


def ops(decision: Decision) -> list[int]:
    return decision.action[:, Head.OP].tolist()
