"""The greedy controller: what it plants, what it keeps, and what it does not try twice."""

# N hosts, S slots, K blueprints, H heads

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from esper.agent.scripted.greedy import GreedyPotentialConfig
from esper.buffer.transition import Decision, State
from esper.env.actions import Head, Op
from esper.env.observation import HOST_FEATURES, log_potential, slot_table
from esper.env.spec import EnvSpec, Observation
from tests.agent.staged import advised
from tests.agent.toy_envs import blank, make_spec

SPEC: EnvSpec = replace(
    make_spec(hosts=2, steps=10, slots=3, blueprints=2),
    feature_names=tuple(feature.name for feature in HOST_FEATURES),
    slot_feature_names=tuple(feature.name for feature in slot_table(["blueprint0", "blueprint1"])),
)
POTENTIAL_SK = [[0.001, 0.003], [0.02, 0.01], [0.004, 0.0]]


def see(step: int = 5, potential_SK: Any = POTENTIAL_SK, *, legal: dict[Op, list[int]] | None = None, **slot: Any) -> Observation:
    observation = blank(SPEC)
    observation.features[:, SPEC.feature_names.index("time_left")] = 1 - step / SPEC.num_steps
    for op, slots in (legal or {Op.GERMINATE: [0, 1, 2]}).items():
        observation.legal_slots[:, op, slots] = True
    for kind in range(2):
        column = SPEC.slot_feature_names.index(f"potential_of_blueprint{kind}")
        observation.slots[:, :, column] = log_potential(np.array(potential_SK, np.float32)[:, kind])
    for name, value in slot.items():
        observation.slots[:, :, SPEC.slot_feature_names.index(name)] = value
    return observation


def decide(observation: Observation, state: State | None = None, **config: Any) -> Decision:
    agent = GreedyPotentialConfig(**({"threshold": 0.005} | config)).build(SPEC, seed=0)
    state = agent.start(2) if state is None else state
    return agent.act(observation, state, is_init=np.zeros(2, np.bool_), uniform=np.zeros((2, len(Head))))


def planted(decision: Decision) -> list[int]:
    return decision.action[0, [Head.OP, Head.SLOT, Head.BLUEPRINT]].tolist()


def test_it_plants_where_the_potential_is_largest() -> None:
    assert planted(decide(see())) == [Op.GERMINATE, 1, 0]
    assert planted(decide(see(legal={Op.GERMINATE: [0, 2]}), threshold=0.002)) == [Op.GERMINATE, 2, 0]
    barred = see()
    barred.legal_values[:, 0] = False  # the first blueprint is not available
    assert planted(decide(barred)) == [Op.GERMINATE, 1, 1]


def test_it_waits_before_its_time_and_below_the_threshold() -> None:
    assert planted(decide(see(2), at=3)) == [Op.WAIT, 0, 0]
    assert planted(decide(see(3), at=3)) == [Op.GERMINATE, 1, 0]
    assert planted(decide(see(), threshold=0.021)) == [Op.WAIT, 0, 0]
    assert planted(decide(see(), threshold=0.019)) == [Op.GERMINATE, 1, 0]
    assert planted(decide(see(potential_SK=np.zeros((3, 2))), threshold=0.0)) == [Op.WAIT, 0, 0]


def test_it_can_rank_by_potential_per_parameter() -> None:
    """Seeds of blueprint 1 are twice as large."""
    tight = [[0.02, 0.03], [0.001, 0.001], [0.001, 0.001]]
    assert planted(decide(see(potential_SK=tight))) == [Op.GERMINATE, 0, 1]
    assert planted(decide(see(potential_SK=tight), per_parameter=True)) == [Op.GERMINATE, 0, 0]
    free = replace(SPEC, seed_params=tuple((0,) * len(row) for row in SPEC.seed_params))  # as where a blueprint cannot grow
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent = GreedyPotentialConfig(threshold=0.005, per_parameter=True).build(free, seed=0)
        agent.act(see(potential_SK=tight), agent.start(2), is_init=np.zeros(2, np.bool_), uniform=np.zeros((2, len(Head))))


def worth(points: float, error: float) -> dict[str, float]:
    return {"contribution": points / 50, "contribution_error": error / 5, "contribution_measured": 1.0}


def test_it_keeps_a_seed_that_contributes_more_than_its_error_and_prunes_the_others() -> None:
    ripe = {Op.FOSSILIZE: [1], Op.PRUNE: [1]}
    assert planted(decide(see(legal=ripe, **worth(2.0, 1.5))))[:2] == [Op.FOSSILIZE, 1]
    assert planted(decide(see(legal=ripe, **worth(1.0, 1.5))))[:2] == [Op.PRUNE, 1]
    assert planted(decide(see(legal=ripe, **worth(1.0, 1.5)), errors=0.5))[:2] == [Op.FOSSILIZE, 1]
    assert planted(decide(see(legal=ripe, **(worth(2.0, 1.5) | {"contribution_measured": 0.0}))))[:2] == [Op.PRUNE, 1]
    assert planted(decide(see(legal={Op.FOSSILIZE: [1]}, **worth(-3.0, 1.0))))[:2] == [Op.WAIT, 0]
    assert planted(decide(see(legal={Op.ADVANCE: [2], Op.PRUNE: [2]}, **worth(-3.0, 1.0))))[:2] == [Op.ADVANCE, 2]


def test_a_pruned_blueprint_is_tried_again_in_a_new_host_only() -> None:
    failing = see(legal={Op.FOSSILIZE: [1], Op.PRUNE: [1]}, **worth(0.0, 1.0))
    failing.blueprints[:, 1] = 0
    failing.legal_slots[1] = blank(SPEC).legal_slots[1]  # the second host has nothing to do
    after = decide(failing)
    assert after.action[:, Head.OP].tolist() == [Op.PRUNE, Op.WAIT]
    again = decide(see(), after.state)
    assert again.action[:, [Head.SLOT, Head.BLUEPRINT]].tolist() == [[1, 1], [1, 0]]
    assert decide(see(0), again.state, at=1).state["failed"].sum() == 0
    assert torch.equal(again.state["failed"], after.state["failed"])


def test_a_blueprint_that_was_not_pruned_after_all_has_not_failed() -> None:
    failing = see(legal={Op.FOSSILIZE: [1], Op.PRUNE: [1]}, **worth(0.0, 1.0))
    failing.blueprints[:, 1] = 0
    agent = GreedyPotentialConfig(threshold=0.005).build(SPEC, seed=0)
    prune, best, second = [Op.PRUNE, 1, 0], [Op.GERMINATE, 1, 0], [Op.GERMINATE, 1, 1]
    assert advised(agent, [failing, see(), see()]) == [prune, best, best]
    assert advised(agent, [failing, see(), see()], follows=[0]) == [prune, second, second]
    held = see(legal={Op.PRUNE: [1]})  # it would keep this seed, and is overruled
    held.blueprints[:, 1] = 0
    waiting = agent.act(held, agent.start(2), is_init=np.zeros(2, np.bool_), uniform=np.zeros((2, len(Head))))
    assert planted(waiting)[0] != Op.PRUNE
    taken = np.zeros_like(waiting.action)
    taken[:, Head.OP], taken[:, Head.SLOT] = Op.PRUNE, 1
    assert agent.revise(held, agent.start(2), waiting, taken)["failed"][:, 1].tolist() == [[True, False]] * 2
    start = agent.start(2)
    decision = agent.act(failing, start, is_init=np.zeros(2, np.bool_), uniform=np.zeros((2, len(Head))))
    slowly = decision.action.copy()
    slowly[:, Head.ALPHA_SPEED] = 2
    assert agent.revise(failing, start, decision, slowly)["failed"].any(), "pruned, though not at once"


@pytest.mark.parametrize(
    ("config", "message"),
    [({"at": 0}, r"agent\.at must be at least 1"), ({"threshold": -1.0}, r"agent\.thres"), ({"errors": -1.0}, r"agent\.errors")],
)
def test_values_out_of_range_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GreedyPotentialConfig(**config)
